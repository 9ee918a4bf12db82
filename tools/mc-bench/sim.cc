// `mc-bench sim TRACE`: what a policy and a cluster would do with a trace. The flags of both kinds of rules,
// and the choice between them.

#include "sim.h"

#include "base/errors.h"
#include "trace.h"

namespace mc::bench {
namespace {

using namespace sim_flags;

constexpr auto kFlags =
    flags::join(flags::list(&kRules, &kCluster, &kPolicy, &kFetchRule, &kTheta, &kCacheBlocks, &kSpeedup, &kBandwidth,
                            &kTtftSlo, &kTbtSlo, &kProfile, &kHold, &kDram, &kSsd, &kPipeline, &kOverlap, &kCoupled,
                            &kCoupledChunk, &kJoinStall, &kSlowStart, &kFail, &kAggregate, &kSaveSamples, &kSample,
                            &kAdmission, &kCounterfactual, &kFindMaxRate, &kFindRatio, &kShare, &kDecodeTime, &kSlack,
                            &kLimit, &kSaveRequests, &flags::kOutput, &flags::kQuiet, &flags::kProgress, &flags::kSeed),
                flags::kEveryRun);

// An answer that passes over a flag would look like one that heeds it.
Result<void> refuse(const cli::Args& args, std::initializer_list<const Flag*> flags) {
  for (const Flag* flag : flags)
    if (args.given(*flag)) {
      const std::string name = "--" + std::string(flag->name);
      return user_error(err::kUsage, name + " means nothing under --rules " + args.text(kRules), name);
    }
  return {};
}

}  // namespace

const cli::FlagList kSimFlags = kFlags;

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
  if (args.text(kLimit) == "0") return user_error(err::kBadValue, "--limit must be at least 1", "--limit");
  return read_trace(args.positional_one("TRACE"), args.text(kLimit) == "all" ? UINT64_MAX : args.count(kLimit));
}

Result<int> simulate(const cli::Args& args) {
  const std::string& rules = args.text(kRules);
  if (rules == "cluster") return simulate_cluster(args);
  if (rules == "machines") {
    MC_CHECK(refuse(args, {&kSsd, &kPipeline, &kOverlap, &kCoupled, &kCoupledChunk, &kFail, &kSaveSamples, &kSample,
                           &kCounterfactual, &kFindMaxRate, &kFindRatio, &kShare}));
    return simulate_cluster(args);
  }
  MC_CHECK(refuse(args, {&kProfile, &kHold, &kDram, &kSsd, &kPipeline, &kOverlap, &kCoupled, &kCoupledChunk,
                         &kJoinStall, &kSlowStart, &kFail, &kAggregate, &kSaveSamples, &kSample, &kCounterfactual,
                         &kFindMaxRate, &kFindRatio, &kShare}));
  return simulate_paper(args);
}

}  // namespace mc::bench
