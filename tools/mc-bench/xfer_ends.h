// The two ends of `mc-bench xfer`: an engine with its registered memory. The serving end offers the
// buffer "bench" to read and "bench-landing" to write; both ends make the same content from a seed, so
// that what is read can be checked without a word about it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/cli.h"
#include "base/json.h"
#include "mem/mem.h"
#include "xfer/bench.h"
#include "xfer/xfer.h"

namespace mc::bench {

inline constexpr std::string_view kReadBuffer = "bench";
inline constexpr std::string_view kWriteBuffer = "bench-landing";

void fill_content(std::span<std::byte> bytes);
/// Expected sums of consecutive pieces.
std::vector<uint32_t> checksums(std::span<const std::byte> content, size_t piece_bytes);

/// Names a half of "client/server" in --rdma-devices.
enum class Side : uint8_t { client, server };
/// Options from the flags that both ends share: --auth (with both ends here and a sealed point, a key set of their
/// own), --insecure, --bind (with `port`, rdma one above), --rdma-*,
/// --tcp-io, --transfer-spin.
Result<xfer::Options> end_options(const cli::Args& args, const std::string& transports, uint64_t port, Side side);

/// The engine goes first when it is destroyed: it must let go of the memory.
struct ServingEnd {
  mem::SharedBuffer content, landing;
  std::unique_ptr<xfer::Engine> engine;
};
/// `fixed_place`: listens where clients look by default (--port, and an shm name made from it).
Result<std::unique_ptr<ServingEnd>> open_serving_end(const cli::Args& args, const std::string& transports, size_t bytes,
                                                     bool fixed_place);
/// Takes the serving engine's events, as its owner would, until the thread is stopped.
std::jthread listen_to_events(xfer::Engine& engine);
/// --server: prints where it listens and serves until a signal.
Result<int> serve_until_stopped(const cli::Args& args, const std::string& transports, size_t bytes);

/// An engine with `bytes` of its own, connected to `uri`.
struct ClientEnd {
  mem::SharedBuffer memory;
  std::unique_ptr<xfer::Engine> engine;
  xfer::PeerId peer{};
  /// The peer's buffer of that name.
  Result<xfer::BufferInfo> find(std::string_view name, const std::string& uri) const;
};
Result<std::unique_ptr<ClientEnd>> open_client_end(const xfer::Options& options, size_t bytes, const std::string& uri);

/// Leases and maps blocks of `remote` one after the other; latencies of each, no bytes moved.
Result<xfer::BenchResult> bench_map(const ClientEnd& end, const xfer::BufferInfo& remote, size_t block_bytes,
                                    Duration duration);

/// Times of touching `bytes` of fresh memory and of registering it with the transports of `options`.
Result<Json> bench_register(const xfer::Options& options, size_t bytes);

}  // namespace mc::bench
