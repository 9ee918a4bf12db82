// `mc-bench xfer`: how fast the transfer engine moves bytes, beside what this machine can do at all: memcpy
// for shm, one raw loopback socket for tcp. With --server and a PEER the two ends are two processes or
// hosts; without, both live here. Every byte read is checked against its CRC32C unless --no-verify.

#include "xfer/xfer.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/common_flags.h"
#include "base/errors.h"
#include "base/fd.h"
#include "base/hash.h"
#include "base/histogram.h"
#include "base/rng.h"
#include "ctl/ctl.h"
#include "mem/mem.h"
#include "print.h"
#include "run/signals.h"
#include "verbs.h"
#include "xfer/bench.h"

namespace mc::bench {
namespace {

constexpr std::string_view kBufferName = "bench";
constexpr uint64_t kContentSeed = 0x6d632d62656e6368;  // both ends make the same bytes from it
constexpr size_t kBufferMin = size_t{64} << 20;

constexpr Flag kServer{
    .name = "server", .kind = FlagKind::boolean, .help = "be the other end: print the URIs and serve until stopped"};
constexpr Flag kTransports{.name = "transport",
                           .kind = FlagKind::list,
                           .value = "T,T",
                           .fallback = "shm,tcp",
                           .help = "transports to measure: shm, tcp"};
constexpr Flag kSize{.name = "size",
                     .kind = FlagKind::sweep_bytes,
                     .value = "SIZES",
                     .fallback = "64KiB-16MiB*4",
                     .help = "bytes of one request: 64KiB-64MiB*4"};
constexpr Flag kStreams{
    .name = "streams", .kind = FlagKind::sweep_counts, .value = "N,N", .fallback = "1", .help = "tcp streams a peer"};
constexpr Flag kTime{.name = "time",
                     .letter = 't',
                     .kind = FlagKind::duration,
                     .value = "T",
                     .fallback = "1s",
                     .help = "how long each point runs"};
constexpr Flag kDepth{
    .name = "depth", .kind = FlagKind::count, .value = "N", .fallback = "2", .help = "requests in flight"};
constexpr Flag kOp{.name = "op",
                   .kind = FlagKind::choice,
                   .value = "O",
                   .fallback = "read",
                   .help = "read pulls from the peer, write pushes to it",
                   .choices = "read|write"};
constexpr Flag kNoVerify{
    .name = "no-verify", .kind = FlagKind::boolean, .help = "do not compute checksums of what is read"};
constexpr Flag kXferPort{.name = "port",
                         .kind = FlagKind::count,
                         .value = "N",
                         .fallback = "7790",
                         .help = "tcp port of the server; 0 is any free one"};

constexpr const Flag* kFlags[] = {&kServer,
                                  &kTransports,
                                  &kSize,
                                  &kStreams,
                                  &kTime,
                                  &kDepth,
                                  &kOp,
                                  &kNoVerify,
                                  &kXferPort,
                                  &flags::kBind,
                                  &flags::kInsecure,
                                  &flags::kJson,
                                  &flags::kOutput,
                                  &flags::kQuiet,
                                  &flags::kConfig,
                                  &flags::kLogLevel,
                                  &flags::kLogFormat,
                                  &flags::kPrintConfig};

void fill(std::span<std::byte> bytes) {
  Rng rng(kContentSeed);
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const uint64_t word = rng.next();
    std::memcpy(bytes.data() + i, &word, 8);
  }
}

std::string shm_address(uint64_t port) {
  return "mc-bench-xfer-" + std::to_string(::getuid()) + "-" + std::to_string(port);
}

/// An engine and its registered memory. The engine goes first: it must let go of the memory.
struct End {
  mem::SharedBuffer memory;
  std::unique_ptr<xfer::Engine> engine;

