// `mc-bench kv`: put, get and exist of the store of values on a cache node, through its HTTP door and the C++ client
// that other programs use. Clients are threads with a connection each, and each sends its next call when the last one
// has ended, so latencies are those of a closed loop. Every value that comes back is checked against its CRC32C. The
// values are removed at the end.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

#include "base/errors.h"
#include "base/histogram.h"
#include "base/rng.h"
#include "base/units.h"
#include "print.h"
#include "product/doors.h"
#include "product/flags.h"
#include "rows.h"
#include "verbs.h"
#include "verbs/client_key.h"
#include "verbs/node_place.h"
#include "verbs/store_client.h"
#include "verbs/store_verbs.h"

namespace mc::bench {
namespace {

constexpr size_t kKeysMax = 1'000'000;

constexpr Flag kKvOp{.name = "op",
                     .kind = FlagKind::list,
                     .value = "O,O",
                     .fallback = "put,get,exist",
                     .help = "put replaces values, get reads them, exist asks for their size"};
constexpr Flag kKvValue{.name = "value",
                        .kind = FlagKind::sweep_bytes,
                        .value = "SIZES",
                        .fallback = "64KiB",
                        .help = "bytes of a value: 64KiB-16MiB*4"};
constexpr Flag kKvClients{.name = "clients",
                          .kind = FlagKind::sweep_counts,
                          .value = "N,N",
                          .fallback = "1",
                          .help = "threads with a connection each: 1-16*2"};
constexpr Flag kKvBatch{
    .name = "batch", .kind = FlagKind::sweep_counts, .value = "N,N", .fallback = "1", .help = "values of one call"};
constexpr Flag kKvKeys{.name = "keys",
                       .kind = FlagKind::count,
                       .value = "N",
                       .fallback = "32",
                       .help = "keys in use; more than the node holds makes gets that miss"};
constexpr Flag kKvZipf{.name = "zipf",
                       .kind = FlagKind::number,
                       .value = "S",
                       .fallback = "0",
                       .help = "exponent of the keys' popularity; 0 = all keys alike"};
constexpr auto kKvFlagTable = flags::join(
    flags::list(&kKvOp, &kKvValue, &kKvClients, &kKvBatch, &kKvKeys, &kKvZipf, &kStoreTime, &flags::kDurability,
                &flags::kAdminKeyFile, &flags::kApiKeyFile, &flags::kApiKey, &flags::kSeed, &kFormat, &flags::kOutput),
    flags::kEveryRun);

enum class KvOp : uint8_t { put, get, exist };
constexpr std::string_view kKvOpNames[] = {"put", "get", "exist"};

struct KvPoint {
  KvOp op = KvOp::put;
  uint64_t value_bytes = 0, clients = 1, batch = 1;
  uint64_t keys = 1, seed = 0;
  double zipf = 0;
  Duration time{};
  node::Durability durability = node::Durability::d0;
  node::ValueTerms terms() const { return {.replaces = true, .durability = durability}; }
};

constexpr door::ValueTier kTiers[] = {door::ValueTier::memory, door::ValueTier::disk, door::ValueTier::remote};

struct KvFigures {
  /// Values that came from one tier, and the time of the calls whose values all came from it.
  struct OfTier {
    uint64_t values = 0;
    Histogram latency_us;
  };
  uint64_t calls = 0, values = 0, misses = 0;
  Histogram latency_us;
  OfTier tiers[std::size(kTiers)];
  std::optional<Error> error;
  OfTier& of(door::ValueTier tier) { return tiers[static_cast<size_t>(tier)]; }
  const OfTier& of(door::ValueTier tier) const { return tiers[static_cast<size_t>(tier)]; }
  void merge(const KvFigures& other) {
    calls += other.calls, values += other.values, misses += other.misses;
    latency_us.merge(other.latency_us);
    for (const door::ValueTier tier : kTiers) {
      of(tier).values += other.of(tier).values;
      of(tier).latency_us.merge(other.of(tier).latency_us);
    }
    if (!error) error = other.error;
  }
};

/// Counts where the values of a call of gets came from.
void count_tiers(const std::vector<verbs::StoreClient::Item>& items, double call_us, KvFigures& figures) {
  const auto first = items.front().tier;
  for (const auto& item : items)
    if (item.tier) ++figures.of(*item.tier).values;
  const bool is_one = std::ranges::all_of(items, [&](const auto& item) { return item.tier == first; });
  if (first && is_one) figures.of(*first).latency_us.record(call_us);
}

/// Draws keys by their popularity: key k has the weight 1 / (k + 1)^s.
class KeyDraw {
 public:
  KeyDraw(uint64_t keys, double s) {
    double sum = 0;
    for (uint64_t k = 0; k < keys; ++k) ends_.push_back(sum += std::pow(static_cast<double>(k + 1), -s));
  }
  uint64_t next(Rng& rng) const {
    const auto at = std::upper_bound(ends_.begin(), ends_.end(), rng.uniform() * ends_.back());
    return std::min<uint64_t>(static_cast<uint64_t>(at - ends_.begin()), ends_.size() - 1);
  }

