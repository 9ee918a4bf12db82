// The flags of `mc-bench xfer` that no other program has.
#pragma once

#include "host/choice_flags.h"
#include "print.h"
#include "product/flags.h"
#include "xfer_against.h"

namespace mc::bench {

inline constexpr Flag kXferPort{.name = "port",
                                .kind = FlagKind::count,
                                .value = "N",
                                .fallback = "7790",
                                .help = "tcp port of the server, rdma one above; 0 is any free one",
                                .check = flags::check_between<0, 65534>};
inline constexpr Flag kXferDevices{
    .name = "rdma-devices",
    .value = "D,D[/D,D]",
    .help = "devices or ports rdma may use: mlx5_0,mlx5_1:1; rxe0/rxe1 is this side's / the other side's"};
inline constexpr Flag kServer{
    .name = "server", .kind = FlagKind::boolean, .help = "serve the other end: print its URIs and run until stopped"};
inline constexpr Flag kTransports{.name = "transport",
                                  .kind = FlagKind::list,
                                  .value = "T,T",
                                  .fallback = "shm,tcp",
                                  .help = "transports to measure; a PEER that is a URI names its own",
                                  .table = flags::transport_names};
inline constexpr Flag kSize{.name = "size",
                            .kind = FlagKind::sweep_bytes,
                            .value = "SIZES",
                            .fallback = "64KiB-16MiB*4",
                            .help = "bytes of one request: 64KiB-64MiB*4"};
inline constexpr Flag kBatch{
    .name = "batch", .kind = FlagKind::sweep_counts, .value = "N,N", .fallback = "1", .help = "requests in a batch"};
inline constexpr Flag kDepth{
    .name = "depth", .kind = FlagKind::sweep_counts, .value = "N,N", .fallback = "2", .help = "batches in flight"};
inline constexpr Flag kStreams{
    .name = "streams", .kind = FlagKind::sweep_counts, .value = "N,N", .fallback = "1", .help = "tcp streams a peer"};
inline constexpr Flag kXferSeal{
    .name = "tcp-seal",
    .kind = FlagKind::list,
    .value = "S,S",
    .fallback = "auto",
    .help = "encrypt tcp streams and the set-up of rdma: off, on, or auto (off loopback only)"};
inline constexpr Flag kOp{
    .name = "op",
    .kind = FlagKind::list,
    .value = "O,O",
    .fallback = "read",
    .help = "read pulls from the peer, write and write_imm push, map leases and maps, register registers --memory"};
inline constexpr Flag kClass{.name = "class",
                             .kind = FlagKind::list,
                             .value = "C,C",
                             .fallback = "bulk",
                             .help = "class of the requests; urgent requests go before bulk requests"};
inline constexpr Flag kBeside{.name = "beside",
                              .kind = FlagKind::bytes,
                              .value = "SIZE",
                              .fallback = "none",
                              .help = "keep two bulk requests of this size in flight meanwhile",
                              .choices = "none"};
inline constexpr Flag kTime{.name = "time",
                            .letter = 't',
                            .kind = FlagKind::duration,
                            .value = "T",
                            .fallback = "1s",
                            .help = "how long each point runs, at least 1ms",
                            .check = check_measured_time};
inline constexpr Flag kMemory{.name = "memory",
                              .kind = FlagKind::bytes,
                              .value = "SIZE",
                              .fallback = "64MiB",
                              .help = "memory used on each side; equal on both: 1GiB"};
inline constexpr Flag kNoVerify{.name = "no-verify", .kind = FlagKind::boolean, .help = "do not verify checksums"};
inline constexpr ChoiceFlag kAgainst =
    with_choices<kReferences>({.name = "against",
                               .kind = FlagKind::choice,
                               .value = "REF",
                               .fallback = "none",
                               .help = "run a reference program in turns with this engine"});
inline constexpr Flag kPairs{.name = "pairs",
                             .kind = FlagKind::count,
                             .value = "N",
                             .fallback = "7",
                             .help = "pairs of runs for --against, 1 to 1000",
                             .check = flags::check_between<1, 1000>};
inline constexpr Flag kClientArgs{
    .name = "against-client", .value = "ARGS", .help = "more arguments for the reference's client: \"-d rxe0 -x 1\""};
inline constexpr Flag kServerArgs{
    .name = "against-server", .value = "ARGS", .help = "more arguments for the reference's server, started here"};

}  // namespace mc::bench
