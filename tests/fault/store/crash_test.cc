// Power cuts at every step of random histories. After each the store must hold what some prefix of the operations
// leaves, with every operation that was acknowledged as durable, and never other bytes. Histories go on after a cut, so
// that what one life left behind meets the next one.
#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "count.h"
#include "fault/store/power_cut.h"
#include "store/pages.h"
#include "store/store.h"
#include "test.h"

using namespace mc;
using namespace mc::store;
using store_test::PowerCut;
using store_test::Recorder;

namespace {

constexpr size_t kIds = 12;
constexpr uint64_t kSegment = 64 << 10;

Options options_of(uint64_t capacity) {
  return {.capacity_bytes = capacity, .segment_bytes = kSegment, .id = {{0x17}}};
}

using Versions = std::array<uint32_t, kIds>;  // 0 = no block

Id128 id_of(size_t n) {
  Id128 id;
  id.bytes[0] = static_cast<uint8_t>(n * 29 + 1);
  id.bytes[15] = static_cast<uint8_t>(n);
  return id;
}

/// Bytes of a version of a block: its own length and content.
std::vector<std::byte> content_of(size_t n, uint32_t version) {
  static constexpr size_t kSizes[] = {16, 511, 4095, 4096, 4097, 8192, 9000, 20480};
  Rng rng(n * 1000003 + version);
  std::vector<std::byte> out(kSizes[rng.below(std::size(kSizes))]);
  for (size_t at = 0; at < out.size(); at += sizeof(uint64_t)) {
    const uint64_t word = rng.next();
    std::memcpy(out.data() + at, &word, std::min(sizeof word, out.size() - at));
  }
  return out;
}

/// One call of the store: it made the states [first, end), and was under way between two events of the disk.
struct Call {
  size_t first = 0, end = 0;
  size_t begin_event = 0, end_event = 0;
  bool durable = false;
};

struct History {
  std::vector<Versions> states;  // [k] = after k single operations
  std::vector<Versions> live;    // what the store had in its index then
  std::vector<Call> calls;
};

Versions live_versions(const Store& store, const Versions& state) {
  Versions out{};
  for (size_t n = 0; n < kIds; ++n)
    if (store.find(id_of(n))) out[n] = state[n];
  return out;
}

class Life {
 public:
  /// `earlier`: what happened to the disk since `before`, by a process that was killed: not all of it was flushed.
  Life(DiskImage before, std::vector<Recorder::Event> earlier, uint64_t capacity, Versions start, uint32_t& version,
       Rng& rng)
      : before_(std::move(before)), rng_(rng), version_(version) {
    recorder.events = std::move(earlier);
    DiskImage image = PowerCut::all(before_, recorder.events);
    const size_t begin = recorder.events.size();
    auto opened = Store::open(std::make_unique<MemoryDisk>(std::move(image), &recorder), options_of(capacity));
    REQUIRE_OK(opened);
    store_ = std::move(*opened);
    history.states.push_back(start);
    history.live.push_back(live_versions(*store_, start));
    // Opening is a call without operations: what it found is durable when it has returned.
    history.calls.push_back({0, 0, begin, recorder.events.size(), true});
  }

  void run(size_t calls) {
    for (size_t i = 0; i < calls; ++i) step();
  }

  /// States [P, S]: what a cut after `count` events may leave.
  std::pair<size_t, size_t> bounds(size_t count) const {
    size_t least = 0, most = 0;
    for (const Call& call : history.calls) {
      if (call.begin_event <= count) most = std::max(most, call.end);
      if (call.durable && call.end_event <= count) least = std::max(least, call.end);
    }
    return {least, most};
  }

  const DiskImage& before() const { return before_; }
  /// Where cuts can be judged: from the beginning, or from the end of the opening after a kill.
  size_t first_cut() const { return history.calls[0].begin_event == 0 ? 0 : history.calls[0].end_event; }
  Recorder recorder;
  History history;

 private:
  void step() {
    Call call{.first = history.states.size() - 1, .begin_event = recorder.events.size()};
    Versions state = history.states.back();
    const Level level = rng_.chance(0.6) ? Level::durable : Level::written;
    call.durable = level == Level::durable;
    const uint64_t kind = rng_.below(20);
    if (kind < 12) {
      put(state, level);
    } else if (kind < 15) {
      drop(state, level);
    } else if (kind < 16) {
      REQUIRE_OK(store_->flush());
      call.durable = true;
    } else if (rng_.chance(0.3)) {
      exchange(state);
      call.durable = true;
    } else if (kind < 17) {
      REQUIRE_OK(store_->maintain());
      call.durable = false;
    } else {
      read(state);
      call.durable = false;
    }
    call.end = history.states.size() - 1;
    call.end_event = recorder.events.size();
    const Versions live = live_versions(*store_, history.states.back());
    // A state that lasts through several calls had a block if it had it after each of them.
    for (size_t n = 0; n < kIds && call.end == call.first; ++n)
      if (live[n] == 0) history.live.back()[n] = 0;
    history.live.resize(history.states.size(), live);
    history.calls.push_back(call);
  }

