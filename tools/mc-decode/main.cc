// mc-decode: generates answers over received KV in a continuous batch.

#include "base/cli.h"
#include "host/choice_flags.h"
#include "host/disk_flags.h"
#include "host/worker_flags.h"
#include "host/worker_process.h"
#include "mc_version.h"
#include "product/flags.h"
#include "verbs/once.h"

using namespace mc;

namespace {

constexpr Flag kHttp = with_default(flags::kHttp, "127.0.0.1:8200",
                                    "address of metrics and health; a busy default moves to the next free port");

constexpr auto kFlags = flags::join(flags::list(&flags::kModel, &flags::kConductor, &kHttp), host::kDataPlaneFlags,
                                    host::kModelFlags, host::kDiskFlags,
                                    flags::list(&flags::kBatchMax, &flags::kInlineTokens, &flags::kCost,
                                                &flags::kRunner, &flags::kThreads, &flags::kDevice, &flags::kKernels),
                                    host::kWorkerFlags);

}  // namespace

int main(int argc, char** argv) {
  const cli::Verb verbs[] = {
      {.name = "once",
       .summary = "continue a .mckv stream to text in this process",
       .flags = verbs::kDecodeOnceFlags,
       .example = "mc-prefill once -p 'Once upon' --temperature 0 --kv-out - | mc-decode once --kv-in - -n 16",
       .run = verbs::decode_once}};
  const cli::Program program{
      .name = "mc-decode",
      .summary = "generates answers over received KV in a continuous batch",
      .flags = kFlags,
      .verbs = verbs,
      .example = "mc-prefill once -p 'Once upon' --temperature 0 --kv-out - | mc-decode once --kv-in - -n 16",
      .version = MC_VERSION,
      .commit = MC_COMMIT,
      .run = [](const cli::Args& args) { return host::serve_worker(wire::Role::decode, args); }};
  return cli::run(program, argc, argv);
}