  static Result<std::unique_ptr<End>> open(xfer::Options options, size_t bytes, const xfer::Buffer& buffer) {
    auto end = std::make_unique<End>();
    MC_TRY(memory, mem::SharedBuffer::create(
                       bytes, {.name = "bench", .peers_write = buffer.access == xfer::AccessClass::landing}));
    end->memory = std::move(memory);
    auto engine = xfer::Engine::open(options);
    if (!engine) {
      const bool exposed = engine.error().code == Code::invalid && !options.insecure;
      const bool taken = engine.error().what.find("Address already in use") != std::string::npos;
      const auto number = exposed ? err::kAuthRequired : taken ? err::kPortInUse : err::kCannotListen;
      return as_user_error(number, std::move(engine.error()));
    }
    end->engine = std::move(*engine);
    MC_CHECK(end->engine->register_buffer(end->memory, buffer));
    return end;
  }
};

Result<std::unique_ptr<End>> open_server(const cli::Args& args, const std::string& transport, size_t bytes,
                                         bool fixed) {
  const uint64_t port = fixed ? args.count(kXferPort) : 0;
  xfer::Options options{.name = "bench-server", .transport = transport};
  options.tcp_bind = args.text(flags::kBind) + ":" + std::to_string(port);
  options.insecure = args.on(flags::kInsecure);
  if (fixed) options.shm_path = shm_address(port);
  const bool write = args.text(kOp) == "write";
  MC_TRY(end, End::open(options, bytes,
                        {.name = std::string(kBufferName),
                         .access = write ? xfer::AccessClass::landing : xfer::AccessClass::blocks}));
  fill(end->memory.bytes());
  return end;
}

Result<int> run_server(const cli::Args& args) {
  MC_TRY(signals, run::Signals::open());
  std::string transports;
  for (const std::string& t : args.list(kTransports)) transports += (transports.empty() ? "" : ",") + t;
  const auto sizes = args.sweep(kSize);
  const size_t bytes = std::max<size_t>(kBufferMin, sizes.empty() ? 0 : *std::max_element(sizes.begin(), sizes.end()));
  MC_TRY(end, open_server(args, transports, bytes, true));
  Json ready = Json::object({{"type", "ready"}, {"program", "mc-bench"}});
  Json uris = Json::array();
  for (const std::string& uri : end->engine->uris()) uris.push(uri);
  ready.set("uri", end->engine->uris().back()).set("uris", std::move(uris)).set("pid", ::getpid());
  MC_CHECK(write_all(1, ready.dump() + "\n"));
  std::vector<xfer::Event> events;
  for (;;) {
    auto readable = wait_fd(signals.fd(), 1 /* POLLIN */, SystemClock::instance().now() + 200ms);
    if (readable && signals.next()) return 0;
    events.clear();
    (void)end->engine->poll(events, SystemClock::instance().now());
  }
}

struct Point {
  std::string transport;
  uint64_t streams, bytes;
};

Result<xfer::PeerId> reach(xfer::Engine& engine, const std::string& uri) {
  const TimePoint deadline = SystemClock::instance().now() + 5s;
  auto peer = engine.connect(uri, deadline);
  if (!peer) return user_error(err::kPeerUnreachable, uri + ": " + peer.error().what, uri);
  std::vector<xfer::Event> events;
  while (SystemClock::instance().now() < deadline + 1s) {
    events.clear();
    (void)engine.poll(events, deadline + 1s);
    for (const auto& event : events) {
      if (event.kind == xfer::Event::Kind::peer_up && event.peer == *peer) return *peer;
      if (event.kind == xfer::Event::Kind::peer_lost)
        return user_error(err::kPeerUnreachable, uri + ": " + event.text, uri,
                          "start one with: mc-bench xfer --server");
    }
  }
  return user_error(err::kPeerUnreachable, uri + ": not connected within 5 s", uri,
                    "start one with: mc-bench xfer --server");
}

/// Where a transport of the PEER argument is dialled: a URI as it is, a host by the server's fixed places.
Result<std::string> address(const cli::Args& args, const std::string& peer, const std::string& transport) {
  if (peer.find("://") != std::string::npos) {
    if (peer.starts_with(transport + "://")) return peer;
    return user_error(err::kBadValue, peer + " is no address of transport " + transport, "PEER",
                      "name one with --transport");
  }
  if (transport == "tcp") return "tcp://" + peer + ":" + std::to_string(args.count(kXferPort));
  if (peer == "127.0.0.1" || peer == "localhost" || peer == "::1") return "shm://" + shm_address(args.count(kXferPort));
  return user_error(err::kTransportUnusable, "shm reaches this host only, not " + peer, "--transport");
}

/// Checksums of the server's consecutive pieces of this size, made here from the same seed.
std::vector<uint32_t> checksums(std::span<const std::byte> content, size_t bytes) {
  std::vector<uint32_t> out;
  for (size_t at = 0; at + bytes <= content.size(); at += bytes) out.push_back(crc32c(content.subspan(at, bytes)));
  return out;
}

struct Client {
  const cli::Args& args;
  std::span<const std::byte> content;  // what the server's buffer holds

