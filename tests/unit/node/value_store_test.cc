#include "node/value_store.h"

#include "base/errors.h"
#include "test.h"

using namespace mc;
using namespace mc::node;

namespace value_store_test {

SharedValue value_of(std::string_view text) {
  return std::make_shared<const ValueBytes>(text);
}

ValueKey key(std::string name, std::string tenant = "t") {
  return {std::move(tenant), std::move(name)};
}

/// Memory that holds exactly `count` values of 1,000 bytes under keys of one letter, for a tenant of one letter.
ValueLimits room_for(uint64_t count) {
  return {.memory_bytes = count * (1000 + 2 + kValueOverheadBytes), .value_bytes_max = 5000, .lease_max = 10s};
}

const std::string kThousand(1000, 'x');

struct Fixture {
  explicit Fixture(uint64_t count = 3) : store(room_for(count)) {}
  ~Fixture() { store.check(); }

  Result<ValueStore::PutResult> put(const std::string& name, const ValueTerms& terms = {}) {
    return store.put(key(name), value_of(kThousand), terms, now);
  }
  bool has(const std::string& name, const std::string& tenant = "t") {
    return store.find(key(name, tenant), now).has_value();
  }

  ValueStore store;
  TimePoint now{100s};
};

TEST_CASE("node/value_store: a value comes back with its bytes and checksum, and a removed one does not") {
  Fixture f;
  CHECK(*f.store.put(key("a"), value_of("123456789"), {}, f.now) == ValueStore::PutResult::created);
  const auto found = f.store.get(key("a"), {}, f.now);
  REQUIRE_OK(found);
  CHECK(found->value->view() == "123456789");
  CHECK(found->info.crc == 0xe3069283);
  CHECK(found->info.uses == 1);
  REQUIRE_OK(f.store.remove(key("a"), f.now));
  CHECK(f.store.get(key("a"), {}, f.now).error().mc == err::kNotFound);
  CHECK(f.store.remove(key("a"), f.now).error().mc == err::kNotFound);
  CHECK(f.store.sums().all().used_bytes == 0);
  CHECK(found->value->view() == "123456789");  // a reader keeps the bytes
}

TEST_CASE("node/value_store: an empty value is a value") {
  Fixture f;
  REQUIRE_OK(f.store.put(key("a"), value_of(""), {}, f.now));
  CHECK(f.store.get(key("a"), {}, f.now)->value->size() == 0);
}

TEST_CASE("node/value_store: a put changes no other value unless it may replace it") {
  Fixture f;
  REQUIRE_OK(f.store.put(key("a"), value_of("one"), {}, f.now));
  CHECK(*f.store.put(key("a"), value_of("one"), {}, f.now) == ValueStore::PutResult::unchanged);
  CHECK(f.store.put(key("a"), value_of("two"), {}, f.now).error().mc == err::kValueDiffers);
  CHECK(f.store.get(key("a"), {}, f.now)->value->view() == "one");
  CHECK(*f.store.put(key("a"), value_of("two"), {.replaces = true}, f.now) == ValueStore::PutResult::replaced);
  CHECK(f.store.get(key("a"), {}, f.now)->value->view() == "two");
  CHECK(f.store.count() == 1);
}

TEST_CASE("node/value_store: the least recently used value is evicted first") {
  Fixture f;
  for (const char* name : {"a", "b", "c"}) REQUIRE_OK(f.put(name));
  REQUIRE_OK(f.store.get(key("a"), {}, f.now));
  REQUIRE_OK(f.store.find(key("b"), f.now));  // a look is no use
  REQUIRE_OK(f.put("d"));
  CHECK(f.has("a"));
  CHECK(!f.has("b"));
  CHECK(f.has("c"));
  CHECK(f.store.stats().evicted == 1);
}

TEST_CASE("node/value_store: pinned values are never evicted, and have at most half of the memory") {
  Fixture f(6);
  REQUIRE_OK(f.put("a", {.pin = 5s}));
  for (const char* name : {"b", "c", "d", "e", "f"}) REQUIRE_OK(f.put(name));
  REQUIRE_OK(f.store.pin(key("b"), 20s, f.now));
  for (const char* name : {"g", "h", "i", "j"}) REQUIRE_OK(f.put(name));  // in place of the others
  for (const char* name : {"a", "b", "g"}) CHECK(f.has(name));
  CHECK(!f.has("f"));
  REQUIRE_OK(f.store.get(key("g"), 1s, f.now));
  const auto pinned = f.store.pin(key("h"), 20s, f.now);
  REQUIRE(!pinned);
  CHECK(pinned.error().mc == err::kStoreFull);
  CHECK(pinned.error().what.starts_with("pinned and leased values have at most half of the store's "));
  CHECK(pinned.error().what.ends_with("tenant t uses 9084 bytes, of which 4542 bytes are pinned or leased"));
  CHECK(!pinned.error().next.empty());
  CHECK(f.put("k", {.pin = 1s}).error().mc == err::kStoreFull);
  CHECK(f.store.get(key("h"), 1s, f.now).error().mc == err::kStoreFull);
  CHECK(f.store.move(key("a"), key("longer"), false, f.now).error().mc == err::kStoreFull);
  REQUIRE_OK(f.store.get(key("h"), {}, f.now));   // without a lease
  REQUIRE_OK(f.store.pin(key("b"), 30s, f.now));  // pinned already
  REQUIRE_OK(f.put("k"));
  CHECK(f.store.stats().rejected == 4);
  f.now += 5s;  // the lease of g and the pin of a end
  REQUIRE_OK(f.store.pin(key("h"), 20s, f.now));
}

TEST_CASE("node/value_store: a durable value whose pin finds no room in the half leaves memory") {
  ValueStore store(room_for(2));
  const TimePoint now{};
  REQUIRE_OK(store.put(key("a"), value_of(kThousand), {.pin = 5s}, now));
  REQUIRE_OK(store.put(key("b"), value_of(kThousand), {}, now, DiskCopy{1, 1}));
  const auto leased = store.get(key("b"), 1s, now);
  REQUIRE_OK(leased);
  CHECK(leased->info.lease == Duration{});
  REQUIRE_OK(store.pin(key("b"), 5s, now, DiskCopy{2, 1}));
  CHECK(!store.find(key("b"), now)->in_memory);
  store.promote(key("b"), {2, 1}, value_of(kThousand), now);
  CHECK(!store.find(key("b"), now)->in_memory);
  REQUIRE_OK(store.put(key("c"), value_of("c"), {.pin = 5s}, now, DiskCopy{3, 3}));
  CHECK(!store.find(key("c"), now)->in_memory);
  store.check();
  store.promote(key("b"), {2, 1}, value_of(kThousand), now + 5s);
  CHECK(store.find(key("b"), now + 5s)->in_memory);
  store.check();
}

TEST_CASE("node/value_store: sums and refusals show a tenant the bytes of that tenant's values alone") {
  const uint64_t cost = 1000 + 2 + kValueOverheadBytes;
  const auto refusal_beside = [&](const std::string& others) {
    Fixture f(4);
    REQUIRE_OK(f.store.put(key("a", "o"), value_of(others), {.pin = 5s}, f.now));
    REQUIRE_OK(f.put("b"));
    CHECK(f.store.sums().of("t") == ValueSums::Sums{cost, 0});
    CHECK(f.store.sums().of("o").held_bytes == others.size() + 2 + kValueOverheadBytes);
    const auto refused = f.store.put(key("z"), value_of(std::string(5000, 'x')), {}, f.now);
    REQUIRE(!refused);
    REQUIRE_OK(f.store.remove(key("a", "o"), f.now));
    CHECK(f.store.sums().of("o") == ValueSums::Sums{});
    return refused.error().what;
  };
  const std::string told = refusal_beside(std::string(100, 'x'));
  CHECK(told.find("5514 bytes of the store's ") != std::string::npos);
  CHECK(told.ends_with("tenant t uses 1514 bytes, of which 0 bytes are pinned or leased"));
  CHECK(told == refusal_beside(std::string(1234, 'y')));
}

TEST_CASE("node/value_store: a value that can never fit evicts nothing") {
  Fixture f(3);
  REQUIRE_OK(f.put("a"));
  REQUIRE_OK(f.put("b"));
  CHECK(f.store.put(key("z"), value_of(std::string(5000, 'x')), {}, f.now).error().mc == err::kStoreFull);
  CHECK(f.store.put(key("z"), value_of(std::string(5001, 'x')), {}, f.now).error().mc == err::kBodyTooLarge);
  CHECK(f.has("a"));
  CHECK(f.has("b"));
}

TEST_CASE("node/value_store: a replacement may use the room of the value that it replaces") {
  Fixture f(2);
  REQUIRE_OK(f.put("h", {.pin = 1s}));
  REQUIRE_OK(f.put("a"));
  CHECK(!f.store.put(key("a"), value_of(std::string(1001, 'y')), {.replaces = true}, f.now));
  CHECK(f.store.get(key("a"), {}, f.now)->value->view() == kThousand);
  REQUIRE_OK(f.store.put(key("a"), value_of(std::string(1000, 'y')), {.replaces = true}, f.now));
  CHECK(f.store.get(key("a"), {}, f.now)->value->view() == std::string(1000, 'y'));
}

TEST_CASE("node/value_store: a value ends with its time to live, pinned or not, and time never runs backwards") {
  Fixture f;
  REQUIRE_OK(f.put("a", {.ttl = 2s}));
  REQUIRE_OK(f.put("b", {.ttl = 2s, .pin = std::chrono::hours(1)}));
  f.now += 2s - 1ns;
  CHECK(f.has("a"));
  f.now += 1ns;
  CHECK(!f.has("a"));
  CHECK(!f.has("b"));
  CHECK(f.store.stats().expired == 2);
  CHECK(f.store.sums().all().used_bytes == 0);
  REQUIRE_OK(f.put("c", {.ttl = 2s}));
  f.now -= 50s;  // a caller whose clock was read long ago
  CHECK(f.has("c"));
  f.now += 52s;
  CHECK(!f.has("c"));
}

TEST_CASE("node/value_store: values that end together leave in steps, and none of them shows meanwhile") {
  Fixture f(4096);
  constexpr size_t kValues = 3 * ValueStore::kExpiredAtOnce - 5;
  for (size_t i = 0; i < kValues; ++i)
    REQUIRE_OK(f.store.put(key("k" + std::to_string(i)), value_of("x"), {.ttl = 1s, .pin = 500ms}, f.now));
  const TimePoint later = f.now + 2s;
  CHECK(f.store.list("t", "", "", 10, later).values.empty());
  CHECK(f.store.stats().expired <= ValueStore::kExpiredAtOnce);
  CHECK(f.store.find(key("k" + std::to_string(kValues - 1)), later).error().mc == err::kNotFound);
  CHECK(*f.store.put(key("k" + std::to_string(kValues - 2)), value_of("y"), {}, later) ==
        ValueStore::PutResult::created);
  f.store.check();
  for (int i = 0; i < 3; ++i) f.store.expire(later);
  CHECK(f.store.count() == 1);
  CHECK(f.store.stats().expired == kValues);
  f.store.check();
}

TEST_CASE("node/value_store: a lease keeps a value from eviction, at most as long as the node allows") {
  Fixture f;
  for (const char* name : {"a", "b", "c"}) REQUIRE_OK(f.put(name));
  CHECK(f.store.get(key("a"), std::chrono::hours(1), f.now)->info.lease == 10s);
  REQUIRE_OK(f.put("d"));
  REQUIRE_OK(f.put("e"));
  REQUIRE_OK(f.put("f"));
  CHECK(f.has("a"));
  f.now += 10s;
  REQUIRE_OK(f.put("g"));
  CHECK(!f.has("a"));
}

TEST_CASE("node/value_store: no call shows a tenant the keys of another one") {
  Fixture f;
  REQUIRE_OK(f.put("a"));
  CHECK(!f.has("a", "u"));
  CHECK(!f.store.remove(key("a", "u"), f.now));
  CHECK(!f.store.pin(key("a", "u"), 1s, f.now));
  CHECK(!f.store.copy(key("a", "u"), key("b", "u"), false, f.now));
  CHECK(f.store.list("u", "", "", 10, f.now).values.empty());
  REQUIRE_OK(f.store.put(key("a", "u"), value_of("other"), {}, f.now));
  CHECK(f.store.get(key("a"), {}, f.now)->value->view() == kThousand);
}

TEST_CASE("node/value_store: a copy never costs its source, and a move keeps the pin") {
  Fixture f(2);
  REQUIRE_OK(f.put("a", {.ttl = 30s}));
  REQUIRE_OK(f.put("b"));
  REQUIRE_OK(f.store.copy(key("a"), key("c"), false, f.now));  // a was the oldest, but b goes
  CHECK(f.has("a"));
  CHECK(!f.has("b"));
  CHECK(f.store.find(key("c"), f.now)->ttl == 30s);
  REQUIRE_OK(f.store.pin(key("c"), 10s, f.now));
  CHECK(!f.store.copy(key("a"), key("d"), false, f.now));  // no room beside both
  REQUIRE_OK(f.store.move(key("c"), key("d"), false, f.now));
  CHECK(!f.has("c"));
  CHECK(f.store.find(key("d"), f.now)->pin == 10s);
  CHECK(f.store.move(key("a"), key("d"), false, f.now).error().mc == err::kValueDiffers);
  CHECK(*f.store.move(key("a"), key("d"), true, f.now) == ValueStore::PutResult::replaced);
  CHECK(f.store.count() == 1);
  CHECK(*f.store.copy(key("d"), key("d"), false, f.now) == ValueStore::PutResult::unchanged);
}

TEST_CASE("node/value_store: a listing has one tenant's keys of a prefix in their order, in pages") {
  Fixture f(20);
  for (const char* name : {"b/2", "a", "b/1", "b/3", "c"}) REQUIRE_OK(f.put(name));
  const auto names = [&](const char* prefix, const char* after, size_t limit, bool more) {
    const auto found = f.store.list("t", prefix, after, limit, f.now);
    CHECK(found.more == more);
    std::string out;
    for (const ValueInfo& info : found.values) out += info.name + " ";
    return out;
  };
  CHECK(names("", "", 10, false) == "a b/1 b/2 b/3 c ");
  CHECK(names("b/", "", 2, true) == "b/1 b/2 ");
  CHECK(names("b/", "b/2", 2, false) == "b/3 ");
  CHECK(names("b/", "b/3", 2, false) == "");
  CHECK(names("b/", "a", 10, false) == "b/1 b/2 b/3 ");
  CHECK(names("z", "", 10, false) == "");
}

TEST_CASE("node/value_store: a listing steps over a bounded number of values that are over") {
  constexpr size_t kOver = 20'000;
  ValueStore store({.memory_bytes = 64 << 20, .value_bytes_max = 100, .lease_max = 1s});
  const TimePoint start{100s};
  for (size_t i = 0; i < kOver; ++i)
    REQUIRE_OK(store.put(key(std::to_string(100'000 + i)), value_of("x"), {.ttl = 1s}, start));
  REQUIRE_OK(store.put(key("last"), value_of("x"), {}, start));
  std::string after, names;
  size_t calls = 0;
  for (bool more = true; more; ++calls) {
    const auto page = store.list("t", "", after, 10, start + 2s);
    more = page.more;
    for (const ValueInfo& info : page.values) names += info.name;
    REQUIRE(page.last > after);
    if (calls == 0) CHECK(std::stoul(page.last) <= 100'000 + ValueStore::kExpiredAtOnce + ValueStore::kSteppedOverMax);
    after = page.last;
  }
  CHECK(names == "last");
  CHECK(calls > 2);
  CHECK(calls <= kOver / ValueStore::kSteppedOverMax + 1);
}

TEST_CASE("node/value_store: a key is 1 to 1024 bytes of UTF-8 without control characters") {
  CHECK(check_value_key("a/b c\xc3\xa9\xf0\x9f\x98\x80"));
  CHECK(check_value_key(std::string(1024, 'k')));
  for (const std::string& bad : {std::string(), std::string(1025, 'k'), std::string("a\nb"), std::string("a\0b", 3),
                                 std::string("\x7f"), std::string("\xc3"), std::string("\xed\xa0\x80")})
    CHECK(check_value_key(bad).error().mc == err::kInvalidField);
  Fixture f;
  CHECK(!f.store.put(key("\xff"), value_of("x"), {}, f.now));
  REQUIRE_OK(f.put("a"));
  CHECK(!f.store.copy(key("a"), key(""), false, f.now));
  CHECK(!f.store.move(key("a"), key("a\tb"), false, f.now));
}

TEST_CASE("node/value_store: a value with a copy on disk leaves memory before it is gone, and comes back by promote") {
  ValueStore store({.memory_bytes = 13'100, .value_bytes_max = 8'000, .lease_max = 5s});
  const TimePoint now{};
  const ValueKey one{"t", "one"}, two{"t", "two"};
  const SharedValue bytes = value_of(std::string(6000, 'x')), larger = value_of(std::string(6500, 'x'));
  REQUIRE_OK(store.put(one, bytes, {}, now, DiskCopy{1, 1}));
  REQUIRE_OK(store.put(two, larger, {}, now, DiskCopy{2, 2}));
  store.check();
  auto found = store.get(one, {}, now);
  REQUIRE_OK(found);
  CHECK(found->value == nullptr);
  CHECK(!found->info.in_memory);
  store.promote(one, {9, 9}, bytes, now);
  CHECK(store.bytes_of(one) == nullptr);  // another copy than the value's
  store.promote(one, {1, 1}, bytes, now);
  CHECK(store.bytes_of(one) == bytes);
  CHECK(store.bytes_of(two) == nullptr);
  store.check();
  CHECK(store.stats().demoted == 2);
  CHECK(store.stats().promoted == 1);
  CHECK(store.stats().evicted == 0);

  REQUIRE_OK(store.pin(one, 10s, now, DiskCopy{3, 1}));
  store.promote(two, {2, 2}, larger, now);
  CHECK(store.bytes_of(two) == nullptr);  // a pinned value keeps its place in memory
  store.lose(two, {2, 2}, now);
  CHECK(store.find(two, now).error().mc == err::kNotFound);
  store.lose(one, {3, 1}, now);
  CHECK(store.bytes_of(one) == bytes);  // memory has it
  CHECK(store.take_unneeded() == std::vector<DiskCopy>{{1, 1}, {2, 2}, {3, 1}});
  store.check();
}

TEST_CASE("node/value_store: keys of values on disk are not counted as pinned or leased") {
  ValueStore store({.memory_bytes = 10'000, .value_bytes_max = 8'000, .lease_max = 5s});
  const TimePoint now{};
  const auto put = [&](const std::string& name, uint64_t number) {
    return store.put(key(name), value_of(kThousand), {}, now, DiskCopy{number, number});
  };
  for (uint64_t i = 1; i <= 6; ++i) REQUIRE_OK(put("k" + std::to_string(i), i));
  CHECK(store.sums().all().held_bytes == 0);
  REQUIRE_OK(store.pin(key("k6"), 10s, now));
  CHECK(store.sums().all().held_bytes == 1000 + 3 + kValueOverheadBytes);
  store.check();
  CHECK(store.put(key("large"), value_of(std::string(8000, 'x')), {}, now).error().mc == err::kStoreFull);
  store.expire(now + 10s);
  CHECK(store.sums().all().held_bytes == 0);
  store.check();
}

TEST_CASE("node/value_store: without other tenants the keys of values on disk have half of the memory") {
  constexpr uint64_t kKey = 2 + kValueOverheadBytes;  // of one letter, for a tenant of one letter
  ValueStore store({.memory_bytes = 16 * kKey, .tenants = ValueTenants::one});
  const TimePoint now{};
  const auto put = [&](char name) {
    const auto number = static_cast<uint64_t>(name);
    return store.put(key(std::string(1, name)), value_of("v"), {.durability = Durability::d2}, now,
                     DiskCopy{number, number});
  };
  for (char name = 'a'; name < 'i'; ++name) REQUIRE_OK(put(name));
  const auto refused = put('i');
  REQUIRE(!refused);
  CHECK(refused.error().mc == err::kStoreFull);
  CHECK(refused.error().what.find("quarter") == std::string::npos);
  REQUIRE_OK(store.put(key("p"), value_of(std::string(8 * kKey - kKey, 'x')), {.pin = 10s}, now));  // the other half
  store.check();
}

TEST_CASE("node/value_store: a tenant's keys of values on disk have a quarter of the memory, and all of them half") {
  constexpr uint64_t kKey = 2 + kValueOverheadBytes;  // of one letter, for a tenant of one letter
  ValueStore store({.memory_bytes = 16 * kKey, .value_bytes_max = 8'000, .lease_max = 5s});
  const TimePoint now{};
  uint64_t number = 0;
  const auto put = [&](const std::string& tenant, const std::string& name, ValueTerms terms = {}) {
    terms.durability = Durability::d2, ++number;
    return store.put(key(name, tenant), value_of("v"), terms, now, DiskCopy{number, number});
  };
  const auto is_full = [](const auto& done) { return !done && done.error().mc == err::kStoreFull; };
  for (const char* name : {"a", "b", "c", "d"}) REQUIRE_OK(put("t", name));
  store.check();
  const auto refused = put("t", "e");
  REQUIRE(is_full(refused));
  CHECK(refused.error().what.find("tenant t uses " + std::to_string(4 * kKey) + " bytes") != std::string::npos);
  CHECK(is_full(store.check_put(key("e"), 1, {.durability = Durability::d1}, now)));
  CHECK(is_full(store.set_aside(key("a"), key("longer"), now)));
  REQUIRE_OK(store.set_aside(key("a"), key("e"), now));  // a key as long as the one that goes
  store.give_up(key("e"));
  REQUIRE_OK(put("t", "a", {.replaces = true}));
  REQUIRE_OK(store.put(key("e"), value_of("v"), {}, now));  // in memory alone, where it can be evicted
  for (const char* name : {"a", "b", "c", "d"}) REQUIRE_OK(put("u", name));
  CHECK(is_full(put("w", "a")));  // the half of all
  REQUIRE_OK(store.put(key("a", "w"), value_of("v"), {}, now));
  REQUIRE_OK(store.put(key("p", "w"), value_of(std::string(8 * kKey - 3 * kKey, 'x')), {.pin = 10s}, now));
  store.check();
  REQUIRE_OK(store.remove(key("b"), now));
  REQUIRE_OK(put("w", "a", {.replaces = true}));
  CHECK(is_full(put("t", "b")));
  store.check();
  REQUIRE_OK(store.restore(key("f"), {.bytes = 1, .copy = DiskCopy{90, 90}}, now));  // it is on disk already
  store.check();
}

}  // namespace value_store_test
