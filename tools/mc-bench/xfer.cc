// `mc-bench xfer`: how fast the transfer engine moves bytes, beside what this machine can do at all: memcpy
// for shm, one raw loopback socket for tcp. With --server and a PEER the two ends are two processes or
// hosts; without, both live here. What is read is checked against its CRC32C, what is written over tcp by
// the peer, unless --no-verify. --against runs a reference in turns with ours and prints the ratio of each
// pair's halves. Columns are named as in tebench and nixlbench.

#include <algorithm>
#include <map>
#include <optional>

#include "base/assert.h"
#include "base/errors.h"
#include "base/histogram.h"
#include "host/transfer_flags.h"
#include "mem/mem.h"
#include "product/doors.h"
#include "product/flags.h"
#include "rows.h"
#include "verbs.h"
#include "xfer/bench.h"
#include "xfer_against.h"
#include "xfer_ends.h"
#include "xfer_flags.h"
#include "xfer_points.h"

namespace mc::bench {
namespace {

constexpr auto kXferFlagTable = flags::join(
    flags::list(&kServer, &kTransports, &kSize, &kBatch, &kDepth, &kStreams, &kXferDevices, &kXferSeal),
    host::kTransferFlags,
    flags::list(&kOp, &kClass, &kBeside, &kTime, &kMemory, &kNoVerify, &kAgainst, &kPairs, &kClientArgs, &kServerArgs,
                &kXferPort, &flags::kBind, &flags::kAuth, &flags::kInsecure, &flags::kJson, &kFormat, &flags::kOutput,
                &flags::kQuiet, &flags::kConfig, &flags::kLogLevel, &flags::kLogFormat, &flags::kPrintConfig));

struct Client {
  const cli::Args& args;
  std::span<const std::byte> content;  // what the server's buffer holds
  std::string host;                    // of PEER; empty = both ends are here