 private:
  std::vector<double> ends_;
};

std::string key_of(const KvPoint& point, uint64_t number) {
  return "mc-bench-kv/" + std::to_string(point.seed) + "/" + std::to_string(number);
}

/// Bytes that differ from value to value and do not compress.
std::string value_of(const KvPoint& point, Rng& rng) {
  std::string out(static_cast<size_t>(point.value_bytes), '\0');
  for (size_t i = 0; i < out.size(); i += sizeof(uint64_t)) {
    const uint64_t word = rng.next();
    std::memcpy(out.data() + i, &word, std::min(sizeof word, out.size() - i));
  }
  return out;
}

/// One call of a client, counted in `figures`.
Result<void> one_call(verbs::StoreClient& store, const KvPoint& point, const KeyDraw& draw, Rng& rng,
                      std::vector<verbs::StoreClient::Item>& items, KvFigures& figures) {
  for (auto& item : items) item.key = key_of(point, draw.next(rng)), item.error.reset(), item.tier.reset();
  const TimePoint start = steady_now();
  uint64_t misses = 0;
  if (point.batch == 1 && point.op == KvOp::exist) {
    MC_TRY(bytes, store.exist(items[0].key));
    misses += !bytes;
  } else if (point.op == KvOp::exist) {
    MC_CHECK(store.exist_all(items));
    for (const auto& item : items) {
      if (item.error) return *item.error;
      misses += !item.bytes;
    }
  } else if (point.batch == 1 && point.op == KvOp::put) {
    MC_CHECK(store.put(items[0].key, items[0].value, point.terms()));
  } else if (point.batch == 1) {
    const auto got = store.get(items[0]);
    if (!got && got.error().mc != err::kNotFound) return got.error();
    misses += !got;
  } else {
    MC_CHECK(point.op == KvOp::put ? store.put_all(items, point.terms()) : store.get_all(items));
    for (const auto& item : items) {
      if (item.error && item.error->mc != err::kNotFound) return *item.error;
      misses += item.error.has_value();
    }
  }
  const double call_us = to_seconds(steady_now() - start) * 1e6;
  figures.latency_us.record(call_us);
  if (point.op == KvOp::get) count_tiers(items, call_us, figures);
  ++figures.calls;
  figures.values += items.size() - misses;
  figures.misses += misses;
  return {};
}

KvFigures run_client(verbs::StoreClient& store, const KvPoint& point, const KeyDraw& draw, uint64_t number,
                     TimePoint end) {
  KvFigures figures;
  Rng rng(point.seed * 1'000'003 + number);
  std::vector<verbs::StoreClient::Item> items(static_cast<size_t>(point.batch));
  if (point.op == KvOp::put)
    for (auto& item : items) item.value = value_of(point, rng);
  while (steady_now() < end && !figures.error)
    if (auto called = one_call(store, point, draw, rng, items, figures); !called) figures.error = called.error();
  return figures;
}

class KvTarget {
 public:
  static Result<std::unique_ptr<KvTarget>> open(const cli::Args& args) {
    auto target = std::make_unique<KvTarget>();
    MC_TRY(headers, verbs::key_headers(args));
    MC_TRY(place, verbs::place_of(args.positional_one("NODE"), !headers.empty()));
    target->place_ = std::move(place);
    target->headers_ = std::move(headers);
    return target;
  }