  Result<Json> measure(const Point& point, const std::string& uri) const {
    const size_t depth = std::clamp<uint64_t>(args.count(kDepth), 1, 256);
    xfer::Options options{.name = "bench-client", .transport = point.transport};
    options.tcp_streams = static_cast<int>(point.streams);
    options.insecure = args.on(flags::kInsecure);
    options.tcp_bind = args.text(flags::kBind) + ":0";
    MC_TRY(end,
           End::open(options, point.bytes * depth, {.name = "local", .access = xfer::AccessClass::private_memory}));
    std::memset(end->memory.data(), 1, end->memory.size());
    MC_TRY(peer, reach(*end->engine, uri));
    const auto descriptor = end->engine->descriptor(peer);
    const auto found = std::find_if(descriptor->buffers.begin(), descriptor->buffers.end(),
                                    [](const auto& b) { return b.name == kBufferName; });
    if (found == descriptor->buffers.end())
      return user_error(err::kPeerGarbage, uri + " has no buffer named bench", uri, "is it a mc-bench xfer --server?");
    xfer::BenchPlan plan{.op = args.text(kOp) == "write" ? xfer::Op::write : xfer::Op::read,
                         .request_bytes = point.bytes,
                         .depth = depth,
                         .duration = args.duration(kTime)};
    const bool verify = plan.op == xfer::Op::read && !args.on(kNoVerify) && found->length == content.size();
    if (verify) plan.crc32c = checksums(content, point.bytes);
    MC_TRY(result, xfer::bench_transfer(*end->engine, peer, found->id, end->memory.bytes(), plan));
    return describe(point, plan, result, verify, end->memory.bytes());
  }

