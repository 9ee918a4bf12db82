// `mc-bench rfp`: null calls by remote fetching (lib/rfp) between two ends in this process, over each transport. --op
// call measures calls; each response is compared with its request. --op lookup measures lookups of blocks in the table
// of a node (wire/block_index.h), with the bytes that nodes exchange. --op calibrate measures reads of each size and
// writes, and prints the parameters that follow: N, the bound of R, and F for --size.

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <random>
#include <thread>

#include "base/errors.h"
#include "base/histogram.h"
#include "kv/block_table.h"
#include "product/flags.h"
#include "rfp/sizing.h"
#include "rfp_windows/rfp_windows.h"
#include "rows.h"
#include "transports/transports.h"
#include "verbs.h"
#include "wire/lease_call.h"
#include "xfer_flags.h"

namespace mc::bench {
namespace {

constexpr Flag kRfpTransports{.name = "transport",
                              .kind = FlagKind::list,
                              .value = "T,T",
                              .fallback = "shm,tcp",
                              .help = "transports to measure",
                              .table = flags::transport_names};
constexpr Flag kRfpOp{.name = "op",
                      .kind = FlagKind::list,
                      .value = "O,O",
                      .fallback = "call",
                      .help = "call: null calls; lookup: of blocks; calibrate: transfers and parameters that follow"};
constexpr Flag kRfpSize{.name = "size",
                        .kind = FlagKind::sweep_bytes,
                        .value = "SIZES",
                        .fallback = "32",
                        .help = "bytes of a response, at most 4064"};
constexpr Flag kRfpBlocks{.name = "blocks",
                          .kind = FlagKind::sweep_counts,
                          .value = "N,N",
                          .fallback = "1,100",
                          .help = "blocks of a lookup, 1 to 1000"};
constexpr Flag kRfpFetch{.name = "fetch",
                         .kind = FlagKind::bytes,
                         .value = "SIZE",
                         .fallback = "256",
                         .help = "bytes of the first read of a null call's response, with 32 bytes of header"};
constexpr Flag kRfpRetries{.name = "retries",
                           .kind = FlagKind::count,
                           .value = "R",
                           .fallback = "5",
                           .help = "failed reads after which a call counts as slow, 1 to 1000000",
                           .check = flags::check_between<1, 1'000'000>};
constexpr Flag kRfpDepth{
    .name = "depth", .kind = FlagKind::sweep_counts, .value = "N,N", .fallback = "1", .help = "calls in flight"};
constexpr auto kRfpFlagTable =
    flags::join(flags::list(&kRfpTransports, &kRfpOp, &kRfpSize, &kRfpBlocks, &kRfpFetch, &kRfpRetries, &kRfpDepth,
                            &kXferDevices, &kTime, &kFormat, &flags::kOutput),
                flags::kEveryRun);

constexpr uint32_t kResponseBytesMax = 4096;
constexpr Duration kCallMax = 15s;  // one call, however loaded the machine is

enum class RfpOp : uint8_t { call, lookup, calibrate };
constexpr std::array<std::string_view, 3> kRfpOpNames = {"call", "lookup", "calibrate"};
std::string_view name_of(RfpOp op) {
  return kRfpOpNames[static_cast<size_t>(op)];
}

struct RfpPoint {
  std::string transport;
  RfpOp op = RfpOp::call;
  uint64_t bytes = 32, depth = 1;  // bytes of a response
  uint32_t retries = 5;            // R
  uint64_t blocks = 0;             // of a lookup
  uint32_t fetch_bytes = 256;
};

TimePoint clock_now() {
  return SystemClock::instance().now();
}

/// The server's blocks: the even ones of kBlocks.
constexpr uint64_t kBlocks = 200'000;
BlockHash block_of(uint64_t number) {
  BlockHash out;
  const std::array<uint64_t, 2> words{number * 0x9e3779b97f4a7c15, ~number * 0xbf58476d1ce4e5b9};
  std::memcpy(out.bytes.data(), words.data(), sizeof words);
  return out;
}
/// The block of a call's place.
uint64_t number_of(uint64_t call, size_t place) {
  return (call * 7919 + place) % kBlocks;
}

/// The requests of a point, and the server's answers to them.
class RfpCalls {
 public:
  explicit RfpCalls(const RfpPoint& point);
  std::span<const std::byte> request(uint64_t call);
  std::span<const std::byte> answer(std::span<const std::byte> request);
  bool is_right(uint64_t call, std::span<const std::byte> response) const;
  rfp::ClientOptions options() const;

