// mc-cache: a node of memory and disk for KV blocks and opaque values, the verbs on its values, and a look into .mckv
// streams.

#include "base/cli.h"
#include "host/disk_flags.h"
#include "host/store_flags.h"
#include "host/worker_flags.h"
#include "host/worker_process.h"
#include "mc_version.h"
#include "product/flags.h"
#include "verbs/block_streams.h"
#include "verbs/block_verbs.h"
#include "verbs/cache_list.h"
#include "verbs/fsck.h"
#include "verbs/inspect.h"
#include "verbs/lookup.h"
#include "verbs/store_verbs.h"
#include "verbs/warm.h"

using namespace mc;

namespace {

constexpr Flag kHttp = with_default(flags::kHttp, "127.0.0.1:8300",
                                    "address of metrics and health; a busy default moves to the next free port");

constexpr auto kFlags = flags::join(flags::list(&flags::kDram), host::kStoreFlags, host::kDiskFlags,
                                    flags::list(&flags::kConductor, &kHttp), host::kDataPlaneFlags, host::kWorkerFlags);
constexpr const Flag* kInspectFlags[] = {&flags::kJson};
constexpr cli::Positional kInspectArgs[] = {{.name = "FILE", .help = "a .mckv stream; - is stdin"}};
constexpr cli::Positional kListArgs[] = {
    {.name = "NODE", .help = "a node's id in mc-conductor ps, or the socket or URL of its pages"}};
constexpr cli::Positional kLookupArgs[] = {
    kListArgs[0], {.name = "HASH", .help = "ids of blocks, in the order of their prompt", .min = 0, .max = -1}};
constexpr cli::Positional kPutArgs[] = {kListArgs[0],
                                        {.name = "KEY", .help = "1 to 1024 bytes of text"},
                                        {.name = "FILE",
                                         .help = "the value, at most 64 MiB; - is stdin; several with --group",
                                         .max = -1}};
constexpr cli::Positional kGetArgs[] = {kListArgs[0], kPutArgs[1]};
constexpr cli::Positional kKeysArgs[] = {kListArgs[0], {.name = "KEY", .help = "one or more keys", .max = -1}};
constexpr cli::Positional kPinArgs[] = {
    kListArgs[0], {.name = "KEY", .help = "keys of values, of a cache node", .min = 0, .max = -1}};
constexpr cli::Positional kMoveArgs[] = {kListArgs[0], kPutArgs[1], {.name = "TO", .help = "the new key"}};
constexpr cli::Positional kFsckArgs[] = {{.name = "DIR", .help = "directory of --ssd, which no node uses now"}};

const cli::Verb kVerbs[] = {{.name = "inspect",
                             .summary = "show layout, blocks, hashes and checksums of a .mckv stream",
                             .args = kInspectArgs,
                             .flags = kInspectFlags,
                             .example = "mc-prefill once -p 'Once upon a time' --kv-out - | mc-cache inspect -",
                             .run = verbs::inspect_stream},
                            {.name = "ls",
                             .summary = "list the blocks of a node, in memory and on disk, or (--keys) its values",
                             .args = kListArgs,
                             .flags = verbs::kListFlags,
                             .example = "mc-cache ls c0 --sort uses --limit 20",
                             .run = verbs::list_blocks},
                            {.name = "lookup",
                             .summary = "say which blocks of a prompt a node has; exit 1 when it lacks one",
                             .args = kLookupArgs,
                             .flags = verbs::kLookupFlags,
                             .example = "mc-cache lookup c0 -f system_prompt.txt",
                             .run = verbs::look_up_blocks},
                            {.name = "evict",
                             .summary = "free blocks of a node, in memory and on disk",
                             .args = kListArgs,
                             .flags = verbs::kEvictFlags,
                             .example = "mc-cache evict c0 --older 2h --dry-run",
                             .run = verbs::evict_blocks},
                            {.name = "export",
                             .summary = "write the KV blocks of a prompt as a .mckv stream to stdout",
                             .args = kListArgs,
                             .flags = verbs::kExportFlags,
                             .example = "mc-cache export c0 --prefix 7f3a0c55e1d2486b9a0f7c1e2d3b4a59 > p.mckv",
                             .run = verbs::export_blocks},
                            {.name = "import",
                             .summary = "give the KV blocks of a .mckv stream on stdin to a node",
                             .args = kListArgs,
                             .flags = verbs::kImportFlags,
                             .example = "mc-cache import c1 < p.mckv",
                             .run = verbs::import_blocks},
                            {.name = "warm",
                             .summary = "compute a prompt before anybody asks it, and keep its KV blocks on a node",
                             .args = kListArgs,
                             .flags = verbs::kWarmFlags,
                             .example = "mc-cache warm c0 -f system_prompt.txt --pin 1h",
                             .run = verbs::warm_node},
                            {.name = "fsck",
                             .summary = "check all blocks and durable values in a directory of --ssd",
                             .args = kFsckArgs,
                             .flags = verbs::kFsckFlags,
                             .example = "mc-cache fsck kv --repair",
                             .run = verbs::fsck_store},
                            {.name = "put",
                             .summary = "put a file under a key into a cache node",
                             .args = kPutArgs,
                             .flags = verbs::kPutFlags,
                             .example = "mc-cache put c0 notes/today notes.txt --ttl 24h --replicas 2",
                             .run = verbs::put_value},
                            {.name = "get",
                             .summary = "write the value of a key to stdout",
                             .args = kGetArgs,
                             .flags = verbs::kGetFlags,
                             .example = "mc-cache get c0 notes/today > notes.txt",
                             .run = verbs::get_value},
                            {.name = "exist",
                             .summary = "say whether keys have values; exit 1 when one has none",
                             .args = kKeysArgs,
                             .flags = verbs::kKeyFlags,
                             .example = "mc-cache exist c0 notes/today",
                             .run = verbs::exist_values},
                            {.name = "rm",
                             .summary = "remove values",
                             .args = kKeysArgs,
                             .flags = verbs::kRemoveFlags,
                             .example = "mc-cache rm c0 notes/today",
                             .run = verbs::remove_values},
                            {.name = "pin",
                             .summary = "keep values, or the KV blocks of a prompt, from eviction for a time",
                             .args = kPinArgs,
                             .flags = verbs::kPinAnyFlags,
                             .example = "mc-cache pin c0 notes/today --for 1h",
                             .run = verbs::pin_any},
                            {.name = "unpin",
                             .summary = "let values, or the KV blocks of a prompt, be evicted again",
                             .args = kPinArgs,
                             .flags = verbs::kUnpinAnyFlags,
                             .example = "mc-cache unpin c0 notes/today",
                             .run = verbs::unpin_any},
                            {.name = "copy",
                             .summary = "give the value of a key a second key",
                             .args = kMoveArgs,
                             .flags = verbs::kMoveFlags,
                             .example = "mc-cache copy c0 notes/today notes/kept",
                             .run = verbs::copy_value},
                            {.name = "move",
                             .summary = "give the value of a key another key",
                             .args = kMoveArgs,
                             .flags = verbs::kMoveFlags,
                             .example = "mc-cache move c0 notes/today notes/old",
                             .run = verbs::move_value}};

}  // namespace

int main(int argc, char** argv) {
  const cli::Program program{.name = "mc-cache",
                             .summary = "a node of memory and disk for KV blocks and values",
                             .flags = kFlags,
                             .verbs = kVerbs,
                             .example = "mc-prefill once -p 'Once upon a time' --kv-out - | mc-cache inspect -",
                             .version = MC_VERSION,
                             .commit = MC_COMMIT,
                             .run = [](const cli::Args& args) { return host::serve_worker(wire::Role::cache, args); }};
  return cli::run(program, argc, argv);
}
