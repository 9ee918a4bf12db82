// mc-conductor: the front door and global scheduler of a cluster.

#include "base/cli.h"
#include "host/choice_flags.h"
#include "host/conductor_flags.h"
#include "host/conductor_process.h"
#include "host/daemon_flags.h"
#include "host/sched_flags.h"
#include "host/transfer_flags.h"
#include "mc_version.h"
#include "product/doors.h"
#include "product/flags.h"
#include "verbs/conductor_verbs.h"
#include "verbs/help_topics.h"

using namespace mc;

namespace {

// Flags of the nodes that --local starts; the --help of those programs explains them.
constexpr Flag kAttention = by_name(flags::kAttention), kDtype = by_name(flags::kDtype),
               kWeightDtype = by_name(flags::kWeightDtype), kKvDtype = by_name(flags::kKvDtype),
               kThreads = by_name(flags::kThreads), kDevice = by_name(flags::kDevice),
               kKernels = by_name(flags::kKernels), kKvMem = by_name(flags::kKvMem),
               kChunkTokens = by_name(flags::kChunkTokens), kTransport = by_name(flags::kTransport),
               kLeaseBy = by_name(flags::kLeaseBy), kBlockTokens = by_name(flags::kBlockTokens),
               kDrainTimeout = by_name(flags::kDrainTimeout), kReadyFile = by_name(flags::kReadyFile);
constexpr Flag kDieWithParent = by_name(flags::kDieWithParent);
// A cluster learns how long its requests decode; a trace is compared with the papers.
constexpr Flag kDecodeTime =
    with_default(flags::kDecodeTime, "0s", "admission predict: time to decode a request; 0 learns it");

constexpr const Flag* kFlags[] = {
    &flags::kLocal,
    &flags::kPrintCommands,
    &flags::kModel,
    &flags::kServedName,
    &flags::kListen,
    &flags::kHttp,
    &flags::kAuth,
    &flags::kApiKeys,
    &flags::kAdminKeyFile,
    &flags::kInsecure,
    &flags::kAllowedHost,
    &flags::kAllowedOrigin,
    &flags::kPolicy,
    &flags::kFetchRule,
    &flags::kFetchThreshold,
    &flags::kPrefixFrom,
    &flags::kAdmission,
    &kDecodeTime,
    &flags::kSlack,
    &flags::kAggregate,
    &flags::kSlowStart,
    &flags::kFirstToken,
    &flags::kHold,
    &flags::kHoldOrder,
    &flags::kReplicate,
    &flags::kReplicateRate,
    &flags::kTtftSlo,
    &flags::kTbtSlo,
    &flags::kDeadline,
    &flags::kChatTemplate,
    &flags::kGenerationConfig,
    &kBlockTokens,
    &kTransport,
    &kLeaseBy,
    &kAttention,
    &kDtype,
    &kWeightDtype,
    &kKvDtype,
    &kThreads,
    &kDevice,
    &kKernels,
    &kKvMem,
    &kChunkTokens,
    &flags::kRunner,
    &kReadyFile,
    &kDrainTimeout,
    &kDieWithParent,
    &flags::kConfig,
    &flags::kSeed,
    &flags::kLogLevel,
    &flags::kLogFormat,
    &flags::kJson,
    &flags::kPrintConfig,
    &flags::kCheck,
};

}  // namespace

int main(int argc, char** argv) {
  const cli::Program program{.name = "mc-conductor",
                             .summary = "OpenAI HTTP API and scheduler of a prefill/decode cluster",
                             .flags = kFlags,
                             .verbs = verbs::kConductorVerbs,
                             .example = "mc-conductor --local 1p1d1c",
                             .version = MC_VERSION,
                             .commit = MC_COMMIT,
                             .topic = verbs::help_topic,
                             .topics = verbs::kHelpTopics,
                             .run = host::serve_conductor};
  return cli::run(program, argc, argv);
}
