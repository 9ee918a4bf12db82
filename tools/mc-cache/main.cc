// mc-cache: a node of memory and disk for KV blocks; and a look into .mckv streams.

#include "base/cli.h"
#include "host/disk_flags.h"
#include "host/worker_flags.h"
#include "host/worker_process.h"
#include "mc_version.h"
#include "product/flags.h"
#include "verbs/cache_list.h"
#include "verbs/fsck.h"
#include "verbs/inspect.h"

using namespace mc;

namespace {

constexpr Flag kHttp = with_default(flags::kHttp, "127.0.0.1:8300",
                                    "address of metrics and health; a busy default moves to the next free port");

constexpr auto kFlags = flags::join(flags::list(&flags::kDram), host::kDiskFlags,
                                    flags::list(&flags::kConductor, &kHttp), host::kDataPlaneFlags, host::kWorkerFlags);
constexpr const Flag* kInspectFlags[] = {&flags::kJson};
constexpr cli::Positional kInspectArgs[] = {{.name = "FILE", .help = "a .mckv stream; - is stdin"}};
constexpr cli::Positional kListArgs[] = {
    {.name = "NODE", .help = "a node's id in mc-conductor ps, or the socket or URL of its pages"}};
constexpr cli::Positional kFsckArgs[] = {{.name = "DIR", .help = "directory of --ssd, which no node uses now"}};

}  // namespace

int main(int argc, char** argv) {
  const cli::Verb verbs[] = {{.name = "inspect",
                              .summary = "show layout, blocks, hashes and checksums of a .mckv stream",
                              .args = kInspectArgs,
                              .flags = kInspectFlags,
                              .example = "mc-prefill once -p 'Once upon a time' --kv-out - | mc-cache inspect -"},
                             {.name = "ls",
                              .summary = "list the blocks of a node, in memory and on disk",
                              .args = kListArgs,
                              .flags = verbs::kListFlags,
                              .example = "mc-cache ls c0 --sort uses --limit 20"},
                             {.name = "fsck",
                              .summary = "check every block in a directory of --ssd: checksums, identity, layout",
                              .args = kFsckArgs,
                              .flags = verbs::kFsckFlags,
                              .example = "mc-cache fsck kv --repair"}};
  const cli::Program program{.name = "mc-cache",
                             .summary = "a node of memory and disk for KV blocks",
                             .flags = kFlags,
                             .verbs = verbs,
                             .example = "mc-prefill once -p 'Once upon a time' --kv-out - | mc-cache inspect -",
                             .version = MC_VERSION,
                             .commit = MC_COMMIT};
  return cli::run(program, argc, argv, [](const cli::Args& args) {
    if (args.verb() == "inspect") return verbs::inspect_stream(args);
    if (args.verb() == "ls") return verbs::list_blocks(args);
    if (args.verb() == "fsck") return verbs::fsck_store(args);
    return host::serve_worker(wire::Role::cache, args);
  });
}