  Result<Json> describe(const Point& point, const xfer::BenchPlan& plan, const xfer::BenchResult& result, bool verify,
                        std::span<std::byte> local) const {
    std::vector<double> latencies;
    for (Duration d : result.latencies) latencies.push_back(to_seconds(d) * 1e6);
    std::sort(latencies.begin(), latencies.end());
    const Duration brief = std::clamp<Duration>(plan.duration / 4, 50ms, 500ms);
    const std::span<const std::byte> source =
        content.first(std::min(content.size(), std::max(local.size(), point.bytes)));
    double yardstick = 0;
    if (point.transport == "tcp") {
      MC_TRY(raw, xfer::bench_raw_tcp(source, local, point.bytes, brief));
      yardstick = raw;
    } else {
      yardstick = xfer::bench_memcpy(content, local, point.bytes, brief);
    }
    Json out = Json::object({{"type", "point"}, {"transport", point.transport}, {"op", args.text(kOp)}});
    out.set("streams", point.streams).set("size_bytes", point.bytes).set("depth", plan.depth);
    out.set("transfers", result.batches).set("failed", result.failed).set("bytes", result.bytes);
    out.set("duration_s", to_seconds(result.elapsed)).set("bytes_per_s", result.bytes_per_s());
    out.set("latency_us_p50", quantile_sorted(latencies, .5)).set("latency_us_p99", quantile_sorted(latencies, .99));
    out.set("yardstick", point.transport == "tcp" ? "raw-tcp" : "memcpy").set("yardstick_bytes_per_s", yardstick);
    out.set("yardstick_share", yardstick > 0 ? result.bytes_per_s() / yardstick : 0.0);
    return std::move(out.set("verified", verify));
  }
};

Result<std::vector<Point>> points_of(const cli::Args& args) {
  std::vector<Point> out;
  for (const std::string& transport : args.list(kTransports)) {
    if (transport != "shm" && transport != "tcp")
      return user_error(err::kTransportUnusable, "'" + transport + "' is no transport; there are shm and tcp",
                        "--transport");
    for (uint64_t streams : args.sweep(kStreams)) {
      if (streams < 1 || streams > 64) return user_error(err::kBadValue, "--streams is 1 to 64", "--streams");
      if (transport == "shm" && streams != args.sweep(kStreams).front()) continue;  // it has no streams
      for (uint64_t bytes : args.sweep(kSize)) {
        if (bytes < 64 || bytes > kGiB) return user_error(err::kBadValue, "--size is 64B to 1GiB", "--size");
        out.push_back({transport, transport == "shm" ? 1 : streams, bytes});
      }
    }
  }
  return out;
}

}  // namespace

const cli::FlagList kXferFlags = kFlags;

Result<int> xfer(const cli::Args& args) {
  if (args.on(kServer)) return run_server(args);
  const std::string peer = args.positional("PEER").empty() ? "" : args.positional_one("PEER");
  MC_TRY(points, points_of(args));
  Sink sink(args);
  uint64_t largest = kBufferMin;
  for (const Point& point : points) largest = std::max(largest, point.bytes);
  MC_TRY(content, mem::HostBuffer::allocate(largest, {.name = "bench content"}));
  fill(content.bytes());
  std::unique_ptr<End> here;
  if (peer.empty()) {
    MC_TRY(server, open_server(args, "shm,tcp", largest, false));
    here = std::move(server);
  }
  const Client client{args, content.bytes()};
  Table table(
      {"transport", "op", "streams", "size", "GB/s", "p50 us", "p99 us", "yardstick GB/s", "share %", "verified"});
  Json points_out = Json::array();
  uint64_t failed = 0;
  for (const Point& point : points) {
    std::string uri;
    if (here) {
      for (const std::string& u : here->engine->uris())
        if (u.starts_with(point.transport + "://")) uri = u;
    } else {
      MC_TRY(named, address(args, peer, point.transport));
      uri = named;
    }
    MC_TRY(row, client.measure(point, uri));
    failed += static_cast<uint64_t>(row["failed"].as_int());
    table.add({point.transport, args.text(kOp), std::to_string(point.streams), human_bytes(point.bytes),
               fixed(row["bytes_per_s"].as_double() / 1e9, 2), fixed(row["latency_us_p50"].as_double(), 1),
               fixed(row["latency_us_p99"].as_double(), 1), fixed(row["yardstick_bytes_per_s"].as_double() / 1e9, 2),
               fixed(100 * row["yardstick_share"].as_double(), 0), row["verified"].as_bool() ? "yes" : "no"});
    MC_CHECK(sink.line(row));
    points_out.push(std::move(row));
  }
  MC_CHECK(sink.text(table.text()));
  Json result = result_head("mc.bench.xfer.v1", args);
  MC_CHECK(sink.line(result.set("points", std::move(points_out)).set("failed", failed)));
  MC_CHECK(sink.finish());
  if (failed > 0) return user_error(err::kWrongAnswer, std::to_string(failed) + " transfers failed or had wrong bytes");
  return 0;
}

}  // namespace mc::bench
