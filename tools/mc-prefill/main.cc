// mc-prefill: turns prompts into KV blocks and the first token.

#include "base/cli.h"
#include "host/choice_flags.h"
#include "host/disk_flags.h"
#include "host/worker_flags.h"
#include "host/worker_process.h"
#include "mc_version.h"
#include "product/flags.h"
#include "verbs/once.h"
#include "verbs/prefill_ask.h"

using namespace mc;

namespace {

constexpr Flag kHttp = with_default(flags::kHttp, "127.0.0.1:8100", "pages of the node; a busy default moves up");

constexpr auto kFlags = flags::join(
    flags::list(&flags::kModel, &flags::kConductor, &kHttp), host::kDataPlaneFlags, host::kModelFlags, host::kDiskFlags,
    flags::list(&flags::kChunkTokens, &flags::kLoadByLayer, &flags::kCost, &flags::kRunner, &flags::kPipeline,
                &flags::kThreads, &flags::kDevice, &flags::kKernels),
    host::kWorkerFlags);

constexpr cli::Positional kAskArgs[] = {
    {.name = "NODE", .help = "a node's id in mc-conductor ps, or the socket or URL of its pages"}};

}  // namespace

int main(int argc, char** argv) {
  const cli::Verb verbs[] = {{.name = "once",
                              .summary = "run one prompt to text in this process, or to a .mckv stream",
                              .flags = verbs::kPrefillOnceFlags,
                              .example = "mc-prefill once -p 'Once upon a time' -n 16 --temperature 0",
                              .run = verbs::prefill_once},
                             {.name = "ask",
                              .summary = "give one live prefill node a prompt, without a conductor",
                              .args = kAskArgs,
                              .flags = verbs::kPrefillAskFlags,
                              .example = "mc-prefill ask p0 -p 'Once upon'",
                              .run = verbs::prefill_ask}};
  const cli::Program program{
      .name = "mc-prefill",
      .summary = "turns prompts into KV blocks and the first token",
      .flags = kFlags,
      .verbs = verbs,
      .example = "mc-prefill once -p 'Once upon a time' -n 16 --temperature 0",
      .version = MC_VERSION,
      .commit = MC_COMMIT,
      .run = [](const cli::Args& args) { return host::serve_worker(wire::Role::prefill, args); }};
  return cli::run(program, argc, argv);
}
