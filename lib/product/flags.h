// The flags that mean the same in every program of the toolkit. A program's table points at those it has;
// with_default() gives a role its own default. Every listed flag has an effect. Flags that any command line has
// (--config, --log-level) are in base/cli_flags.h.
#pragma once

#include "base/cli.h"
#include "base/cli_flags.h"

namespace mc::flags {

/// A count from `low` to `high`; as a Flag::check: check_between<1, 256>.
Result<void> check_range(std::string_view value, uint64_t low, uint64_t high);
template <uint64_t kLow, uint64_t kHigh>
Result<void> check_between(std::string_view value) {
  return check_range(value, kLow, kHigh);
}
/// --conductor, --listen: URIs of control endpoints; an ipc:// path may begin with $MCT_RUN_DIR.
Result<void> check_endpoints(std::string_view value);
/// --bind: an address or name of a host, without a port.
Result<void> check_address(std::string_view value);
/// --block-tokens: a power of two from 16 to 512.
Result<void> check_block_tokens(std::string_view value);
/// --label: k=v pairs.
Result<void> check_labels(std::string_view value);
/// --transfer-spin: at most 1s, beyond which a core would be kept busy for nothing.
Result<void> check_transfer_spin(std::string_view value);
/// --rdma-pace: "1GiB/s", or "none".
Result<void> check_rdma_pace(std::string_view value);
/// --rdma-cooldown: "1s" or "1s-60s", rising, from 1ms to 1h; one value is both.
Result<void> check_rdma_cooldown(std::string_view value);
/// --name: 1 to 64 characters of [A-Za-z0-9._-].
Result<void> check_name(std::string_view value);

inline constexpr Flag kModel{.name = "model",
                             .letter = 'm',
                             .value = "PATH",
                             .help = "Hugging Face directory or GGUF file; else the built-in mc-tiny"};
inline constexpr Flag kConductor{.name = "conductor",
                                 .value = "EP",
                                 .fallback = "ipc://$MCT_RUN_DIR/conductor",
                                 .help = "control endpoint to register with: ipc:// or tcp://host:7700",
                                 .check = check_endpoints};
inline constexpr Flag kListen{.name = "listen",
                              .kind = FlagKind::list,
                              .value = "EP",
                              .fallback = "ipc://$MCT_RUN_DIR/conductor",
                              .help = "control endpoints of workers; tcp://ADDR:7700 replaces the local socket",
                              .check = check_endpoints};
inline constexpr Flag kHttp{.name = "http",
                            .kind = FlagKind::host_port,
                            .value = "ADDR:PORT",
                            .fallback = "127.0.0.1:8000",
                            .help = "address of API, admin and metrics; a busy default moves to the next free port"};
inline constexpr Flag kBind{.name = "bind",
                            .value = "ADDR",
                            .fallback = "127.0.0.1",
                            .help = "data-plane address; beyond loopback it needs --auth or --insecure data",
                            .check = check_address};
inline constexpr Flag kAuth{
    .name = "auth", .value = "FILE", .help = "key set made by mc-conductor keygen; the same file on every host"};
inline constexpr Flag kRdmaDevices{
    .name = "rdma-devices", .value = "D,D", .help = "devices or ports rdma may use: mlx5_0,mlx5_1:1; without it all"};
inline constexpr Flag kTransferSpin{.name = "transfer-spin",
                                    .kind = FlagKind::duration,
                                    .value = "T",
                                    .fallback = "0s",
                                    .help = "how long transfer threads poll before they sleep",
                                    .check = check_transfer_spin};
// Settings of the transfer engine for special networks. They are seldom needed, so --help lists only their names.
inline constexpr Flag kTcpIo{.name = "tcp-io",
                             .kind = FlagKind::choice,
                             .value = "W",
                             .fallback = "auto",
                             .help = "how tcp moves bytes: system calls (epoll, what auto takes) or an io_uring",
                             .choices = "auto|epoll|uring",
                             .common = true};
inline constexpr Flag kRdmaLanes{.name = "rdma-lanes",
                                 .kind = FlagKind::count,
                                 .value = "N",
                                 .fallback = "2",
                                 .help = "queue pairs of an rdma path, 1 to 4",
                                 .check = check_between<1, 4>,
                                 .common = true};
inline constexpr Flag kRdmaPairsMax{.name = "rdma-pairs-max",
                                    .kind = FlagKind::count,
                                    .value = "N",
                                    .fallback = "1024",
                                    .help = "queue pairs of the process; beyond it idle connections give theirs up",
                                    .check = check_between<4, 1 << 20>,
                                    .common = true};
inline constexpr Flag kRdmaPace{.name = "rdma-pace",
                                .value = "RATE",
                                .fallback = "none",
                                .help = "largest rate that an rdma path posts: 5GiB/s",
                                .choices = "none",
                                .check = check_rdma_pace,
                                .common = true};
inline constexpr Flag kRdmaTrafficClass{.name = "rdma-traffic-class",
                                        .kind = FlagKind::count,
                                        .value = "N",
                                        .fallback = "0",
                                        .help = "traffic class of rdma packets, 0 to 255: DSCP times 4",
                                        .check = check_between<0, 255>,
                                        .common = true};
inline constexpr Flag kRdmaCooldown{
    .name = "rdma-cooldown",
    .value = "T-T",
    .fallback = "1s-1m",
    .help = "pause of a path after a fault: from the first time, doubled up to the second",
    .check = check_rdma_cooldown,
    .common = true};
inline constexpr Flag kRdmaNoSends{.name = "rdma-no-sends",
                                   .kind = FlagKind::boolean,
                                   .help = "send notifications over the socket, not over queue pairs",
                                   .common = true};
inline constexpr Flag kDtype{.name = "dtype",
                             .kind = FlagKind::choice,
                             .value = "T",
                             .fallback = "auto",
                             .help = "compute type; auto is the model's own",
                             .choices = "auto|f32|bf16"};
inline constexpr Flag kWeightDtype{
    .name = "weight-dtype",
    .kind = FlagKind::choice,
    .value = "T",
    .fallback = "auto",
    .help = "type of matrices in memory: full is --dtype; auto keeps fp8 and GGUF blocks; a GPU widens GGUF blocks",
    .choices = "auto|full|int8|int4"};
inline constexpr Flag kKvDtype{.name = "kv-dtype",
                               .kind = FlagKind::choice,
                               .value = "T",
                               .fallback = "auto",
                               .help = "type of K and V; auto is --dtype",
                               .choices = "auto|f32|bf16|fp8_e4m3"};
inline constexpr Flag kBlockTokens{.name = "block-tokens",
                                   .kind = FlagKind::count,
                                   .value = "N",
                                   .fallback = "64",
                                   .help = "tokens of a KV block: 16, 32 ... 512, equal on all nodes",
                                   .check = check_block_tokens};
inline constexpr Flag kKvMem{.name = "kv-mem",
                             .kind = FlagKind::size,
                             .value = "SIZE",
                             .fallback = "80%",
                             .help = "memory for KV blocks: 2GiB, or a share of what is free"};
inline constexpr Flag kDeviceMem{.name = "device-mem",
                                 .kind = FlagKind::size,
                                 .value = "SIZE",
                                 .fallback = "90%",
                                 .help = "device memory for KV blocks: 8GiB, or a share; 0: no tier"};
inline constexpr Flag kDram{.name = "dram",
                            .kind = FlagKind::size,
                            .value = "SIZE",
                            .fallback = "4GiB",
                            .help = "memory of the cache: 4GiB, or a share of what is free"};
inline constexpr Flag kThreads{.name = "threads",
                               .kind = FlagKind::count,
                               .value = "N",
                               .fallback = "auto",
                               .help = "compute threads, 1 to 256; auto is one per core",
                               .choices = "auto",
                               .check = check_between<1, 256>};
inline constexpr Flag kName{.name = "name",
                            .value = "ID",
                            .fallback = "auto",
                            .help = "node name in logs, metrics and ps; auto is role and number",
                            .choices = "auto",
                            .check = check_name};
inline constexpr Flag kLabel{.name = "label",
                             .kind = FlagKind::list,
                             .value = "K=V",
                             .help = "labels shown by ps --json",
                             .check = check_labels};
inline constexpr Flag kReadyFile{
    .name = "ready-file", .value = "FILE", .help = "file to write when the program is ready and to remove at its end"};

}  // namespace mc::flags