  void put(Versions state, Level level) {
    const size_t count = 1 + rng_.below(rng_.chance(0.2) ? 6 : 2);
    std::vector<std::vector<std::byte>> values;
    std::vector<Put> puts;
    values.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      const size_t n = rng_.below(kIds);
      state[n] = ++version_;
      history.states.push_back(state);
      values.push_back(content_of(n, version_));
      puts.push_back({.id = id_of(n), .bytes = values.back()});
    }
    REQUIRE_OK(store_->put(puts, level));
  }

  /// One step of the history: no state between the put and the drops is one of those that a cut may leave.
  void exchange(Versions state) {
    const size_t n = rng_.below(kIds);
    std::vector<Id128> ids;
    for (uint64_t i = 0; i < 1 + rng_.below(2); ++i) {
      const size_t dropped = (n + 1 + rng_.below(kIds - 1)) % kIds;
      state[dropped] = 0;
      ids.push_back(id_of(dropped));
    }
    state[n] = ++version_;
    history.states.push_back(state);
    const auto value = content_of(n, version_);
    REQUIRE_OK(store_->exchange({.id = id_of(n), .bytes = value}, ids));
  }

  void drop(Versions state, Level level) {
    std::vector<Id128> ids;
    for (uint64_t i = 0; i < 1 + rng_.below(2); ++i) {
      const size_t n = rng_.below(kIds);
      state[n] = 0;
      history.states.push_back(state);
      ids.push_back(id_of(n));
    }
    REQUIRE_OK(store_->drop(ids, level));
  }

  void read(const Versions& state) {
    const size_t n = rng_.below(kIds);
    std::vector<std::byte> room(20480);
    Get get{.id = id_of(n), .room = room};
    store_->get({&get, 1});
    if (get.code == Code::not_found) return;
    REQUIRE(get.code == Code::ok);
    const auto expected = content_of(n, state[n]);
    REQUIRE(get.bytes == expected.size());
    REQUIRE(std::equal(expected.begin(), expected.end(), room.begin()));
  }

  DiskImage before_;
  Rng& rng_;
  uint32_t& version_;
  std::unique_ptr<Store> store_;
};

/// The content of a store: for each id the version among `states` whose bytes it returns. `wrong` names bytes
/// that no version has.
Versions recovered_versions(Store& store, const History& history, std::string& wrong) {
  Versions out{};
  alignas(4096) static std::array<std::byte, 20480> room;
  for (size_t n = 0; n < kIds; ++n) {
    const auto bytes = store.find(id_of(n));
    if (!bytes) continue;
    Get get{.id = id_of(n), .room = room};
    store.get({&get, 1});
    if (get.code != Code::ok) {
      wrong = "block " + std::to_string(n) + ": " + std::string(to_string(get.code));
      return out;
    }
    uint32_t last = 0;
    for (auto state = history.states.rbegin(); state != history.states.rend() && out[n] == 0; ++state) {
      if ((*state)[n] == last || (*state)[n] == 0) continue;
      last = (*state)[n];
      const auto expected = content_of(n, last);
      if (get.bytes == expected.size() && std::equal(expected.begin(), expected.end(), room.begin())) out[n] = last;
    }
    if (out[n] == 0) wrong = "block " + std::to_string(n) + " has bytes that were never put";
  }
  return out;
}

/// Empty, or the promise that is broken. `k` = the prefix that the store holds.
std::string judge(const History& history, const Versions& got, size_t least, size_t most, size_t& k) {
  std::string why;
  for (size_t at = most + 1; at-- > least;) {
    const Versions& state = history.states[at];
    why.clear();
    for (size_t n = 0; n < kIds && why.empty(); ++n) {
      if (got[n] == state[n]) continue;
      if (got[n] != 0) {
        why = "block " + std::to_string(n) + " has version " + std::to_string(got[n]) + ", not " +
              std::to_string(state[n]);
        continue;
      }
      // It may be missing if its space was taken back, so not if the store had it all the time.
      bool had = true;
      for (size_t j = least; j <= most; ++j) had = had && history.live[j][n] == state[n];
      if (had) why = "block " + std::to_string(n) + " of version " + std::to_string(state[n]) + " is lost";
    }
    k = at;
    if (why.empty()) return {};
  }
  return why + " (states " + std::to_string(least) + " to " + std::to_string(most) + ")";
}