  /// Puts all keys once, so that gets find them.
  Result<void> fill(const KvPoint& point) {
    MC_TRY(store, connect());
    Rng rng(point.seed);
    for (uint64_t k = 0; k < point.keys; ++k)
      MC_CHECK(store->put(key_of(point, k), value_of(point, rng), point.terms()));
    return {};
  }
  Result<void> clear(const KvPoint& point) {
    MC_TRY(store, connect());
    for (uint64_t k = 0; k < point.keys;) {
      std::vector<verbs::StoreClient::Item> items;
      for (; k < point.keys && items.size() < verbs::StoreClient::kItemsMax; ++k)
        items.push_back({key_of(point, k), {}});
      MC_CHECK(store->remove_all(items));
      for (const auto& item : items)
        if (item.error && item.error->mc != err::kNotFound) return *item.error;
    }
    return {};
  }

  Result<std::pair<KvFigures, double>> run(const KvPoint& point) {
    std::vector<std::unique_ptr<verbs::StoreClient>> stores;
    for (uint64_t i = 0; i < point.clients; ++i) {
      MC_TRY(store, connect());
      MC_CHECK(store->exist(key_of(point, 0)));  // the connection stands before the clock runs
      stores.push_back(std::move(store));
    }
    const KeyDraw draw(point.keys, point.zipf);
    KvFigures all;
    std::mutex mutex;
    std::vector<std::thread> threads;
    const TimePoint start = steady_now(), end = after(start, point.time);
    for (uint64_t i = 0; i < point.clients; ++i)
      threads.emplace_back([&, i] {
        const KvFigures figures = run_client(*stores[i], point, draw, i, end);
        const std::lock_guard lock(mutex);
        all.merge(figures);
      });
    for (std::thread& thread : threads) thread.join();
    if (all.error) return *all.error;
    return std::pair(all, to_seconds(steady_now() - start));
  }

 private:
  Result<std::unique_ptr<verbs::StoreClient>> connect() const {
    return verbs::StoreClient::open(place_, {.headers = headers_, .tenant = {}, .timeout = 60s});
  }

