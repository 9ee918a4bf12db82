// mc-cache: a node of memory for KV blocks; and a look into .mckv streams.

#include "base/cli.h"
#include "host/worker_flags.h"
#include "host/worker_process.h"
#include "mc_version.h"
#include "product/flags.h"
#include "verbs/inspect.h"

using namespace mc;

namespace {

constexpr Flag kHttp = with_default(flags::kHttp, "127.0.0.1:8300",
                                    "address of metrics and health; a busy default moves to the next free port");

constexpr auto kFlags =
    flags::join(flags::list(&flags::kDram, &flags::kConductor, &kHttp), host::kDataPlaneFlags, host::kWorkerFlags);
constexpr const Flag* kInspectFlags[] = {&flags::kJson};
constexpr cli::Positional kInspectArgs[] = {{.name = "FILE", .help = "a .mckv stream; - is stdin"}};

}  // namespace

int main(int argc, char** argv) {
  const cli::Verb verbs[] = {{.name = "inspect",
                              .summary = "show layout, blocks, hashes and checksums of a .mckv stream",
                              .args = kInspectArgs,
                              .flags = kInspectFlags,
                              .example = "mc-prefill once -p 'Once upon a time' --kv-out - | mc-cache inspect -"}};
  const cli::Program program{.name = "mc-cache",
                             .summary = "a node of memory for KV blocks",
                             .flags = kFlags,
                             .verbs = verbs,
                             .example = "mc-prefill once -p 'Once upon a time' --kv-out - | mc-cache inspect -",
                             .version = MC_VERSION,
                             .commit = MC_COMMIT};
  return cli::run(program, argc, argv, [](const cli::Args& args) {
    return args.verb() == "inspect" ? verbs::inspect_stream(args) : host::serve_worker(wire::Role::cache, args);
  });
}
