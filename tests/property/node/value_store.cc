// The store of values against a plain map: random operations with random steps of time. The model knows the last value
// of every key and the end of its time to live. What the store still has must equal the model, and what it lacks may
// only be gone because it was evicted, which pins and leases forbid.
#include "node/value_store.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/errors.h"
#include "base/rng.h"
#include "count.h"
#include "test.h"

using namespace mc;
using namespace mc::node;

namespace {

struct Known {
  std::string bytes;
  TimePoint expires = kNever, pinned{}, leased{};
  bool is_held(TimePoint now) const { return std::max(pinned, leased) > now; }
};

class World {
 public:
  explicit World(uint64_t seed)
      : rng_(seed), store_({.memory_bytes = 60'000, .value_bytes_max = 20'000, .lease_max = 5s}) {}

  void step() {
    now_ += std::chrono::milliseconds(rng_.below(400));
    std::erase_if(model_, [&](const auto& row) { return row.second.expires <= now_; });
    switch (rng_.below(8)) {
      case 0:
      case 1:
      case 2: put(); break;
      case 3: get(); break;
      case 4: remove(); break;
      case 5: pin(); break;
      case 6: relocate(true); break;
      default: relocate(false);
    }
    store_.check();
    compare();
  }

 private:
  ValueKey some_key() { return {rng_.chance(0.5) ? "t" : "u", "k" + std::to_string(rng_.below(12))}; }

  void put() {
    const ValueKey key = some_key();
    std::string bytes(rng_.chance(0.1) ? rng_.below(21'000) : rng_.below(6'000),
                      static_cast<char>('a' + rng_.below(26)));
    ValueTerms terms{.replaces = rng_.chance(0.6)};
    if (rng_.chance(0.3)) terms.ttl = std::chrono::milliseconds(1 + rng_.below(3000));
    if (rng_.chance(0.2)) terms.pin = std::chrono::milliseconds(1 + rng_.below(3000));
    const bool had = has(key);
    const auto done = store_.put(key, std::make_shared<const ValueBytes>(bytes), terms, now_);
    if (!done) {
      CHECK((done.error().mc == err::kStoreFull || done.error().mc == err::kBodyTooLarge ||
             (done.error().mc == err::kValueDiffers && had && !terms.replaces)));
      if (done.error().mc == err::kStoreFull) CHECK(has(key) == had);  // a refusal evicts nothing
      return;
    }
    CHECK(bytes.size() <= 20'000);
    if (*done == ValueStore::PutResult::unchanged) {
      CHECK(model_.at(key).bytes == bytes);
      return;
    }
    CHECK((*done == ValueStore::PutResult::replaced) == had);
    model_[key] = {bytes, after(now_, terms.ttl), terms.pin > Duration{} ? now_ + terms.pin : TimePoint{}, {}};
  }

  void get() {
    const ValueKey key = some_key();
    const Duration lease = std::chrono::milliseconds(rng_.chance(0.3) ? 1 + rng_.below(9000) : 0);
    const auto found = store_.get(key, lease, now_);
    if (!found) return;
    Known& known = model_.at(key);
    CHECK(found->value->view() == known.bytes);
    if (lease > Duration{}) known.leased = std::max(known.leased, now_ + std::min<Duration>(lease, 5s));
  }

  void remove() {
    const ValueKey key = some_key();
    if (store_.remove(key, now_)) CHECK(model_.erase(key) == 1);
    CHECK(!has(key));
  }

  void pin() {
    const ValueKey key = some_key();
    const Duration time = std::chrono::milliseconds(rng_.chance(0.3) ? 0 : 1 + rng_.below(3000));
    if (store_.pin(key, time, now_)) model_.at(key).pinned = time > Duration{} ? now_ + time : TimePoint{};
  }

  void relocate(bool copies) {
    const ValueKey from = some_key(), to = some_key();
    const bool replaces = rng_.chance(0.5), had_source = has(from), had_target = has(to);
    const auto done = copies ? store_.copy(from, to, replaces, now_) : store_.move(from, to, replaces, now_);
    if (!done) {
      CHECK((!had_source || done.error().mc == err::kStoreFull || (had_target && !replaces)));
      CHECK(has(from) == had_source);
      return;
    }
    CHECK(had_source);
    if (*done == ValueStore::PutResult::unchanged) {
      CHECK(model_.at(from).bytes == model_.at(to).bytes);
      return;
    }
    Known value = model_.at(from);
    if (copies) {
      value.pinned = value.leased = {};
      CHECK(has(from));  // a copy does not cost its source
    } else {
      model_.erase(from);
    }
    model_[to] = value;
  }

  bool has(const ValueKey& key) { return store_.find(key, now_).has_value(); }

  /// Everything that the store has is in the model, and everything that is held is in the store.
  void compare() {
    std::set<ValueKey> here;
    for (const char* tenant : {"t", "u"}) {
      const auto found = store_.list(tenant, "k", "", 100, now_);
      CHECK(!found.more);
      for (const ValueInfo& info : found.values) {
        const ValueKey key{tenant, info.name};
        here.insert(key);
        REQUIRE(model_.contains(key));
        CHECK(info.bytes == model_.at(key).bytes.size());
      }
    }
    CHECK(here.size() == store_.count());
    for (auto it = model_.begin(); it != model_.end();) {
      if (here.contains(it->first)) {
        ++it;
        continue;
      }
      CHECK(!it->second.is_held(now_));
      it = model_.erase(it);  // evicted
    }
  }

  Rng rng_;
  TimePoint now_{1000s};
  ValueStore store_;
  std::map<ValueKey, Known> model_;
};

}  // namespace

TEST_CASE("node/value_store: random operations leave what a map would have, except for what was evicted unheld") {
  const uint64_t seed = test::seed();
  INFO("seed ", seed);
  for (uint64_t round = 0; round < test::count<uint64_t>(20, 400); ++round) {
    World world(seed + round);
    for (int i = 0; i < 1000; ++i) world.step();
  }
}