  std::string place_;
  http::Headers headers_;
};

Result<std::vector<KvPoint>> kv_points(const cli::Args& args) {
  KvPoint point{.keys = args.count(kKvKeys),
                .seed = args.count(flags::kSeed),
                .zipf = args.number(kKvZipf),
                .time = args.duration(kStoreTime),
                .durability = choice_of(args, flags::kDurability)};
  if (point.keys == 0 || point.keys > kKeysMax) return bad_value(kKvKeys, "1 to " + std::to_string(kKeysMax));
  if (!(point.zipf >= 0 && point.zipf <= 10)) return bad_value(kKvZipf, "0 to 10");
  std::vector<KvPoint> out;
  for (const std::string& name : args.list(kKvOp)) {
    const auto found = std::find(std::begin(kKvOpNames), std::end(kKvOpNames), name);
    if (found == std::end(kKvOpNames)) return bad_value(kKvOp, "'" + name + "' is none of put, get, exist");
    point.op = static_cast<KvOp>(found - std::begin(kKvOpNames));
    for (const uint64_t bytes : args.sweep(kKvValue))
      for (const uint64_t clients : args.sweep(kKvClients))
        for (const uint64_t batch : args.sweep(kKvBatch)) {
          if (bytes > (uint64_t{64} << 20)) return bad_value(kKvValue, "at most 64MiB");
          if (clients == 0 || clients > 256) return bad_value(kKvClients, "1 to 256");
          if (batch == 0 || batch > 1024 || batch * bytes > (uint64_t{64} << 20))
            return bad_value(kKvBatch, "1 to 1024, and 64MiB of values at most");
          point.value_bytes = bytes, point.clients = clients, point.batch = batch;
          out.push_back(point);
        }
  }
  return out;
}

Json describe(const KvPoint& point, const KvFigures& figures, double seconds) {
  Json out = Json::object({{"type", "point"}, {"op", kKvOpNames[static_cast<size_t>(point.op)]}});
  out.set("value_bytes", point.value_bytes).set("clients", point.clients).set("batch", point.batch);
  out.set("durability", node::kDurabilityNames[static_cast<size_t>(point.durability)]);
  out.set("keys", point.keys).set("zipf", point.zipf).set("duration_s", seconds);
  const double rate = static_cast<double>(figures.values) / seconds;
  out.set("calls", figures.calls).set("values", figures.values).set("misses", figures.misses);
  out.set("values_per_s", rate);
  out.set("bytes_per_s", point.op == KvOp::exist ? 0.0 : rate * static_cast<double>(point.value_bytes));
  out.set("latency_us_mean", figures.latency_us.mean()).set("latency_us_p50", figures.latency_us.quantile(.5));
  out.set("latency_us_p99", figures.latency_us.quantile(.99));
  if (point.op != KvOp::get) return out;
  for (const door::ValueTier tier : kTiers) {
    const KvFigures::OfTier& part = figures.of(tier);
    const std::string name(to_string(tier));
    out.set(name + "_values", part.values);
    const bool is_timed = part.latency_us.count() > 0;
    out.set(name + "_latency_us_p50", is_timed ? Json(part.latency_us.quantile(.5)) : Json(nullptr));
    out.set(name + "_latency_us_p99", is_timed ? Json(part.latency_us.quantile(.99)) : Json(nullptr));
  }
  return out;
}

std::vector<std::string> kv_cells(const Json& row) {
  const auto number = [&](const char* key, double unit, int decimals) {
    return fixed(row[key].as_double() / unit, decimals);
  };
  return {std::string(row["op"].as_string()),
          human_bytes(static_cast<uint64_t>(row["value_bytes"].as_int())),
          std::to_string(row["clients"].as_int()),
          std::to_string(row["batch"].as_int()),
          number("bytes_per_s", 1e6, 1),
          number("values_per_s", 1, 0),
          number("latency_us_p50", 1, 0),
          number("latency_us_p99", 1, 0),
          std::to_string(row["misses"].as_int()),
          row.has("disk_values") ? std::to_string(row["disk_values"].as_int()) : "-",
          row["disk_latency_us_p50"].is_number() ? number("disk_latency_us_p50", 1, 0) : "-"};
}

}  // namespace

const cli::FlagList kKvFlags = kKvFlagTable;

Result<int> measure_values(const cli::Args& args) {
  MC_TRY(points, kv_points(args));
  MC_TRY(rows, Rows::open(args, "mc.bench.kv.v1",
                          Table({"op", "value", "clients", "batch", "MB/s", "val/s", "p50 us", "p99 us", "misses",
                                 "from disk", "disk p50 us"})));
  MC_TRY(target, KvTarget::open(args));
  for (const KvPoint& point : points) {
    if (point.op != KvOp::put) MC_CHECK(target->fill(point));
    auto done = target->run(point);
    MC_CHECK(target->clear(point));
    MC_TRY(figures, std::move(done));
    Json row = describe(point, figures.first, figures.second);
    auto cells = kv_cells(row);
    MC_CHECK(rows->add(std::move(row), std::move(cells)));
  }
  MC_CHECK(rows->finish());
  return 0;
}

}  // namespace mc::bench