struct Outcome {
  uint64_t states = 0;
  std::vector<std::string> violations;
};

/// Recovers `image` and judges it. `after` = the image that recovery left, when it is wanted.
bool check_state(DiskImage image, uint64_t capacity, const Life& life, size_t cut, Outcome& out, size_t& k,
                 Recorder* again = nullptr) {
  const auto [least, most] = life.bounds(cut);
  ++out.states;
  auto store = Store::open(std::make_unique<MemoryDisk>(std::move(image), again), options_of(capacity));
  std::string wrong;
  if (!store) {
    wrong = store.error().what;
  } else {
    const Versions got = recovered_versions(**store, life.history, wrong);
    if (wrong.empty()) wrong = judge(life.history, got, least, most, k);
    if (wrong.empty() && !(*store)->restart().damaged.empty()) wrong = (*store)->restart().damaged.front();
  }
  if (!wrong.empty()) out.violations.push_back("cut " + std::to_string(cut) + ": " + wrong);
  return wrong.empty();
}

/// One history of several lives, with about `states` cuts.
void explore(uint64_t seed, uint64_t states, bool honest, Outcome& out) {
  Rng rng(seed);
  const uint64_t capacity = kSegment * (4 + rng.below(5));
  const size_t lives = 1 + rng.below(3);
  uint32_t version = 0;
  DiskImage image;
  std::vector<Recorder::Event> earlier;
  Versions start{};
  for (size_t number = 0; number < lives; ++number) {
    Life life(image, std::exchange(earlier, {}), capacity, start, version, rng);
    life.run(5 + rng.below(40));
    const size_t events = life.recorder.events.size();
    std::vector<size_t> cuts;
    for (uint64_t i = 0; i < states / lives; ++i)
      cuts.push_back(life.first_cut() + rng.below(events + 1 - life.first_cut()));
    cuts.push_back(events);
    std::sort(cuts.begin(), cuts.end());
    const size_t next_life = rng.below(cuts.size());
    PowerCut power(life.before(), life.recorder.events, honest);
    DiskImage chosen;
    Versions chosen_start{};
    for (size_t i = 0; i < cuts.size(); ++i) {
      power.advance(cuts[i]);
      DiskImage left = power.image(rng);
      size_t k = 0;
      Recorder again;
      const bool twice = rng.chance(0.1);
      const bool sound = check_state(left, capacity, life, cuts[i], out, k, twice ? &again : nullptr);
      if (!sound) {
        if (!honest) return;
        continue;
      }
      if (twice) {  // the power fails once more during the recovery
        PowerCut second(left, again.events);
        const size_t second_cut = rng.below(again.events.size() + 1);
        second.advance(second_cut);
        size_t ignored = 0;
        check_state(second.image(rng), capacity, life, cuts[i], out, ignored);
      }
      if (i != next_life) continue;
      chosen = std::move(left);
      chosen_start = life.history.states[k];
    }
    if (chosen.empty()) return;
    if (rng.chance(0.4)) {  // killed, and the power stays on: writes that were not flushed are there for now
      image = life.before();
      earlier = life.recorder.events;
      auto store = Store::open(std::make_unique<MemoryDisk>(PowerCut::all(image, earlier)), options_of(capacity));
      REQUIRE_OK(store);
      start = live_versions(**store, life.history.states.back());
      continue;
    }
    image = std::move(chosen);
    // Blocks whose space was taken back stay away; the others are known by their versions.
    auto store = Store::open(std::make_unique<MemoryDisk>(image), options_of(capacity));
    REQUIRE_OK(store);
    start = live_versions(**store, chosen_start);
  }
}

}  // namespace

TEST_CASE("store: a power cut loses nothing that was acknowledged and never gives other bytes") {
  const uint64_t wanted = mc::test::count<uint64_t>(10'000, 1'000'000);
  Outcome out;
  for (uint64_t history = 0; out.states < wanted && out.violations.empty(); ++history) {
    INFO("seed ", mc::test::seed(), " history ", history);
    explore(mc::test::seed() * 1'000'003 + history, 60, true, out);
    if (!out.violations.empty()) FAIL_CHECK(out.violations.front());
  }
  MESSAGE(out.states, " crash states, ", out.violations.size(), " violations");
}

TEST_CASE("store: the same test finds fault with a disk that lies about its flushes") {
  Outcome out;
  for (uint64_t history = 0; history < 20; ++history) explore(mc::test::seed() + 77 + history, 60, false, out);
  CHECK(out.violations.size() >= 10);
}
