// Values of several levels under one key (door/stored_values.h): what a restart finds after a power cut, after faults
// of the disk and after calls of many threads.
#include "door/stored_values.h"

#include <atomic>
#include <map>
#include <thread>

#include "base/rng.h"
#include "count.h"
#include "fault/store/power_cut.h"
#include "values_node.h"

using namespace mc;
using namespace mc::node;

namespace stored_values_test {

using test::text;
using Node = test::ValuesNode;

int fail_flush(const store::Io& io, const std::string&) {
  return io.op == store::Io::Op::flush ? EIO : 0;
}

template <class T>
Result<void> outcome(const Result<T>& result) {
  return result ? Result<void>() : Result<void>(result.error());
}

/// The call number `at` after arm() finds that 10 ms are over.
class Jumping final : public Clock {
 public:
  TimePoint now() const override {
    if (at_ > 0 && --at_ == 0) now_ += 10ms;
    return now_;
  }
  int64_t unix_ms() const override { return 1'700'000'000'000 + (now_ - TimePoint{}) / 1ms; }
  void arm(int at) { at_ = at; }

 private:
  mutable TimePoint now_{};
  mutable int at_ = 0;
};

TEST_CASE("host/stored_values: a durable value that a value in memory replaced never comes back after a power cut") {
  const std::function<void(Node&)> replacements[] = {[](Node& n) { REQUIRE_OK(n.put_in_memory("k", "new")); },
                                                     [](Node& n) {
                                                       REQUIRE_OK(n.put_in_memory("source", "new"));
                                                       REQUIRE_OK(n.values->copy({"t", "source"}, {"t", "k"}, true));
                                                     },
                                                     [](Node& n) {
                                                       REQUIRE_OK(n.put_in_memory("source", "new"));
                                                       REQUIRE_OK(n.values->move({"t", "source"}, {"t", "k"}, true));
                                                     }};
  for (const auto& replace : replacements)
    for (const bool removes : {false, true}) {
      CAPTURE(removes);
      Node node;
      REQUIRE_OK(node.put("k", "old"));
      replace(node);
      CHECK(node.get("k") == "new");
      if (removes) REQUIRE_OK(node.values->remove({"t", "k"}));
      Node again(node.faults.durable);
      CHECK(again.get("k") == "MC4007");
    }
}

TEST_CASE("host/stored_values: a value of level d1 in place of a durable one is on disk before the put is answered") {
  Node node;
  REQUIRE_OK(node.put("k", "old"));
  door::StoredValues::Later later;
  REQUIRE_OK(node.values->put({"t", "k"}, std::make_shared<const ValueBytes>("new"),
                              {.replaces = true, .durability = Durability::d1}, &later));
  CHECK(Node(node.faults.durable).get("k") == "new");
}

TEST_CASE("host/stored_values: a call that the disk refuses leaves the keys as they were, also after a restart") {
  const ValueKey k{"t", "k"}, m{"t", "m"}, d{"t", "d"};
  const std::function<Result<void>(Node&)> calls[] = {
      [&](Node& n) { return outcome(n.put("k", "new", {.replaces = true})); },
      [&](Node& n) { return outcome(n.put_in_memory("k", "new")); },
      [&](Node& n) { return outcome(n.values->remove(k)); },
      [&](Node& n) { return outcome(n.values->pin(k, 1s)); },
      [&](Node& n) { return outcome(n.values->copy(m, k, true)); },
      [&](Node& n) { return outcome(n.values->copy(d, k, true)); },
      [&](Node& n) { return outcome(n.values->move(m, k, true)); },
      [&](Node& n) { return outcome(n.values->move(d, k, true)); },
      [&](Node& n) {
        return outcome(n.values->move(d, {"t", "free"}, false));
      }};
  for (size_t i = 0; i < std::size(calls); ++i)
    // The flush that fails first: a call may have more than one.
    for (int good = 0; good < 2; ++good) {
      CAPTURE(i);
      CAPTURE(good);
      VirtualClock clock;
      Node node({}, 1 << 20, &clock);
      REQUIRE_OK(node.put("k", "old", {.pin = 50s}));
      REQUIRE_OK(node.put("d", "durable"));
      REQUIRE_OK(node.put_in_memory("m", "memory"));
      int left = good;
      node.faults.fail = [&](const store::Io& io, const std::string& name) {
        return io.op == store::Io::Op::flush && left-- > 0 ? 0 : fail_flush(io, name);
      };
      const auto done = calls[i](node);
      if (left >= 0) continue;  // it has no such flush
      CHECK(done.error().mc == err::kValueDisk);
      const auto check = [&](Node& n) {
        CHECK(n.get("k") == "old");
        CHECK(n.get("d") == "durable");
        CHECK(n.get("free") == "MC4007");
        CHECK(n.values->find(k)->pin > 40s);
      };
      check(node);
      CHECK(node.get("m") == "memory");
      Node cut(node.faults.durable);
      check(cut);
      // The remains are dropped when the disk is well again.
      node.faults.fail = nullptr;
      clock.advance(2s);
      node.values->drop_unneeded();
      check(node);
      REQUIRE_OK(node.put("other", "o"));  // its flush makes more durable
      for (const store::DiskImage& image : {node.faults.durable, node.faults.written}) {
        Node later(image, 1 << 20, &clock);
        check(later);
      }
    }
}

TEST_CASE("host/stored_values: a get that may not wait reads no disk, and counts as no use") {
  Node node({}, 8000);
  REQUIRE_OK(node.put("k", text(5000)));
  CHECK(node.values->get({"t", "k"}, {}, false)->value != nullptr);
  REQUIRE_OK(node.put("other", text(5000)));  // in place of k in memory
  int reads = 0;
  node.faults.fail = [&](const store::Io& io, const std::string&) { return reads += io.op == store::Io::Op::read, 0; };
  const auto found = node.values->get({"t", "k"}, 5s, false);
  REQUIRE_OK(found);
  CHECK(found->value == nullptr);
  CHECK(found->info.uses == 1);
  CHECK(reads == 0);
  CHECK(node.get("k") == text(5000));
  CHECK(reads > 0);
  CHECK(node.values->get({"t", "none"}, {}, false).error().mc == err::kNotFound);
}

TEST_CASE("host/stored_values: a drop that the disk refuses is tried again, and the value stays away after a restart") {
  Jumping clock;
  Node node({}, 1 << 20, &clock);
  REQUIRE_OK(node.put("k", "old", {.ttl = 5ms}));
  clock.arm(1);
  CHECK(node.get("k") == "MC4007");
  const uint64_t used = node.disk->used_bytes();
  node.faults.fail = [](const store::Io& io, const std::string&) { return io.op == store::Io::Op::write ? EIO : 0; };
  node.values->drop_unneeded();
  CHECK(node.disk->used_bytes() == used);
  node.faults.fail = nullptr;
  for (int i = 0; i < 10'000 && !node.values->expire(); ++i) clock.arm(1);
  CHECK(node.values->expire());
  node.values->drop_unneeded();
  CHECK(node.disk->used_bytes() < used);
  CHECK(!node.values->expire());
}

TEST_CASE("host/stored_values: a move onto a key whose time to live ends meanwhile is done or refused") {
  int refused = 0, moved = 0;
  for (int at = 1; at <= 12; ++at) {
    CAPTURE(at);
    Jumping clock;
    Node node({}, 1 << 20, &clock);
    REQUIRE_OK(node.put("a", "moved"));
    REQUIRE_OK(node.put_in_memory("b", "short", 5ms));
    clock.arm(at);
    const auto done = node.values->move({"t", "a"}, {"t", "b"}, false);
    clock.arm(0);
    ++(done ? moved : refused);
    CHECK(node.get(done ? "b" : "a") == "moved");
    CHECK(Node(node.faults.durable).get(done ? "b" : "a") == "moved");
    CHECK((done || done.error().mc == err::kValueDiffers));
  }
  CHECK(refused > 0);
  CHECK(moved > 0);
}

/// The files before every write and flush: as a kill -9 leaves them, and as a power cut does.
std::vector<store::DiskImage> images_during(Node& node, const std::function<void()>& call) {
  std::vector<store::DiskImage> out;
  node.faults.fail = [&](const store::Io& io, const std::string&) {
    if (io.op != store::Io::Op::read) out.insert(out.end(), {node.faults.written, node.faults.durable});
    return 0;
  };
  call();
  node.faults.fail = nullptr;
  CHECK(!out.empty());
  out.insert(out.end(), {node.faults.written, node.faults.durable});
  return out;
}

TEST_CASE("host/stored_values: a cut at any write or flush leaves a key with the value before or after the call") {
  struct Case {
    std::function<void(Node&)> call;
    std::string after;  // of "k" once the call was answered
  };
  const Case cases[] = {
      {[](Node& n) { REQUIRE_OK(n.put("k", text(50'000, 'n'), {.replaces = true})); }, text(50'000, 'n')},
      {[](Node& n) { REQUIRE_OK(n.put_in_memory("k", "memory")); }, "MC4007"},
      {[](Node& n) {
         REQUIRE_OK(n.values->remove({"t", "k"}));
       },
       "MC4007"},
      {[](Node& n) {
         REQUIRE_OK(n.values->pin({"t", "k"}, 9s));
       },
       text(50'000, 'o')},
      {[](Node& n) {
         REQUIRE_OK(n.values->copy({"t", "d"}, {"t", "k"}, true));
       },
       "durable"},
      {[](Node& n) {
         REQUIRE_OK(n.values->move({"t", "d"}, {"t", "k"}, true));
       },
       "durable"},
      {[](Node& n) {
         REQUIRE_OK(n.values->move({"t", "m"}, {"t", "k"}, true));
       },
       "MC4007"}};
  for (size_t i = 0; i < std::size(cases); ++i) {
    CAPTURE(i);
    Node node;
    REQUIRE_OK(node.put("k", text(50'000, 'o')));
    REQUIRE_OK(node.put("d", "durable"));
    REQUIRE_OK(node.put_in_memory("m", "memory"));
    const auto images = images_during(node, [&] { cases[i].call(node); });
    for (size_t at = 0; at < images.size(); ++at) {
      CAPTURE(at);
      Node again(images[at]);
      const std::string got = again.get("k"), durable = again.get("d");
      const bool is_after = at + 2 >= images.size();
      CHECK((got == cases[i].after || (!is_after && got == text(50'000, 'o'))));
      CHECK((durable == "durable" || got == "durable"));
    }
  }
}

/// The keys of "d" and "to" that have the moved value. `old`: the value that "to" has otherwise.
std::string keys_of_moved(Node& node, const std::string& old) {
  const std::string d = node.get("d"), to = node.get("to");
  CHECK((d == text(9000) || d == "MC4007"));
  CHECK((to == text(9000) || to == old));
  return std::string(d == text(9000) ? "d" : "") + (to == text(9000) ? "to" : "");
}

TEST_CASE("host/stored_values: a power cut at any time of a move or copy leaves the keys before or after the call") {
  enum class What : uint8_t { move, copy, upsert };
  Rng rng(test::seed());
  const int cuts_each = test::count(12, 4000);
  for (const What what : {What::move, What::copy, What::upsert})
    for (const bool replaces : {false, true})
      for (const bool is_worn : {false, true}) {
        if (what == What::upsert && !replaces) continue;
        Node node;
        // Older records of both keys, whose drops nobody has waited for.
        if (is_worn) REQUIRE_OK(node.put("d", "older"));
        if (is_worn && replaces) REQUIRE_OK(node.put("to", "older"));
        REQUIRE_OK(node.put("d", text(9000), {.replaces = true}));
        const std::string old = replaces ? text(70'000, 'o') : "MC4007";
        if (replaces) REQUIRE_OK(node.put("to", old, {.replaces = true}));
        const store::DiskImage before = node.faults.written;
        store_test::Recorder recorder;
        node.faults.fail = [&](const store::Io& io, const std::string& name) { return recorder.before(io, name); };
        node.faults.fail_create = [&](const std::string& name) { return recorder.before_create(name, 1 << 20); };
        if (what == What::move) REQUIRE_OK(node.values->move({"t", "d"}, {"t", "to"}, replaces));
        if (what == What::copy) REQUIRE_OK(node.values->copy({"t", "d"}, {"t", "to"}, replaces));
        if (what == What::upsert) REQUIRE_OK(node.put("to", text(9000), {.replaces = true}));
        node.faults.fail = nullptr;  // the recorder ends before the node, which flushes at its end
        node.faults.fail_create = nullptr;
        const std::string done = what == What::move ? "to" : "dto";
        CHECK(keys_of_moved(node, old) == done);
        for (int round = 0; round < cuts_each; ++round) {
          INFO("seed ", test::seed(), " call ", static_cast<int>(what), " replaces ", replaces, " round ", round);
          const size_t at = rng.below(recorder.events.size() + 1);
          store_test::PowerCut cut(before, recorder.events);
          cut.advance(at);
          Node again(cut.image(rng));
          const std::string keys = keys_of_moved(again, old);
          CHECK((keys == "d" || keys == done));
          if (at == recorder.events.size()) CHECK(keys == done);
          // The value goes on under the key that it has.
          const std::string key = keys == "d" ? "d" : "to";
          REQUIRE_OK(again.values->pin({"t", key}, 9s));
          CHECK(keys_of_moved(*std::make_unique<Node>(again.faults.durable), old) == keys);
        }
      }
}

TEST_CASE("host/stored_values: a move that the disk refuses at any of its steps leaves the value under one key") {
  constexpr unsigned kSteps = 8;
  const unsigned stride = static_cast<unsigned>(test::count(15, 1));  // 255 is a multiple: all steps fail in it
  int refused = 0, moved = 0;
  for (unsigned mask = 0; mask < 1u << kSteps; mask += stride)
    for (const bool replaces : {false, true}) {
      CAPTURE(mask);
      CAPTURE(replaces);
      Node node;
      REQUIRE_OK(node.put("d", "older"));
      REQUIRE_OK(node.put("d", text(9000), {.replaces = true}));
      REQUIRE_OK(node.put("gone", "x"));
      const std::string old = replaces ? "old" : "MC4007";
      if (replaces) REQUIRE_OK(node.put("to", old));
      // A group that is not flushed: when its flush fails, calls beside it fail as well.
      REQUIRE_OK(node.disk->drop(node.values->find({"t", "gone"})->copy->number));
      unsigned step = 0;
      node.faults.fail = [&](const store::Io& io, const std::string&) {
        if (io.op == store::Io::Op::read) return 0;
        return step < kSteps && (mask >> step++ & 1) != 0 ? EIO : 0;
      };
      const auto done = node.values->move({"t", "d"}, {"t", "to"}, replaces);
      ++(done ? moved : refused);
      const std::string keys = done ? "to" : "d";
      CHECK(keys_of_moved(node, old) == keys);
      // A cut now may find the move done or not. Once another call is durable, it finds what the node has.
      for (const store::DiskImage& image : {node.faults.durable, node.faults.written}) {
        Node cut(image);
        const std::string found = keys_of_moved(cut, old);
        CHECK((found == "d" || found == "to"));
        if (done) CHECK(found == "to");
      }
      node.faults.fail = nullptr;
      REQUIRE_OK(node.put("other", "o"));
      node.values->drop_unneeded();
      for (const store::DiskImage& image : {node.faults.durable, node.faults.written}) {
        Node later(image);
        CHECK(keys_of_moved(later, old) == keys);
      }
    }
  CHECK(refused > 0);
  CHECK(moved > 0);
}

TEST_CASE("host/stored_values: a durable move needs no room in memory beyond that of its longer key, or is refused") {
  const std::string longer(600, 'k');
  for (const bool is_pinned : {false, true}) {
    Node node({}, 4600);  // a quarter has the longer key, and a half has not both key and bytes
    REQUIRE_OK(node.put("a", text(1200), {.pin = is_pinned ? 50s : 0s}));
    REQUIRE_OK(node.values->move({"t", "a"}, {"t", longer}, false));
    CHECK(node.get(longer) == text(1200));
    CHECK(Node(node.faults.durable).get(longer) == text(1200));
    if (is_pinned) CHECK(node.values->find({"t", longer})->pin > 40s);
  }
  Node full({}, 8400);
  for (const char* key : {"a", "b", "c", "d"}) REQUIRE_OK(full.put(key, ""));  // keys of values on disk stay in memory
  int writes = 0;
  full.faults.fail = [&](const store::Io& io, const std::string&) {
    return writes += io.op == store::Io::Op::write, 0;
  };
  CHECK(full.values->move({"t", "a"}, {"t", longer}, false).error().mc == err::kStoreFull);
  CHECK(writes == 0);
  CHECK(full.get("a") == "");
  REQUIRE_OK(full.values->move({"t", "a"}, {"t", "e"}, false));
}

TEST_CASE("host/stored_values: a durable value that ends while it is moved ends under both keys") {
  int ended = 0;
  for (int at = 1; at <= 16; ++at) {
    CAPTURE(at);
    Jumping clock;
    Node node({}, 1 << 20, &clock);
    REQUIRE_OK(node.put("d", text(9000), {.ttl = 5ms}));
    REQUIRE_OK(node.put("to", "old"));
    clock.arm(at);
    const auto done = node.values->move({"t", "d"}, {"t", "to"}, true);
    clock.arm(0);
    const std::string to = node.get("to");
    CHECK((done ? to == text(9000) || to == "MC4007" : to == "old"));
    ended += done && to == "MC4007";
    node.values->drop_unneeded();
    CHECK(node.get("to") == to);
    CHECK(Node(node.faults.written, 1 << 20, &clock).get("to") == to);
  }
  CHECK(ended > 0);
}

TEST_CASE("host/stored_values: values of all levels side by side: what was acknowledged durably is there after a cut") {
  struct Kept {
    std::string bytes;
    bool is_durable = false;
  };
  const uint64_t seeds = test::count<uint64_t>(10, 2000);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    Rng rng(seed);
    std::map<std::string, Kept> model;
    auto node = std::make_unique<Node>(store::DiskImage{}, 200'000);
    const auto check = [&](const std::string& key) {
      const std::string got = node->get(key);
      const auto kept = model.find(key);
      // A value in memory alone may be evicted.
      if (kept != model.end() && !kept->second.is_durable && got == "MC4007") model.erase(kept);
      CHECK(got == (model.contains(key) ? model[key].bytes : "MC4007"));
    };
    for (int step = 0; step < 150; ++step) {
      const std::string key = "k" + std::to_string(rng.below(6)), other = "k" + std::to_string(rng.below(6));
      const std::string bytes = text(rng.below(30'000), static_cast<char>('a' + rng.below(20)));
      check(key);
      check(other);
      const uint64_t what = rng.below(12);
      door::StoredValues::Later later;
      const auto value = std::make_shared<const ValueBytes>(bytes);
      if (what < 3) {
        if (node->put(key, bytes, {.replaces = true})) model[key] = {bytes, true};
      } else if (what < 6) {
        if (node->put_in_memory(key, bytes)) model[key] = {bytes, false};
      } else if (what == 6) {
        const ValueTerms terms{.replaces = true, .durability = Durability::d1};
        if (node->values->put({"t", key}, value, terms, &later)) model[key] = {bytes, !later || rng.below(2) == 0};
        if (later && model[key].is_durable) later();
      } else if (what == 7) {
        CHECK(node->values->remove({"t", key}).has_value() == (model.erase(key) > 0));
      } else if (what == 8) {
        if (node->values->copy({"t", key}, {"t", other}, true) && key != other) model[other] = model[key];
      } else if (what == 9) {
        if (node->values->move({"t", key}, {"t", other}, true) && key != other) {
          model[other] = model[key];
          model.erase(key);
        }
      } else if (what == 10) {
        node->values->drop_unneeded();
      } else {
        node = std::make_unique<Node>(node->faults.durable, 200'000);
        std::erase_if(model, [](const auto& entry) { return !entry.second.is_durable; });
      }
      later = nullptr;
      check(key);
      check(other);
    }
  }
}

TEST_CASE("host/stored_values: calls of many threads keep what they acknowledged and forget what they removed") {
  const int rounds = test::count(60, 2000);
  Node node({}, 150'000);
  std::atomic<bool> is_over{false};
  std::thread dropping([&] {
    while (!is_over) node.values->drop_unneeded();
  });
  std::vector<std::string> faults(4);
  const auto run = [&](size_t id) {
    Rng rng(id);
    const ValueKey own{"t", "own" + std::to_string(id)}, shared{"t", "shared" + std::to_string(id % 2)};
    const auto put = [&](const ValueKey& key, const std::string& bytes, Durability level) {
      return node.values->put(key, std::make_shared<const ValueBytes>(bytes), {.replaces = true, .durability = level})
          .has_value();
    };
    for (int round = 0; round < rounds && faults[id].empty(); ++round) {
      const std::string bytes = text(rng.below(20'000), static_cast<char>('a' + round % 20));
      bool is_well = put(own, "before", Durability::d2) && put(own, bytes, Durability::d2);
      (void)put(shared, "shared", rng.below(2) == 0 ? Durability::d0 : Durability::d2);
      if (rng.below(2) == 0) (void)node.values->move(shared, {"t", "moved"}, true);
      (void)node.values->get(shared, 1ms);
      const bool removes = rng.below(2) == 0;
      if (removes) is_well = is_well && node.values->remove(own);
      if (!is_well) faults[id] = "a call failed";
      if (round % 8 != 0) continue;
      Node again(node.faults.cut());
      const std::string got = again.get(own.name), wanted = removes ? "MC4007" : bytes;
      if (got != wanted) faults[id] = "after a cut: " + std::to_string(got.size()) + " bytes: " + got.substr(0, 20);
    }
  };
  std::vector<std::thread> threads;
  for (size_t id = 0; id < faults.size(); ++id) threads.emplace_back(run, id);
  for (std::thread& thread : threads) thread.join();
  is_over = true;
  dropping.join();
  for (const std::string& fault : faults) CHECK(fault == "");
}

TEST_CASE(
    "host/stored_values: bytes that are damaged in memory are read again from disk, and without a copy are gone") {
  Node node;
  REQUIRE_OK(node.put("durable", "value"));
  REQUIRE_OK(node.put_in_memory("memory", "value"));
  for (const std::string key : {"durable", "memory"}) {
    const auto found = node.values->get({"t", key}, {});
    REQUIRE_OK(found);
    *const_cast<char*>(found->value->view().data()) = 'X';
    CHECK(node.get(key) == "Xalue");
    CHECK(node.values->lose_memory({"t", key}, found->value) == (key == "durable"));
    CHECK(node.get(key) == (key == "durable" ? "value" : "MC4007"));
    REQUIRE_OK(node.put(key, "newer", {.replaces = true}));
    CHECK(node.values->lose_memory({"t", key}, found->value));  // another value by now
    CHECK(node.get(key) == "newer");
  }
  CHECK(Node(node.faults.durable).get("durable") == "newer");
}

TEST_CASE("host/stored_values: a value whose key has no room in memory at the start can be removed and replaced") {
  Node node;
  for (int i = 0; i < 8; ++i) REQUIRE_OK(node.put("k" + std::to_string(i), "v"));
  Node small(node.faults.durable, 2'000);
  int missing = 0;
  for (int i = 0; i < 8; ++i) {
    missing += small.get("k" + std::to_string(i)) == "MC4007";
    CHECK(small.values->remove({"t", "k" + std::to_string(i)}).has_value());
    CHECK(small.values->remove({"t", "k" + std::to_string(i)}).error().mc == err::kNotFound);
  }
  CHECK(missing > 3);
  Node again(small.faults.durable);
  for (int i = 0; i < 8; ++i) CHECK(again.get("k" + std::to_string(i)) == "MC4007");
}

TEST_CASE("host/stored_values: a call that would put one more key of a full tenant on disk is refused unwritten") {
  const ValueKey e{"t", "e"};
  const std::function<Result<void>(Node&)> calls[] = {
      [&](Node& n) { return outcome(n.put("e", "v")); },
      [&](Node& n) { return outcome(n.put("memory", "v")); },  // the bytes that the key has, at a higher level
      [&](Node& n) {
        door::StoredValues::Later later;
        return outcome(
            n.values->put(e, std::make_shared<const ValueBytes>("v"), {.durability = Durability::d1}, &later));
      },
      [&](Node& n) { return outcome(n.values->copy({"t", "a"}, e, false)); }};
  for (const auto& call : calls) {
    Node node({}, 8300);
    for (const char* key : {"a", "b", "c", "d"}) REQUIRE_OK(node.put(key, "v"));
    REQUIRE_OK(node.put_in_memory("memory", "v"));
    int writes = 0;
    node.faults.fail = [&](const store::Io& io, const std::string&) {
      return writes += io.op == store::Io::Op::write, 0;
    };
    CHECK(call(node).error().mc == err::kStoreFull);
    CHECK(writes == 0);
    for (const char* key : {"a", "b", "c", "d", "memory"}) CHECK(node.get(key) == "v");
    REQUIRE_OK(node.values->put({"u", "e"}, std::make_shared<const ValueBytes>("v"), {.durability = Durability::d2}));
    REQUIRE_OK(node.values->remove({"t", "a"}));
    REQUIRE_OK(node.put("e", "v"));
  }
}

TEST_CASE("host/stored_values: a copy onto another value reads neither of them from disk") {
  Node node({}, 9'000);
  const std::string value = text(3'000);
  REQUIRE_OK(node.put("a", value));
  REQUIRE_OK(node.put("b", text(3'000, 'b')));
  REQUIRE_OK(node.put("same", value));
  REQUIRE_OK(node.values->copy({"t", "a"}, {"t", "shares"}, false));
  int reads = 0;
  node.faults.fail = [&](const store::Io& io, const std::string&) {
    return reads += io.op == store::Io::Op::read, 0;
  };
  CHECK(node.values->copy({"t", "a"}, {"t", "b"}, false).error().mc == err::kValueDiffers);
  CHECK(*node.values->copy({"t", "a"}, {"t", "shares"}, false) == ValueStore::PutResult::unchanged);
  CHECK(reads == 0);
  CHECK(*node.values->copy({"t", "a"}, {"t", "same"}, false) == ValueStore::PutResult::unchanged);
}

}  // namespace stored_values_test
