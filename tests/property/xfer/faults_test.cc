// Random work under random faults, by seed: every batch ends by its deadline, bytes are right or the
// request says otherwise, memory that was handed back stays untouched, and nothing is left over.
#include <algorithm>
#include <map>

#include "base/hash.h"
#include "unit/xfer/pair.h"

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

constexpr size_t kSlot = size_t{1} << 19;  // bytes of local memory a batch owns
constexpr size_t kSlots = 8;

struct Case {
  std::string transport;
  FaultPlan faults;
  Duration spin{};  // of the reader: its caller posts what is small and plain itself
};

Case draw(Rng& rng) {
  Case out;
  const char* transports[] = {"tcp", "tcp-uring", "shm", "auto"};
  out.transport = transports[rng.below(4)];
  out.faults.seed = rng.next();
  const auto maybe = [&](double most) { return rng.chance(0.4) ? rng.uniform() * most : 0.0; };
  out.faults.fail_submit = maybe(0.2);
  out.faults.fail_completion = maybe(0.2);
  out.faults.delay = maybe(0.5);
  out.faults.delay_for = Duration(static_cast<int64_t>(rng.below(3'000'000)));
  out.faults.drop_completion = maybe(0.02);
  out.faults.duplicate_completion = maybe(0.3);
  out.faults.corrupt = maybe(0.1);
  out.faults.lose_peer = maybe(0.05);
  if (rng.chance(0.3)) out.spin = 100us;
  return out;
}

size_t edge_size(Rng& rng, size_t most) {
  const size_t sizes[] = {0, 1, 63, 64, 65, 4095, 4096, 4097, 65535, 65536, 65537, most};
  return rng.chance(0.5) ? std::min(most, sizes[rng.below(std::size(sizes))]) : rng.below(most + 1);
}

/// One batch in flight and what it should bring.
struct Flight {
  BatchId id{};
  std::vector<Request> requests;
  TimePoint deadline;
  bool cancelled = false;
};

class World {
 public:
  World(uint64_t seed)
      : rng_(seed), case_(draw(rng_)), pair_(case_.transport, size_t{8} << 20, {}, reader_options(case_)) {
    for (size_t slot = 0; slot < kSlots; ++slot) free_.push_back(slot);
  }

  Counters counters() { return pair_.reader->counters(); }

  void run(int batches) {
    for (int i = 0; i < batches; ++i) {
      while (free_.empty()) {
        if (flights_.empty())
          wake_resting();
        else
          finish_one();
      }
      submit();
      if (rng_.chance(0.05)) {
        const auto victim = flights_.begin();
        victim->second.cancelled = true;
        pair_.reader->cancel(victim->second.id);
      }
    }
    while (!flights_.empty()) finish_one();
    check_rest();
  }

 private:
  static Options reader_options(const Case& drawn) {
    Options options;
    options.faults = drawn.faults;
    options.spin = drawn.spin;
    options.backoff_min = 1ms;
    options.backoff_max = 5ms;
    options.slice_bytes_min = 4096;
    options.slice_bytes_max = 65536;
    options.drain_grace = 20ms;
    return options;
  }

  void submit() {
    const size_t slot = free_.back();
    free_.pop_back();
    std::span<std::byte> local = pair_.local.bytes().subspan(slot * kSlot, kSlot);
    std::memset(local.data(), 0xA5, local.size());
    Flight flight;
    size_t at = 0;
    for (size_t count = 1 + rng_.below(12); count > 0; --count) {
      const size_t bytes = edge_size(rng_, (kSlot - at) / count);
      Request request{
          .op = rng_.chance(0.3) ? Op::write : Op::read, .peer = pair_.peer, .local = local.subspan(at, bytes)};
      at += bytes;
      if (request.op == Op::write) {
        request.buffer = pair_.landing_id;
        request.offset = slot * kSlot + static_cast<size_t>(request.local.data() - local.data());
        fill(request.local, rng_.next());
      } else {
        request.buffer = pair_.kv_id;
        request.offset = rng_.below(pair_.kv.size() - bytes + 1);
        // without faults that change bytes some go unchecked, as some callers do
        if (case_.faults.corrupt > 0 || rng_.chance(0.7))
          request.crc32c = crc32c(pair_.kv.bytes().subspan(request.offset, bytes));
      }
      flight.requests.push_back(request);
    }
    flight.deadline = in(case_.faults.drop_completion > 0 ? Duration(30ms) : Duration(5s));
    auto id = pair_.reader->submit(flight.requests, flight.deadline, slot);
    REQUIRE_OK(id);
    flight.id = *id;
    flights_[slot] = std::move(flight);
  }