  Result<Json> measure(const Point& point, const std::string& uri) const;
  ReferencePlan reference(const Point& point, std::span<std::byte> local, Reference against) const;
  Result<void> compare(const Point& point, ClientEnd& end, const xfer::BufferInfo& remote, const xfer::BenchPlan& plan,
                       Json& out) const;
};

/// Whether the wanted checks can be had at all. What is written over shm or rdma no processor there looks at.
bool verified(const cli::Args& args, const Point& point) {
  return !args.on(kNoVerify) && (point.op == XferOp::read || (point.writes() && point.over_sockets));
}

ReferencePlan Client::reference(const Point& point, std::span<std::byte> local, Reference against) const {
  ReferencePlan plan{.reference = against, .source = content, .target = local, .request_bytes = point.bytes};
  plan.depth = point.depth * (is_perftest(against) ? point.batch : 1);
  plan.streams = point.streams;
  plan.duration = args.duration(kTime);
  plan.client_args = args.text(kClientArgs);
  plan.server_args = args.text(kServerArgs);
  if (!host.empty() && !is_loopback(host)) {
    plan.host = host;
    plan.start_other_side = args.present(kServerArgs);
  }
  return plan;
}

/// A server that died, or stopped answering, is told from wrong bytes.
Result<xfer::BenchResult> transfer(ClientEnd& end, const xfer::BufferInfo& remote, const xfer::BenchPlan& plan) {
  auto result = xfer::bench_transfer(*end.engine, end.peer, remote.id, end.memory.bytes(), plan);
  if (!result && (result.error().code == Code::peer_lost || result.error().code == Code::timeout))
    return user_error(err::kPeerLost, "the server " + result.error().what, {},
                      "look at the server: it ended or stopped answering");
  return result;
}

/// Pairs of runs, the first half by turns ours and theirs: a drift of the machine favours neither.
Result<void> Client::compare(const Point& point, ClientEnd& end, const xfer::BufferInfo& remote,
                             const xfer::BenchPlan& plan, Json& out) const {
  const Reference against = choice_of(args, kAgainst);
  const std::string name = name_of(against);
  ReferencePlan theirs = reference(point, end.memory.bytes(), against);
  theirs.iterations = static_cast<uint64_t>(out["bytes_per_s"].as_double() * to_seconds(theirs.duration) /
                                            static_cast<double>(point.bytes));
  if (is_latency(against)) theirs.iterations = 1000;
  std::vector<double> ratios, ours_all, theirs_all;
  uint64_t failed = 0;
  const uint64_t pairs = args.count(kPairs);
  for (uint64_t pair = 0; pair < pairs; ++pair) {
    double ours = 0, other = 0;
    for (uint64_t half = 0; half < 2; ++half) {
      if ((pair + half) % 2 == 1) {
        MC_TRY(value, run_reference(theirs));
        other = value;
        continue;
      }
      MC_TRY(result, transfer(end, remote, plan));
      failed += result.failed;
      std::sort(result.latencies.begin(), result.latencies.end());
      ours = is_latency(against) ? to_seconds(result.latencies[result.latencies.size() / 2]) : result.bytes_per_s();
    }
    if (other <= 0) return Error{Code::io, name + " moved nothing"};
    ratios.push_back(ours / other);
    ours_all.push_back(ours);
    theirs_all.push_back(other);
  }
  const Ratio ratio = summarise(ratios);
  const std::string unit = is_latency(against) ? "_s" : "_bytes_per_s";
  out.set("against", name).set("pairs", pairs);
  out.set("ours" + unit, summarise(ours_all).median).set("against" + unit, summarise(theirs_all).median);
  out.set("ratio", ratio.median).set("ratio_p25", ratio.low).set("ratio_p75", ratio.high);
  out.set("failed", static_cast<uint64_t>(out["failed"].as_int()) + failed);
  return {};
}

Json describe(const Point& point, const xfer::BenchResult& result) {
  std::vector<double> latencies;
  double sum = 0;
  for (Duration d : result.latencies) {
    latencies.push_back(to_seconds(d) * 1e6);
    sum += latencies.back();
  }
  std::sort(latencies.begin(), latencies.end());
  Json out = Json::object({{"type", "point"},
                           {"transport", point.transport},
                           {"op", to_string(point.op)},
                           {"class", to_string(point.transfer_class)}});
  out.set("streams", point.streams).set("size_bytes", point.bytes).set("batch", point.batch).set("depth", point.depth);
  out.set("transfers", result.batches).set("failed", result.failed).set("bytes", result.bytes);
  out.set("duration_s", to_seconds(result.elapsed)).set("bytes_per_s", result.bytes_per_s());
  out.set("latency_us_avg", latencies.empty() ? 0.0 : sum / static_cast<double>(latencies.size()));
  out.set("latency_us_p50", quantile_sorted(latencies, .5)).set("latency_us_p99", quantile_sorted(latencies, .99));
  if (result.beside_bytes > 0)
    out.set("beside_bytes_per_s", static_cast<double>(result.beside_bytes) / to_seconds(result.elapsed));
  return std::move(out.set("latency_us_p999", quantile_sorted(latencies, .999)));
}

Result<Json> Client::measure(const Point& point, const std::string& uri) const {
  MC_TRY(options, end_options(args, point.transport, 0, Side::client));
  options.tcp_streams = static_cast<int>(point.streams);
  options.payload_crc = !args.on(kNoVerify);
  options.tcp_seal = point.seal;
  const size_t beside = args.present(kBeside) ? args.bytes(kBeside) : 0;
  const size_t in_flight = point.bytes * point.batch * point.depth + 2 * beside;
  MC_TRY(end, open_client_end(options, std::max(in_flight, content.size()), uri));
  const bool write = point.writes();
  MC_TRY(remote, end->find(write ? kWriteBuffer : kReadBuffer, uri));
  if (point.op == XferOp::map) {
    MC_TRY(mapped, bench_map(*end, remote, point.bytes, args.duration(kTime)));
    Json out = describe(point, mapped);
    return std::move(out.set("verified", false));
  }
  xfer::BenchPlan plan{.op = write ? xfer::Op::write : xfer::Op::read,
                       .request_bytes = point.bytes,
                       .batch_requests = point.batch,
                       .depth = point.depth,
                       .duration = args.duration(kTime),
                       .immediates = point.op == XferOp::write_imm,
                       .transfer_class = point.transfer_class,
                       .beside_bytes = beside};
  const bool verify = verified(args, point);
  if (verify && !write && remote.length != content.size())
    return user_error(err::kBadValue,
                      uri + " serves " + human_bytes(remote.length) + ", this side has " + human_bytes(content.size()) +
                          " of content to check with",
                      "--memory", "give both sides the same --memory, or use --no-verify");
  if (verify && !write) plan.crc32c = checksums(content, point.bytes);
  // half of the yardstick on each side of the run: the better half counts, as what this machine can do at all
  ReferencePlan limit = reference(point, end->memory.bytes(), point.over_sockets ? Reference::raw : Reference::memcpy);
  limit.duration = std::clamp<Duration>(plan.duration / 8, 25ms, 250ms);
  MC_TRY(before, run_reference(limit));
  MC_TRY(result, transfer(*end, remote, plan));
  MC_TRY(after, run_reference(limit));
  const double yardstick = std::max(before, after);
  Json out = describe(point, result);
  out.set("tcp_seal", point.seal).set("sealed", end->engine->counters().streams_sealed > 0);
  out.set("yardstick", point.over_sockets ? "raw-tcp" : "memcpy").set("yardstick_bytes_per_s", yardstick);
  out.set("yardstick_share", yardstick > 0 ? result.bytes_per_s() / yardstick : 0.0).set("verified", verify);
  if (args.present(kAgainst)) MC_CHECK(compare(point, *end, remote, plan, out));
  return out;
}

/// Columns that the table for people has only where points differ in them.
struct Varying {
  bool classes = true, streams = true, batches = true, depths = true;
};

Varying varying(const cli::Args& args, const std::vector<Point>& points) {
  MC_ASSERT(!points.empty());
  if (table_form(args) != TableForm::text) return {};
  const Point& first = points.front();
  const auto differ = [&](auto member) {
    return std::any_of(points.begin(), points.end(), [&](const Point& p) { return p.*member != first.*member; });
  };
  return {differ(&Point::transfer_class), differ(&Point::streams), differ(&Point::batch), differ(&Point::depth)};
}

/// Settings that all points share and no column shows: "class bulk, streams 1, batch 1, depth 2".
std::string common_text(const Point& point, const Varying& shown) {
  std::string out;
  const auto add = [&](bool is_column, const std::string& text) {
    if (!is_column) out += (out.empty() ? "" : ", ") + text;
  };
  add(shown.classes, "class " + std::string(to_string(point.transfer_class)));
  add(shown.streams, "streams " + std::to_string(point.streams));
  add(shown.batches, "batch " + std::to_string(point.batch));
  add(shown.depths, "depth " + std::to_string(point.depth));
  return out.empty() ? "" : out + "\n";
}

std::vector<std::string> header(const Varying& shown, bool against) {
  std::vector<std::string> out = {"via", "op"};
  if (shown.classes) out.emplace_back("class");
  if (shown.streams) out.emplace_back("streams");
  out.emplace_back("size");
  if (shown.batches) out.emplace_back("batch");
  if (shown.depths) out.emplace_back("depth");
  out.insert(out.end(), {"GB/s", "avg us", "p50", "p99", "p999", "limit", "%", "checked", "sealed"});
  if (against) out.insert(out.end(), {"against", "theirs", "ratio", "p25", "p75"});
  return out;
}

std::vector<std::string> cells(const Point& point, const Json& row, const Varying& shown, bool against) {
  const auto us = [&](const char* key) { return fixed(row[key].as_double(), 1); };
  std::vector<std::string> out = {point.transport, std::string(to_string(point.op))};
  if (shown.classes) out.emplace_back(to_string(point.transfer_class));
  if (shown.streams) out.push_back(std::to_string(point.streams));
  out.push_back(human_bytes(point.bytes));
  if (shown.batches) out.push_back(std::to_string(point.batch));
  if (shown.depths) out.push_back(std::to_string(point.depth));
  out.insert(out.end(),
             {fixed(row["bytes_per_s"].as_double() / 1e9, 2), us("latency_us_avg"), us("latency_us_p50"),
              us("latency_us_p99"), us("latency_us_p999"), fixed(row["yardstick_bytes_per_s"].as_double() / 1e9, 2),
              fixed(100 * row["yardstick_share"].as_double(), 0), row["verified"].as_bool() ? "yes" : "no",
              row.has("sealed") && row["sealed"].as_bool() ? "yes" : "no"});
  if (!against) return out;
  out.emplace_back(row["against"].as_string());
  out.push_back(row.has("against_s") ? fixed(row["against_s"].as_double() * 1e6, 1) + " us"
                                     : fixed(row["against_bytes_per_s"].as_double() / 1e9, 2) + " GB/s");
  for (const char* key : {"ratio", "ratio_p25", "ratio_p75"}) out.push_back(fixed(row[key].as_double(), 2));
  return out;
}

/// --op register: no peer, no points; one line a transport.
Result<int> register_memory(const cli::Args& args, const std::vector<std::string>& transports) {
  MC_TRY(rows, Rows::open(
                   args, "mc.bench.xfer.v1",
                   Table({"transport", "size", "threads", "touch s", "by all s", "huge s", "by all s", "register s"})));
  for (const std::string& transport : transports) {
    MC_TRY(options, end_options(args, transport, 0, Side::client));
    MC_TRY(row, bench_register(options, args.bytes(kMemory)));
    const auto s = [&](const char* key) { return fixed(row[key].as_double(), 3); };
    std::vector<std::string> text = {transport,
                                     human_bytes(args.bytes(kMemory)),
                                     std::to_string(row["threads"].as_int()),
                                     s("prefault_serial_s"),
                                     s("prefault_parallel_s"),
                                     s("prefault_huge_serial_s"),
                                     s("prefault_huge_parallel_s"),
                                     s("register_s")};
    MC_CHECK(rows->add(std::move(row), std::move(text)));
  }
  rows->fact("failed", 0);
  MC_CHECK(rows->finish());
  return 0;
}

Error means_nothing(const Flag& flag, const std::string& why, const std::string& next) {
  const std::string name = "--" + std::string(flag.name);
  return user_error(err::kUsage, name + " means nothing " + why, name, next);
}

/// Refuses combinations of flags in which one flag would have no effect.
Result<void> check_sense(const cli::Args& args, const std::vector<std::string>& transports) {
  const bool registers = args.list(kOp) == std::vector<std::string>{"register"};
  const std::string peer = args.positional_one("PEER");
  if (args.on(kServer) && args.list(kXferSeal).size() != 1)
    return user_error(err::kUsage, "a --server has one --tcp-seal; its clients may have several", "--tcp-seal",
                      "--tcp-seal auto on the server goes with off and on");
  const auto among = [&](std::string_view name) { return std::ranges::count(transports, name) > 0; };
  if (args.on(kServer) && !peer.empty())
    return user_error(err::kUsage, "a --server has no PEER; it listens at --bind and --port", peer,
                      "mc-bench xfer --server --bind " + peer + ", or leave --server out to reach it");
  if (registers && (!peer.empty() || args.on(kServer)))
    return user_error(err::kUsage, "--op register measures this host alone", "--op", "leave out PEER and --server");
  if (args.said(kXferPort) && !args.on(kServer) && (peer.empty() || has_port(peer)))
    return means_nothing(kXferPort, peer.empty() ? "without a PEER" : "beside " + peer + ", which has a port",
                         "it is where a --server listens, and where a PEER without a port is reached");
  if (args.said(kStreams) && !among("tcp"))
    return means_nothing(kStreams, "without tcp among the transports", "--transport tcp");
  for (const Flag* flag : kXferFlagTable)
    if (flag->name.starts_with("rdma-") && args.said(*flag) && !among("rdma"))
      return means_nothing(*flag, "without rdma among the transports", "--transport rdma");
  for (const Flag* flag : std::initializer_list<const Flag*>{&kAgainst, &kSize, &kBatch, &kDepth, &kStreams, &kTime})
    if (args.on(kServer) && args.said(*flag))
      return means_nothing(*flag, "for a --server", "it is for the side that has a PEER");
  for (const Flag* flag : {&kSize, &kBatch, &kDepth, &kStreams, &kTime})
    if (registers && args.said(*flag))
      return means_nothing(*flag, "with --op register", "--memory says how much is registered");
  if (registers && args.said(kAgainst))
    return means_nothing(kAgainst, "with --op register, which moves nothing", "leave one of them out");
  if (args.present(kAgainst)) return {};
  for (const Flag* flag : {&kPairs, &kClientArgs, &kServerArgs})
    if (args.said(*flag)) return means_nothing(*flag, "without --against", "say which reference: --against iperf3");
  return {};
}

/// Each side fills two buffers of --memory; to register, one.
Result<void> check_room(uint64_t memory, uint64_t buffers) {
  const uint64_t free = mem::available_bytes();
  if (memory <= free / 10 * 9 / buffers) return {};
  return user_error(err::kNotEnoughMemory,
                    std::to_string(buffers) + (buffers == 1 ? " buffer of " : " buffers of ") + human_bytes(memory) +
                        " are needed on this host; " + human_bytes(free) + " are free",
                    "--memory", "at most --memory " + std::to_string(free / 10 * 9 / buffers / kMiB) + "MiB");
}

}  // namespace

const cli::FlagList kXferFlags = kXferFlagTable;

Result<int> xfer(const cli::Args& args) {
  MC_TRY(transports, transports_of(args));
  MC_CHECK(check_sense(args, transports));
  if (args.list(kOp) == std::vector<std::string>{"register"}) {
    MC_CHECK(check_room(args.bytes(kMemory), 1));
    return register_memory(args, transports);
  }
  MC_TRY(points, points_of(args, transports));
  MC_TRY(memory, memory_of(args, points));
  MC_CHECK(check_room(memory, args.on(kServer) || !args.positional("PEER").empty() ? 2 : 4));
  std::string names;
  for (const std::string& transport : transports) names += (names.empty() ? "" : ",") + transport;
  if (args.on(kServer)) return serve_until_stopped(args, names, memory);
  const bool against = args.present(kAgainst);
  const Varying shown = varying(args, points);
  MC_TRY(rows, Rows::open(args, "mc.bench.xfer.v1", Table(header(shown, against))));
  for (const Point& point : points) rows->expect({point.transport, std::string(to_string(point.op))});
  rows->fact("failed", 0);
  MC_TRY(content, mem::HostBuffer::allocate(memory, {.name = "bench content"}));
  fill_content(content.bytes());
  std::unique_ptr<ServingEnd> here;
  if (args.positional("PEER").empty()) {
    MC_TRY(server, open_serving_end(args, names, memory, false));
    here = std::move(server);
  }
  const bool tells =
      std::any_of(points.begin(), points.end(), [](const Point& point) { return point.op == XferOp::write_imm; });
  const std::jthread listening = here && tells ? listen_to_events(*here->engine) : std::jthread();
  const Client client{args, content.bytes(), peer_host(args)};
  std::map<std::string, std::string> places;  // URIs by transport
  for (const std::string& transport : transports) {
    if (here) {
      for (const std::string& uri : here->engine->uris())
        if (uri.starts_with(transport + "://")) places[transport] = uri;
      continue;
    }
    MC_TRY(uri, peer_address(args, transport));
    places[transport] = uri;
  }
  uint64_t failed = 0;
  std::optional<Error> broken;
  for (const Point& point : points) {
    auto row = client.measure(point, places.at(point.transport));
    if (!row) {  // what was measured before it is not lost
      broken = std::move(row.error());
      break;
    }
    failed += static_cast<uint64_t>((*row)["failed"].as_int());
    rows->fact("failed", failed);
    if (&point == &points.front()) MC_CHECK(rows->text(common_text(point, shown)));
    std::vector<std::string> text = cells(point, *row, shown, against);
    MC_CHECK(rows->add(std::move(*row), std::move(text)));
  }
  if (broken) rows->fact("error", broken->what);
  MC_CHECK(rows->finish());
  if (broken) return std::move(*broken);
  if (failed > 0) return user_error(err::kWrongAnswer, std::to_string(failed) + " transfers had wrong bytes");
  return 0;
}

}  // namespace mc::bench
