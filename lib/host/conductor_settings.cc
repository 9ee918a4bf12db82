#include "host/conductor_settings.h"

#include <algorithm>
#include <array>
#include <random>

#include "base/assert.h"
#include "base/errors.h"
#include "host/conductor_flags.h"
#include "host/daemon_flags.h"
#include "host/engine.h"
#include "host/profile.h"
#include "host/sched_flags.h"
#include "model/find.h"
#include "product/doors.h"
#include "product/flags.h"

namespace mc::host {
namespace {

/// Refuses flags that nothing reads, because another flag does not choose what they are for.
Result<void> check_pairs(const cli::Args& args) {
  struct Pair {
    const Flag* flag;
    const Flag* chooser;
    std::string_view choice;  // of `chooser`, with which `flag` is read
    bool is_chosen;
  };
  const Pair pairs[] = {
      {&flags::kFetchThreshold, &flags::kFetchRule, word_for(flags::kFetchRule, sched::FetchRule::threshold),
       choice_of(args, flags::kFetchRule) == sched::FetchRule::threshold},
      {&flags::kReplicateRate, &flags::kReplicate, "3", args.present(flags::kReplicate)},
  };
  for (const Pair& pair : pairs) {
    if (pair.is_chosen || !args.said(*pair.flag)) continue;
    const std::string name = "--" + std::string(pair.flag->name), chooser = "--" + std::string(pair.chooser->name);
    return user_error(
        err::kBadValue,
        name + " " + args.text(*pair.flag) + " means nothing with " + chooser + " " + args.text(*pair.chooser), name,
        "leave " + name + " out, or choose " + chooser + " " + std::string(pair.choice));
  }
  return {};
}

void read_hold(const cli::Args& args, node::ConductorOptions& machine) {
  using Hold = node::ConductorOptions::Hold;
  machine.hold = word_of(args, flags::kHold).value_or(Hold::on);
  if (machine.hold == Hold::on) machine.hold_lead = args.duration(flags::kHold);
  if (choice_of(args, flags::kHoldOrder) == sched::HoldOrder::work) machine.fair.stretch = sched::kWorkStretch;
  if (args.present(flags::kReplicate)) {
    machine.replicate.replicas_max = static_cast<uint32_t>(std::min<uint64_t>(args.count(flags::kReplicate), 65535));
    machine.replicate.bytes_per_s = static_cast<double>(args.bytes(flags::kReplicateRate));
  }
}

}  // namespace

Result<ConductorSettings> read_conductor_flags(const cli::Args& args) {
  ConductorSettings out;
  MC_CHECK(check_pairs(args));
  MC_TRY(directory, model::find_model(args.text(flags::kModel)));
  out.front.model_directory = directory;
  out.front.served_name = args.present(flags::kServedName) ? args.text(flags::kServedName) : served_name(directory);
  out.front.chat_template = args.text(flags::kChatTemplate);
  out.front.block_tokens = static_cast<uint32_t>(args.count(flags::kBlockTokens));
  out.front.deadline = args.duration(flags::kDeadline);
  MC_ASSERT(out.front.block_tokens > 0);  // the check of the flag
  out.front.seed = args.count(flags::kSeed);
  out.front.generation_defaults = choice_of(args, flags::kGenerationConfig);
  MC_TRY(profile, runner_profile(args));
  if (profile) out.front.context_tokens = static_cast<uint32_t>(profile->context_tokens);
  node::ConductorOptions& machine = out.machine;
  std::random_device device;
  for (auto& byte : machine.instance.bytes) byte = static_cast<uint8_t>(device());
  machine.policy = sched::find_policy(args.text(flags::kPolicy));
  MC_ASSERT(machine.policy != nullptr);
  machine.sched.fetch_rule = choice_of(args, flags::kFetchRule);
  machine.sched.threshold = args.number(flags::kFetchThreshold);
  machine.prefix_from = choice_of(args, flags::kPrefixFrom);
  // The parser takes the names of the table and auto, which has no row.
  const sched::Admission* const asked = sched::find_admission(args.text(flags::kAdmission));
  machine.sched.admission = asked != nullptr ? asked : sched::find_admission("committed");
  const bool admit_all = machine.sched.admission == sched::find_admission("none");
  if (args.present(flags::kTtftSlo) && !admit_all)
    machine.sched.ttft_slo_s = to_seconds(args.duration(flags::kTtftSlo));
  if (args.present(flags::kTbtSlo) && !admit_all) machine.sched.tbt_slo_s = to_seconds(args.duration(flags::kTbtSlo));
  MC_CHECK(check_sched_flags(args, std::array{machine.sched.admission}));
  read_sched_flags(args, machine.sched);
  read_hold(args, machine);
  if (args.present(flags::kApiKeys)) {
    MC_TRY(keys, door::ApiKeys::open(args.text(flags::kApiKeys)));
    machine.tenants = keys.tenants();
    out.api_keys = std::make_shared<const door::ApiKeys>(std::move(keys));
  }
  machine.seed = args.count(flags::kSeed);
  MC_TRY(config, model::read_config(directory));
  machine.model = out.front.served_name;
  machine.config_digest = config.kv_digest();
  out.front.on_loopback = is_loopback(args.host_port(flags::kHttp).host);
  return out;
}

}  // namespace mc::host