 private:
  RfpPoint point_;
  std::vector<uint64_t> memory_;
  std::optional<kv::BlockTable> table_;
  std::vector<std::byte> request_, response_;
};

RfpCalls::RfpCalls(const RfpPoint& point) : point_(point), request_(sizeof(uint64_t)), response_(point.bytes) {
  if (point.op != RfpOp::lookup) return;
  memory_.resize(kv::BlockTable::bytes_for(kBlocks / 2) / sizeof(uint64_t));
  table_.emplace(std::as_writable_bytes(std::span(memory_)), 1);
  for (uint64_t i = 0; i < kBlocks; i += 2) table_->apply({.hash = block_of(i)});
}

rfp::ClientOptions RfpCalls::options() const {
  rfp::ClientOptions out;
  out.geometry = {.slots = std::bit_ceil(static_cast<uint32_t>(point_.depth)), .response_bytes = kResponseBytesMax};
  if (table_) out.geometry.request_bytes = wire::kLeaseGeometry.request_bytes;
  out.retries_max = point_.retries;
  return out;
}

/// The bytes of a call, until the next call.
std::span<const std::byte> RfpCalls::request(uint64_t call) {
  if (!table_) {
    const uint64_t argument = call * 0x9e3779b97f4a7c15;
    std::memcpy(request_.data(), &argument, sizeof argument);
    return request_;
  }
  std::vector<BlockHash> hashes(point_.blocks);
  for (size_t i = 0; i < hashes.size(); ++i) hashes[i] = block_of(number_of(call, i));
  const auto bytes = wire::encode_lookup(hashes);
  request_.resize(bytes.size());
  std::memcpy(request_.data(), bytes.data(), bytes.size());
  return request_;
}

/// A null call is answered with its own bytes, repeated to the length of a response.
std::span<const std::byte> RfpCalls::answer(std::span<const std::byte> request) {
  if (!table_) {
    for (size_t at = 0; at < response_.size(); at += request.size())
      std::memcpy(response_.data() + at, request.data(), std::min(request.size(), response_.size() - at));
    return response_;
  }
  const auto hashes = wire::decode_lookup({reinterpret_cast<const uint8_t*>(request.data()), request.size()});
  response_.clear();
  if (!hashes) return response_;  // which is wrong
  for (const wire::HeldIn held : table_->find(*hashes)) response_.push_back(static_cast<std::byte>(held));
  return response_;
}

bool RfpCalls::is_right(uint64_t call, std::span<const std::byte> response) const {
  if (response.size() != point_.bytes) return false;
  if (!table_) {
    const uint64_t wanted = call * 0x9e3779b97f4a7c15;
    return std::memcmp(response.data(), &wanted, std::min(sizeof wanted, response.size())) == 0;
  }
  const auto held =
      wire::decode_held({reinterpret_cast<const uint8_t*>(response.data()), response.size()}, point_.blocks);
  if (!held) return false;
  for (size_t i = 0; i < held->size(); ++i) {
    const bool is_there = number_of(call, i) % 2 == 0;
    if ((*held)[i] != (is_there ? wire::HeldIn::memory : wire::HeldIn::none)) return false;
  }
  return true;
}

/// Two engines of this process. The server's thread answers channels until the pair ends.
class RfpPair {
 public:
  static Result<std::unique_ptr<RfpPair>> open(const cli::Args& args, const RfpPoint& point);
  ~RfpPair();

  /// Hands the client's events to its end.
  void turn();
  rfp::ClientEnd& end() { return *end_; }
  xfer::Engine& engine() { return *client_; }
  xfer::PeerId peer() const { return peer_; }
  uint64_t server_operations() const { return server_operations_.load(); }

 private:
  Result<void> connect(const RfpPoint& point);
  void serve(const std::stop_token& stop, const RfpPoint& point);