  void finish_one() {
    const Event event = pair_.reader.wait([](const Event& e) { return e.kind == Event::Kind::batch_done; });
    const auto slot = static_cast<size_t>(event.cookie);
    const Flight flight = std::move(flights_.at(slot));
    flights_.erase(slot);
    // A batch ends at its deadline at the latest, also when its completion was dropped. The bound is that of a hang:
    // this thread shares a busy machine with other tests, and handles the ends of up to all slots in turn.
    CHECK(SystemClock::instance().now() < flight.deadline + 10s);
    const auto results = pair_.reader->results(flight.id);
    REQUIRE(results.size() == flight.requests.size());
    Code worst = Code::ok;
    for (size_t i = 0; i < results.size(); ++i) {
      const Request& request = flight.requests[i];
      CAPTURE(i);
      if (results[i].code != Code::ok) {
        worst = results[i].code;
        CHECK((flight.cancelled || results[i].code != Code::cancelled));
        continue;
      }
      CHECK(results[i].bytes == request.local.size());
      const auto theirs =
          request.op == Op::read ? std::as_const(pair_.kv).bytes() : std::as_const(pair_.landing).bytes();
      CHECK(equal(request.local, theirs.subspan(request.offset, request.local.size())));
    }
    CHECK((event.code == Code::ok) == (worst == Code::ok));
    REQUIRE_OK(pair_.reader->close(flight.id, in(kLong)));
    // the memory is ours again: nothing may write into it now
    if (worst != Code::ok) {
      const std::span<std::byte> local = pair_.local.bytes().subspan(slot * kSlot, kSlot);
      std::memset(local.data(), 0x3C, local.size());
      resting_.push_back(slot);
      return;
    }
    free_.push_back(slot);
    if (resting_.size() > kSlots / 2) wake_resting();
  }

  void wake_resting() {
    for (const size_t slot : resting_) {
      const std::span<std::byte> local = pair_.local.bytes().subspan(slot * kSlot, kSlot);
      CHECK(std::all_of(local.begin(), local.end(), [](std::byte b) { return b == std::byte{0x3C}; }));
      free_.push_back(slot);
    }
    resting_.clear();
  }

  void check_rest() {
    wake_resting();
    const Counters counters = pair_.reader->counters();
    CHECK(counters.slices_in_flight == 0);
    CHECK(counters.quarantined_bytes == 0);
    CHECK(counters.batches_open == 0);
    CHECK(counters.batches_done == counters.batches_submitted);
    REQUIRE_OK(pair_.reader->unregister(pair_.local_id, in(kLong)));
    REQUIRE_OK(pair_.holder->unregister(BufferId{pair_.kv_id}, in(kLong)));
    REQUIRE_OK(pair_.holder->unregister(BufferId{pair_.landing_id}, in(kLong)));
  }

  Rng rng_;
  Case case_;
  Pair pair_;
  std::vector<size_t> free_;
  std::vector<size_t> resting_;
  std::map<size_t, Flight> flights_;
};

}  // namespace

TEST_CASE("xfer: whatever faults are thrown, every batch ends and nothing is left") {
  uint64_t retried = 0, unknown = 0, corrupt = 0, lost = 0;
  for (uint64_t i = 0; i < 24; ++i) {
    const uint64_t seed = mc::test::seed() * 1000 + i;
    CAPTURE(seed);
    World world(seed);
    world.run(40);
    const Counters counters = world.counters();
    retried += counters.slices_retried;
    unknown += counters.completions_unknown;
    corrupt += counters.checksum_failures;
    lost += counters.peers_lost;
  }
  // the dice really fell on every kind
  CHECK(retried > 0);
  CHECK(unknown > 0);
  CHECK(corrupt > 0);
  CHECK(lost > 0);
}
