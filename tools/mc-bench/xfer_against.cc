#include "xfer_against.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "base/histogram.h"
#include "base/json.h"
#include "child.h"
#include "xfer/bench.h"
#include "xfer_rdma/device.h"

namespace mc::bench {
namespace {

TimePoint in(Duration d) {
  return SystemClock::instance().now() + d;
}

Result<Child> start(const std::vector<std::string>& command) {
  auto started = Child::start(command);
  if (!started) return user_error(err::kReferenceMissing, started.error().what, "--against");
  return started;
}

void add_words(std::vector<std::string>& command, const std::string& text) {
  std::istringstream words(text);
  for (std::string word; words >> word;) command.push_back(word);
}

bool lacks_device(const ReferencePlan& plan) {
  return is_perftest(plan.reference) && xfer::rdma_report({}).devices.empty();
}

/// It was started, and ended without a result.
Error failed(const ReferencePlan& plan, const std::string& what) {
  if (lacks_device(plan))
    return user_error(err::kReferenceFailed,
                      name_of(plan.reference) + " needs an RDMA device, and this machine has none", "--against",
                      "compare with memcpy, raw or iperf3; mc-bench doctor says how to get a device");
  return user_error(err::kReferenceFailed, name_of(plan.reference) + " " + what, "--against");
}

/// The reference program succeeded, and its output lacks a figure.
Error unreadable(const std::string& program, const std::string& lacks, const std::string& text) {
  return user_error(err::kReferenceFailed, program + " printed no " + lacks + ": " + last_words(text), "--against",
                    "try another version of the program, or leave out --against-client; "
                    "--against memcpy and --against raw need no program");
}

/// Runs a server of one session and a client, which is tried again until the server listens. The
/// client's output.
Result<std::string> run_pair(const ReferencePlan& plan, std::vector<std::string> server,
                             std::vector<std::string> client) {
  add_words(server, plan.server_args);
  add_words(client, plan.client_args);
  if (plan.reference != Reference::iperf3) client.push_back(plan.host);
  std::optional<Child> other;
  if (plan.start_other_side) {
    MC_TRY(started, start(server));
    other.emplace(std::move(started));
    (void)other->stirred(200ms);
  }
  const TimePoint deadline = in(plan.duration + 10s);
  for (;;) {
    MC_TRY(program, start(client));
    auto status = program.finish(deadline + 30s);
    if (!status) return failed(plan, status.error().what);
    if (*status == 0) return program.text();
    if (!other || SystemClock::instance().now() > deadline || lacks_device(plan))
      return failed(plan, "ended with " + std::to_string(*status) + ": " + last_words(program.text()));
    (void)other->stirred(100ms);
  }
}

Result<double> run_iperf3(const ReferencePlan& plan) {
  static int port = 15201 + static_cast<int>(::getpid() % 10000);
  const std::string at = std::to_string(++port);
  const auto seconds = std::max<int64_t>(1, static_cast<int64_t>(to_seconds(plan.duration) + 0.5));
  std::vector<std::string> client = {"iperf3",
                                     "-c",
                                     plan.host,
                                     "-p",
                                     plan.start_other_side ? at : "5201",
                                     "-t",
                                     std::to_string(seconds),
                                     "-P",
                                     std::to_string(plan.streams),
                                     "-l",
                                     std::to_string(std::clamp<size_t>(plan.request_bytes, 1024, 1 << 20)),
                                     "-J"};
  MC_TRY(text, run_pair(plan, {"iperf3", "-s", "-1", "-p", at}, std::move(client)));
  return parse_iperf3(text);
}

Result<double> run_perftest(const ReferencePlan& plan) {
  static int port = 25201 + static_cast<int>(::getpid() % 10000);
  const std::string at = std::to_string(plan.start_other_side ? ++port : 18515);
  std::vector<std::string> common = {name_of(plan.reference),
                                     "-s",
                                     std::to_string(plan.request_bytes),
                                     "-n",
                                     std::to_string(std::clamp<uint64_t>(plan.iterations, 5, 100000)),
                                     "-p",
                                     at,
                                     "-F"};
  // as many requests in flight as ours has
  if (!is_latency(plan.reference)) common.insert(common.end(), {"-t", std::to_string(plan.depth)});
  MC_TRY(text, run_pair(plan, common, common));
  return parse_perftest(text, is_latency(plan.reference));
}

}  // namespace

std::string name_of(Reference reference) {
  const auto row = std::ranges::find(kReferences, reference, &FlagWord<Reference>::value);
  MC_ASSERT(row != std::end(kReferences));
  return std::string(row->word);
}

bool is_perftest(Reference reference) {
  return reference >= Reference::ib_write_bw;
}

bool is_latency(Reference reference) {
  return reference == Reference::ib_read_lat;
}

Result<double> parse_iperf3(const std::string& text) {
  // only that object: with several streams iperf3 3.12 repeats keys elsewhere, which is no JSON to us
  const size_t at = text.rfind("\"sum_received\"");
  const size_t from = at == std::string::npos ? at : text.find('{', at);
  const size_t to = from == std::string::npos ? from : text.find('}', from);
  if (to == std::string::npos) return unreadable("iperf3", "end.sum_received", text);
  const auto result = Json::parse(text.substr(from, to - from + 1));
  if (!result) return unreadable("iperf3", "end.sum_received that is JSON", text);
  const double bits = (*result)["bits_per_second"].as_double();
  if (bits <= 0) return unreadable("iperf3", "end.sum_received.bits_per_second", text);
  return bits / 8;
}

Result<double> parse_perftest(const std::string& text, bool latency) {
  // the line below the header "#bytes #iterations BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps]", of MiB, which
  // tell slow links better apart than the two decimals of Gb/sec that --report_gbits prints; or
  // "#bytes #iterations t_min[usec] t_max[usec] t_typical[usec] t_avg[usec] ..."
  std::istringstream lines(text);
  bool header = false;
  double unit = 1 << 20;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("#bytes") != std::string::npos) {
      header = true;
      if (line.find("[Gb/sec]") != std::string::npos) unit = 1e9 / 8;
      continue;
    }
    if (!header) continue;
    std::istringstream words(line);
    std::vector<double> columns;
    for (double value; words >> value;) columns.push_back(value);
    if (columns.size() < (latency ? 5u : 4u)) continue;
    const double value = latency ? columns[4] / 1e6 : columns[3] * unit;
    if (value > 0) return value;
  }
  return unreadable("perftest", "result line", text);
}

Result<double> run_reference(const ReferencePlan& plan) {
  MC_ASSERT(plan.reference != Reference::none);
  if (plan.reference == Reference::memcpy)
    return xfer::bench_memcpy(plan.source, plan.target, plan.request_bytes, plan.duration);
  if (plan.reference == Reference::raw)
    return xfer::bench_raw_tcp(plan.source, plan.target, plan.request_bytes, plan.duration, plan.depth);
  return plan.reference == Reference::iperf3 ? run_iperf3(plan) : run_perftest(plan);
}

Ratio summarise(std::vector<double> ratios) {
  std::sort(ratios.begin(), ratios.end());
  return {quantile_sorted(ratios, .5), quantile_sorted(ratios, .25), quantile_sorted(ratios, .75)};
}

}  // namespace mc::bench
