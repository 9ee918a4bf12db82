#include "host/transfer_flags.h"

#include <string>

#include "base/assert.h"
#include "base/errors.h"
#include "base/units.h"
#include "host/daemon_flags.h"
#include "product/flags.h"
#include "transports/transports.h"

namespace mc {

Result<void> flags::check_lease_time(std::string_view value) {
  MC_TRY(time, parse_duration(value));
  if (time >= 10ms) return {};
  return {Code::invalid, "'" + std::string(value) + "' is shorter than a read takes; give at least 10ms"};
}

Result<void> flags::check_fetch_timeout(std::string_view value) {
  MC_TRY(time, parse_duration(value));
  if (time >= 10ms && time <= 600s) return {};
  return {Code::invalid, "'" + std::string(value) + "' is not from 10ms to 10m"};
}

Result<void> flags::check_connect_timeout(std::string_view value) {
  MC_TRY(time, parse_duration(value));
  if (time >= 100ms && time <= 30s) return {};
  return {Code::invalid, "'" + std::string(value) + "' is not from 100ms to 30s"};
}

Result<void> flags::check_transfer_faults(std::string_view value) {
  const auto plan = host::parse_faults(value);
  return plan ? Result<void>() : Result<void>(plan.error());
}

}  // namespace mc

namespace mc::host {

Result<xfer::FaultPlan> parse_faults(std::string_view text) {
  const auto bad = [](const std::string& part) {
    return Error{Code::invalid, "'" + part.substr(0, 80) + "' is none of delay=P:T, fail=P, corrupt=P, lose=P"};
  };
  xfer::FaultPlan plan;
  MC_TRY(parts, split_list(text));
  for (const std::string& part : parts) {
    const size_t equals = part.find('=');
    if (equals == std::string::npos) return bad(part);
    const std::string kind = part.substr(0, equals);
    std::string value = part.substr(equals + 1);
    double* chance = kind == "delay"     ? &plan.delay
                     : kind == "fail"    ? &plan.fail_completion
                     : kind == "corrupt" ? &plan.corrupt
                     : kind == "lose"    ? &plan.lose_peer
                                         : nullptr;
    if (chance == nullptr) return bad(part);
    if (kind == "delay") {
      const size_t colon = value.find(':');
      if (colon == std::string::npos) return bad(part);
      MC_TRY(time, parse_duration(value.substr(colon + 1)));
      plan.delay_for = time;
      value.resize(colon);
    }
    MC_TRY(share, parse_f64(value));
    if (!(share >= 0 && share <= 1)) return bad(part);
    *chance = share;
  }
  return plan;
}

Result<std::unique_ptr<xfer::Engine>> open_transfers(const xfer::Options& options) {
  auto engine = xfer::open_engine(options);
  if (engine) return engine;
  const std::string& what = engine.error().what;
  if (engine.error().mc == err::kAuthRequired) return std::move(engine.error());
  if (engine.error().mc == err::kBadValue)  // tcp_seal on without a secret
    return user_error(err::kBadValue, what, "--tcp-seal",
                      "add --auth FILE (made by: mc-conductor keygen), or leave --tcp-seal at auto");
  if (engine.error().code == Code::busy) return as_user_error(err::kPortInUse, std::move(engine.error()));
  if (engine.error().code == Code::unsupported)
    return user_error(err::kTransportUnusable, what, "--transport",
                      "mc-bench doctor says what this machine lacks; --transport names another");
  const bool option = engine.error().code == Code::invalid;
  return as_user_error(option ? err::kBadValue : err::kCannotListen, std::move(engine.error()));
}

void apply_transfer_flags(const cli::Args& args, xfer::Options& options) {
  options.spin = args.duration(flags::kTransferSpin);
  options.connect_timeout = args.duration(flags::kConnectTimeout);
  options.tcp_io = args.text(flags::kTcpIo);
  options.rdma_lanes = static_cast<int>(args.count(flags::kRdmaLanes));
  options.rdma_pairs_max = args.count(flags::kRdmaPairsMax);
  options.rdma_traffic_class = static_cast<int>(args.count(flags::kRdmaTrafficClass));
  options.rdma_sends = !args.on(flags::kRdmaNoSends);
  if (args.present(flags::kRdmaPace)) {
    const auto rate = parse_byte_rate(args.text(flags::kRdmaPace));
    MC_ASSERT(rate.has_value());  // the flag's check
    options.rdma_pace = *rate;
  }
  if (!args.present(flags::kRdmaCooldown)) return;
  const std::string_view rest = args.text(flags::kRdmaCooldown);
  const size_t dash = rest.find('-');
  const auto first = parse_duration(rest.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : parse_duration(rest.substr(dash + 1));
  MC_ASSERT(first.has_value() && last.has_value());
  options.rdma_cooldown_min = *first;
  options.rdma_cooldown_max = *last;
}

}  // namespace mc::host