  std::unique_ptr<xfer::Engine> server_, client_;
  xfer::PeerId peer_{};
  std::unique_ptr<rfp::ClientEnd> end_;
  std::vector<xfer::Event> events_;
  std::atomic<uint64_t> server_operations_{0};  // transfers that the server's end started
  std::jthread thread_;
};

RfpPair::~RfpPair() {
  end_.reset();
  thread_ = {};  // stops and joins
}

Result<std::unique_ptr<RfpPair>> RfpPair::open(const cli::Args& args, const RfpPoint& point) {
  auto pair = std::make_unique<RfpPair>();
  const std::string& devices = args.text(kXferDevices);
  const size_t cut = devices.find('/');
  xfer::Options options{.name = "rfp-server", .transport = point.transport, .spin = 1ms};
  std::random_device random;  // a secret of this run: tcp serves nobody without one
  while (options.secret.size() < 32) options.secret.push_back(static_cast<char>(random()));
  options.rdma_devices = cut == std::string::npos ? devices : devices.substr(cut + 1);
  MC_TRY(server, xfer::open_engine(options));
  options.name = "rfp-client";
  options.rdma_devices = devices.substr(0, cut);
  MC_TRY(client, xfer::open_engine(options));
  pair->server_ = std::move(server);
  pair->client_ = std::move(client);
  pair->thread_ = std::jthread([raw = pair.get(), point](const std::stop_token& stop) { raw->serve(stop, point); });
  MC_CHECK(pair->connect(point));
  return pair;
}

Result<void> RfpPair::connect(const RfpPoint& point) {
  const TimePoint deadline = clock_now() + 5s;
  const auto failed = [&](const std::string& what) {
    return user_error(err::kTransportUnusable, point.transport + ": " + what, "--transport");
  };
  MC_TRY(peer, client_->connect(server_->describe(), deadline));
  peer_ = peer;
  while (!end_ || !end_->ready()) {
    if (clock_now() > deadline) return failed("no channel within 5 s");
    events_.clear();
    (void)client_->poll(events_, clock_now() + 1ms);
    for (const xfer::Event& event : events_) {
      if (event.kind == xfer::Event::Kind::peer_lost) return failed(event.text);
      if (end_) end_->on(event);
      if (event.kind != xfer::Event::Kind::peer_up) continue;
      MC_TRY(end, rfp::ClientEnd::open(*client_, peer_, 1, RfpCalls(point).options()));
      end_ = std::move(end);
    }
    if (!end_) continue;
    end_->run(clock_now());
    if (end_->refused() != Code::ok)
      return failed("the channel was refused: " + std::string(to_string(end_->refused())));
  }
  return {};
}

void RfpPair::turn() {
  events_.clear();
  (void)client_->poll(events_, TimePoint{});
  for (const xfer::Event& event : events_) end_->on(event);
  end_->run(clock_now());
}

void RfpPair::serve(const std::stop_token& stop, const RfpPoint& point) {
  std::unique_ptr<rfp::ServerEnd> end;
  std::vector<xfer::Event> events;
  RfpCalls calls(point);
  while (!stop.stop_requested()) {
    events.clear();
    (void)server_->poll(events, end ? TimePoint{} : clock_now() + 1ms);
    for (const xfer::Event& event : events) {
      if (end) end->on(event);
      if (end || event.kind != xfer::Event::Kind::notify) continue;
      if (const auto asked = wire::decode_rfp_open(event.bytes)) {
        auto opened = rfp::ServerEnd::open(*server_, event.peer, *asked, 1);
        if (opened) end = std::move(*opened);
      }
    }
    if (!end) continue;
    end->run();
    bool idle = true;
    while (const auto request = end->poll(clock_now())) {
      idle = false;
      end->publish(request->sequence, 0, calls.answer(end->payload(*request)), clock_now());
      end->run();
    }
    server_operations_.store(end->figures().writes);
    if (idle) std::this_thread::yield();
  }
}

struct CallFigures {
  uint64_t calls = 0, failed = 0, pushed = 0, reads = 0, writes = 0, server_operations = 0;
  Duration elapsed{};
  Histogram latency_us;
};

Result<CallFigures> run_calls(RfpPair& pair, const RfpPoint& point, Duration duration) {
  CallFigures out;
  RfpCalls calls(point);
  rfp::Client& client = pair.end().client();
  const rfp::EndFigures before = pair.end().figures();
  const uint64_t operations = pair.server_operations();
  std::vector<TimePoint> starts(std::bit_ceil(point.depth));
  const TimePoint start = clock_now();
  uint64_t open = 0, begun = 0;  // the number of a call is the sequence that it gets
  TimePoint now = start;
  while (now - start < duration || open > 0) {
    while (open < point.depth && client.free() && now - start < duration) {
      MC_TRY(sequence,
             client.call(pair.end().memory(), 0, calls.request(++begun), point.fetch_bytes, now, after(now, kCallMax)));
      starts[sequence % starts.size()] = now;
      ++open;
    }
    pair.turn();
    now = clock_now();
    bool idle = true;
    while (const auto answer = client.take(pair.end().memory())) {
      idle = false;
      if (answer->code != Code::ok)
        return user_error(err::kPeerLost, "a call failed: " + std::string(to_string(answer->code)));
      out.failed += !calls.is_right(answer->sequence, answer->payload);
      out.pushed += answer->pushed;
      out.latency_us.record(to_seconds(now - starts[answer->sequence % starts.size()]) * 1e6);
      client.finish(answer->sequence);
      ++out.calls;
      --open;
    }
    if (idle) std::this_thread::yield();
  }
  out.elapsed = now - start;
  out.reads = pair.end().figures().reads - before.reads;
  out.writes = pair.end().figures().writes - before.writes;
  out.server_operations = pair.server_operations() - operations;
  return out;
}

/// Transfers per second, one at a time.
Result<double> rate_of(RfpPair& pair, rfp::Window& window, std::span<std::byte> local, bool read, Duration duration) {
  std::vector<rfp::WindowDone> done;
  std::vector<xfer::Event> events;
  const TimePoint start = clock_now();
  uint64_t count = 0;
  while (clock_now() - start < duration) {
    done.clear();
    if (read)
      window.read(0, local, 0);
    else
      window.write(0, local, 0);
    while (done.empty()) {
      events.clear();
      (void)pair.engine().poll(events, TimePoint{});
      for (const xfer::Event& event : events) window.on(event);
      window.ended(done);
      if (clock_now() - start > duration + 5s) return user_error(err::kPeerLost, "a transfer does not end");
    }
    if (done[0].code != Code::ok)
      return user_error(err::kPeerLost, "a transfer failed: " + std::string(to_string(done[0].code)));
    ++count;
  }
  return static_cast<double>(count) / to_seconds(clock_now() - start);
}

Result<Json> measure_parameters(const cli::Args& args, RfpPair& pair, const RfpPoint& point) {
  const rfp::WindowEntry* entry = rfp::window_to(pair.engine(), pair.peer());
  if (entry == nullptr || !entry->fetches)
    return user_error(err::kUsage, "--op calibrate: " + point.transport + " has no reads to measure", "--op");
  const wire::RfpOpened& opened = pair.end().opened();
  MC_TRY(window,
         entry->open(
             {.engine = &pair.engine(), .peer = pair.peer(), .written = opened.requests, .read = opened.responses}));
  rfp::ReadRates rates{};
  Json reads = Json::array();
  rfp::SizeCounts sizes;
  sizes.record(static_cast<uint32_t>(point.bytes + wire::kRfpHeaderBytes));
  const auto local = pair.end().memory().local;
  const Duration each = args.duration(kTime) / (rfp::kFetchSizes.size() + 1);
  size_t best = 0;
  for (size_t i = 0; i < rates.size(); ++i) {
    MC_TRY(rate, rate_of(pair, *window, local.first(rfp::kFetchSizes[i]), true, each));
    rates[i] = rate;
    reads.push(Json::object({{"bytes", rfp::kFetchSizes[i]}, {"reads_per_s", rate}}));
    if (sizes.rate(i, rates) > sizes.rate(best, rates)) best = i;
  }
  MC_TRY(writes, rate_of(pair, *window, local.first(rfp::kFetchSizes[0]), false, each));
  Json out = Json::object({{"type", "point"}, {"op", name_of(point.op)}, {"transport", point.transport}});
  out.set("size_bytes", point.bytes).set("reads", std::move(reads)).set("writes_per_s", writes);
  out.set("retries_bound", rfp::retries_bound(rates[0], writes)).set("fetch_bytes", rfp::kFetchSizes[best]);
  return std::move(out.set("failed", 0));
}

Result<Json> measure_point(const cli::Args& args, const RfpPoint& point) {
  MC_TRY(pair, RfpPair::open(args, point));
  if (point.op == RfpOp::calibrate) return measure_parameters(args, *pair, point);
  MC_TRY(figures, run_calls(*pair, point, args.duration(kTime)));
  const double calls = static_cast<double>(std::max<uint64_t>(figures.calls, 1));
  Json out = Json::object({{"type", "point"}, {"op", name_of(point.op)}, {"transport", point.transport}});
  out.set("size_bytes", point.bytes).set("depth", point.depth).set("fetch_bytes", uint64_t{point.fetch_bytes});
  out.set("retries_max", point.retries);
  if (point.blocks > 0) {
    out.set("blocks", point.blocks);
    out.set("blocks_per_s", static_cast<double>(figures.calls * point.blocks) / to_seconds(figures.elapsed));
  }
  out.set("calls", figures.calls).set("failed", figures.failed).set("duration_s", to_seconds(figures.elapsed));
  out.set("calls_per_s", static_cast<double>(figures.calls) / to_seconds(figures.elapsed));
  out.set("latency_us_p50", figures.latency_us.quantile(.5)).set("latency_us_p99", figures.latency_us.quantile(.99));
  out.set("reads_per_call", static_cast<double>(figures.reads) / calls);
  out.set("writes_per_call", static_cast<double>(figures.writes) / calls);
  return std::move(out.set("pushed_calls", figures.pushed).set("server_operations", figures.server_operations));
}

std::vector<std::string> rfp_cells(const RfpPoint& point, const Json& row) {
  const auto number = [&](const char* key, int decimals) {
    return row.has(key) ? fixed(row[key].as_double(), decimals) : std::string("-");
  };
  return {point.transport,
          std::string(name_of(point.op)),
          point.blocks > 0 ? std::to_string(point.blocks) + " blocks" : human_bytes(point.bytes),
          std::to_string(point.depth),
          number("calls_per_s", 0),
          number("latency_us_p50", 1),
          number("latency_us_p99", 1),
          number("reads_per_call", 2),
          number("pushed_calls", 0),
          number("server_operations", 0),
          number("retries_bound", 0),
          number("fetch_bytes", 0)};
}

/// A lookup: the answer has one byte for each block, and is fetched as nodes do it (host/lease_channels.h).
Result<RfpPoint> lookup_point(RfpPoint point, uint64_t blocks) {
  if (blocks == 0 || blocks > wire::kLookupBlocksMax) return bad_value(kRfpBlocks, "1 to 1000");
  point.blocks = point.bytes = blocks;
  point.fetch_bytes = static_cast<uint32_t>(wire::kRfpHeaderBytes + blocks + 7) / 8 * 8;
  return point;
}

Result<RfpPoint> call_point(RfpPoint point, uint64_t bytes) {
  if (bytes < 8 || bytes > kResponseBytesMax - wire::kRfpHeaderBytes) return bad_value(kRfpSize, "8 to 4064 bytes");
  point.bytes = bytes;
  return point;
}

Result<std::vector<RfpPoint>> rfp_points(const cli::Args& args) {
  MC_TRY(sizes, parse_sweep_bytes(args.text(kRfpSize)));
  MC_TRY(blocks, parse_sweep_counts(args.text(kRfpBlocks)));
  MC_TRY(depths, parse_sweep_counts(args.text(kRfpDepth)));
  if (args.bytes(kRfpFetch) < 64 || args.bytes(kRfpFetch) > kResponseBytesMax)
    return bad_value(kRfpFetch, "64 to 4096 bytes");
  std::vector<RfpPoint> out;
  for (const std::string& word : args.list(kRfpOp)) {
    const auto named = std::ranges::find(kRfpOpNames, word);
    if (named == kRfpOpNames.end()) return bad_value(kRfpOp, "'" + word + "' is none of call, lookup, calibrate");
    RfpPoint point;
    point.op = static_cast<RfpOp>(named - kRfpOpNames.begin());
    point.retries = static_cast<uint32_t>(args.count(kRfpRetries));
    point.fetch_bytes = static_cast<uint32_t>(args.bytes(kRfpFetch));
    for (const std::string& transport : args.list(kRfpTransports))
      for (const uint64_t amount : point.op == RfpOp::lookup ? blocks : sizes)
        for (const uint64_t depth : depths) {
          point.transport = transport;
          point.depth = depth;
          if (depth == 0 || depth > wire::kRfpSlotsMax) return bad_value(kRfpDepth, "1 to 64");
          MC_TRY(whole, point.op == RfpOp::lookup ? lookup_point(point, amount) : call_point(point, amount));
          out.push_back(std::move(whole));
        }
  }
  return out;
}

}  // namespace

const cli::FlagList kRfpFlags = kRfpFlagTable;

Result<int> measure_fetching(const cli::Args& args) {
  MC_TRY(points, rfp_points(args));
  MC_TRY(rows, Rows::open(args, "mc.bench.rfp.v1",
                          Table({"via", "op", "size", "depth", "calls/s", "p50 us", "p99 us", "reads", "pushed",
                                 "served", "R", "F"})));
  uint64_t failed = 0;
  for (const RfpPoint& point : points) {
    MC_TRY(row, measure_point(args, point));
    failed += static_cast<uint64_t>(row["failed"].as_int());
    auto cells = rfp_cells(point, row);
    MC_CHECK(rows->add(std::move(row), std::move(cells)));
  }
  rows->fact("failed", failed);
  MC_CHECK(rows->finish());
  return failed == 0 ? 0 : 1;
}

}  // namespace mc::bench
