// `mc-bench sim TRACE`: what a policy and a cluster would do with a trace. The flags of both kinds of rules,
// and the choice between them.

#include "sim.h"

#include "base/errors.h"
#include "trace.h"

namespace mc::bench {
namespace {

using namespace sim_flags;

constexpr auto kSimFlagTable = flags::join(
    flags::list(&kRules, &kCluster, &kPolicy, &kFetchRule, &kTheta, &kCacheBlocks, &kDeviceBlocks, &kSimEviction,
                &kSpeedup, &kBandwidth, &kTtftSlo, &kTbtSlo, &kProfile, &kHold, &flags::kHoldOrder, &kApiKeys,
                &flags::kReplicate, &flags::kReplicateRate, &kDram, &kSsd, &kPipeline, &kOverlap, &kLoadByLayer,
                &kCoupled, &kCoupledChunk, &kJoinStall, &kSlowStart, &kFirstToken, &kFail, &kAggregate, &kSaveSamples,
                &kSample, &kAdmission, &kCounterfactual, &kFindMaxRate, &kFindRatio, &kShare, &kDecodeTime, &kSlack,
                &kLimit, &kSaveRequests, &kWide, &flags::kOutput, &flags::kQuiet, &flags::kProgress, &flags::kSeed),
    flags::kEveryRun);

// An answer that passes over a flag would look like one that heeds it.
Result<void> refuse(const cli::Args& args, std::initializer_list<const Flag*> flags, const std::string& under,
                    const std::string& next = {}) {
  for (const Flag* flag : flags)
    if (args.said(*flag)) {
      const std::string name = "--" + std::string(flag->name);
      return user_error(err::kUsage, name + " means nothing under " + under, name, next);
    }
  return {};
}

}  // namespace

const cli::FlagList kSimFlags = kSimFlagTable;

Result<double> positive(const cli::Args& args, const Flag& flag) {
  const double value = args.number(flag);
  if (value > 0 && value <= 1e18) return value;
  const std::string name = "--" + std::string(flag.name);
  return user_error(err::kBadValue, name + " is " + args.text(flag) + "; it must be above 0", name);
}

Result<double> read_share(const cli::Args& args) {
  const double share = args.number(kShare);
  if (share > 0 && share <= 1) return share;
  return user_error(err::kBadValue, "--share is " + args.text(kShare) + "; it must be above 0 and at most 1",
                    "--share");
}

Result<std::vector<sim::TraceRequest>> read_sim_trace(const cli::Args& args) {
  if (args.text(kLimit) == "0") return out_of_range(kLimit, "0", "at least 1");
  return read_trace(args.positional_one("TRACE"), is_word(args, kLimit) ? UINT64_MAX : args.count(kLimit));
}

Result<int> simulate(const cli::Args& args) {
  const Rules rules = choice_of(args, kRules);
  const std::string under = "--rules " + args.text(kRules);
  for (const Flag* flag : {&kSaveRequests, &kSaveSamples}) MC_CHECK(check_output(args.text(*flag), *flag));
  if (rules == Rules::cluster) {
    const Flag* search = args.on(kFindMaxRate) ? &kFindMaxRate : args.on(kFindRatio) ? &kFindRatio : nullptr;
    if (search != nullptr)
      MC_CHECK(refuse(args, {&kSaveRequests, &kSaveSamples, &kSample, &kCounterfactual, &kWide},
                      "--" + std::string(search->name) + ", which makes many runs",
                      "search first, then run once what it found, by --cluster and --speedup"));
    MC_CHECK(refuse(args, {&kDeviceBlocks}, under, "the machines know of devices: use --rules machines"));
    MC_CHECK(refuse(args, {&kSimEviction}, under,
                    "the caches of --rules cluster evict what was not used for longest: use --rules machines, or "
                    "mc-bench trace cache --policy for one cache"));
    return simulate_cluster(args);
  }
  if (rules == Rules::machines) {
    MC_CHECK(refuse(args,
                    {&kOverlap, &kCoupled, &kCoupledChunk, &kFail, &kSaveSamples, &kSample, &kCounterfactual,
                     &kFindMaxRate, &kFindRatio, &kShare},
                    under));
    return simulate_cluster(args);
  }
  MC_CHECK(refuse(args,
                  {&kProfile, &kHold, &flags::kHoldOrder, &kApiKeys, &flags::kReplicate, &flags::kReplicateRate, &kDram,
                   &kSsd, &kDeviceBlocks, &kSimEviction, &kPipeline, &kOverlap, &kLoadByLayer, &kCoupled,
                   &kCoupledChunk, &kJoinStall, &kSlowStart},
                  under));
  MC_CHECK(refuse(args,
                  {&kFirstToken, &kFail, &kAggregate, &kSaveSamples, &kSample, &kWide, &kCounterfactual, &kFindMaxRate,
                   &kFindRatio, &kShare},
                  under));
  return simulate_paper(args);
}

}  // namespace mc::bench
