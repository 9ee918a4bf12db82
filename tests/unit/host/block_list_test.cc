// The list of a node's blocks: made in bounded steps, right while blocks come and leave, and for a few callers at once.

#include "host/block_list.h"

#include <algorithm>
#include <thread>

#include "base/errors.h"
#include "base/json.h"
#include "base/rng.h"
#include "node/disk_block.h"
#include "unit/host/list_server.h"
#include "unit/http/raw_client.h"
#include "unit/node/bench.h"

namespace block_list_test {

using namespace mc;
using namespace mc::host;

namespace {

BlockHash hash_of(uint64_t n) {
  BlockHash out;
  std::memcpy(out.bytes.data(), &n, sizeof n);
  out.bytes[15] = 1;
  return out;
}

/// One pool and a disk, without a node around them.
struct ListBench {
  explicit ListBench(uint32_t pages)
      : shelf(node::bench::layout_of(1), pages, pages, kv::kLruTail, log),
        disk({.capacity_bytes = uint64_t{1} << 40}, log, numbers) {}

  void publish(uint64_t n) {
    const auto page = shelf.pool.allocate(1);
    REQUIRE_OK(page);
    kv::BlockMeta meta{hash_of(n), {}, {}, 0, {}};
    shelf.pool.unpin(shelf.pool.publish(page->front(), std::move(meta)).page);
  }
  void find_on_disk(uint64_t from, uint64_t count) {
    node::DiskFound found;
    for (uint64_t n = from; n < from + count; ++n) found.blocks.push_back({hash_of(n), {}, {}, 0, shelf.layout, {7}});
    CHECK(disk.on_event(
        found, [](const node::DiskBlock&) { return true; }, TimePoint{}, actions));
  }
  bool step(BlockListing& listing) { return listing.step({name, shelves, disk, pins, names, uses, now}); }
  Json list(const BlockQuery& query, size_t* steps = nullptr) {
    BlockListing listing(query);
    size_t count = 1;
    while (!step(listing)) ++count;
    if (steps) *steps = count;
    const auto json = Json::parse(listing.take());
    REQUIRE_OK(json);
    return *json;
  }

  const std::string name = "n0";
  kv::EventLog log;
  node::Numbers numbers;
  node::Shelf shelf;
  node::Shelf* const shelves[1] = {&shelf};
  node::DiskTier disk;
  node::OperatorPins pins{1 << 30};
  node::NamespaceBook names;
  node::UseClock uses;
  TimePoint now = TimePoint{} + 3600s;
  node::Actions actions;
};

struct HeldLoop final : node::MachineLoop {
  void post(Task task) override {
    const std::lock_guard lock(mutex);
    tasks.push_back(std::move(task));
  }
  void deliver(const node::Event&) override {}
  /// False: there was no task.
  bool run() {
    for (bool any = false;; any = true) {
      Task task;
      {
        const std::lock_guard lock(mutex);
        if (tasks.empty()) return any;
        task = std::move(tasks.front());
        tasks.pop_front();
      }
      node::Actions actions;
      task(TimePoint{}, actions);
      ++ran;
    }
  }
  size_t ran = 0;  // tasks
  std::mutex mutex;
  std::deque<Task> tasks;
};

}  // namespace

TEST_CASE("host/block_list: the query of a list of blocks is checked") {
  const auto query = parse_block_query("sort=recent&limit=7");
  REQUIRE_OK(query);
  CHECK(query->sort == BlockQuery::Sort::recent);
  CHECK(query->limit == 7);
  CHECK(parse_block_query("sort=hits")->sort == BlockQuery::Sort::uses);
  CHECK(parse_block_query("")->limit == 1000);
  CHECK(parse_block_query("limit=100000")->limit == 10000);
  for (const char* wrong : {"sort=size", "limit=", "limit=-1", "x", "sort=uses&&"})
    CHECK_FALSE(parse_block_query(wrong).has_value());
}

TEST_CASE("host/block_list: the age of a block is the time since its last use, in memory and on disk") {
  ListBench b(4);
  b.publish(1);
  b.uses.look(b.shelves, b.now);
  b.find_on_disk(2, 1);  // at TimePoint{}
  b.now += 90s;
  b.publish(3);  // no sample of its use yet
  const Json blocks = b.list({.sort = BlockQuery::Sort::recent})["blocks"];
  REQUIRE(blocks.size() == 3);
  CHECK(blocks[0]["age_ms"].as_int() == 0);
  CHECK(blocks[1]["age_ms"].as_int() == 90'000);
  CHECK(blocks[2]["age_ms"].as_int() == 3'690'000);
}

TEST_CASE("host/block_list: a list in many steps has the blocks most used, then those on disk alone by name") {
  constexpr uint32_t kPages = 12'000;
  ListBench b(kPages);
  for (uint64_t n = 0; n < kPages; ++n) b.publish(n);
  for (uint64_t n = 5000; n < 5600; ++n)
    for (uint64_t times = n; times < 5600; times += 100) b.shelf.pool.touch(std::array{hash_of(n)});
  b.find_on_disk(kPages - 10, 1000);
  size_t steps = 0;
  const Json list = b.list({.sort = BlockQuery::Sort::uses, .limit = 600}, &steps);
  CHECK_GE(steps, kPages / BlockListing::kLooksAStep + 600 / BlockListing::kRowsAStep);
  CHECK(list["node"].as_string() == "n0");
  CHECK(list["memory_blocks"].as_int() == kPages);
  CHECK(list["disk_blocks"].as_int() == 1000);
  CHECK(list["disk_only_blocks"].as_int() == 990);
  const auto& blocks = list["blocks"].items();
  REQUIRE(blocks.size() == 1200);
  for (size_t i = 1; i < 600; ++i) CHECK(blocks[i - 1]["uses"].as_int() >= blocks[i]["uses"].as_int());
  CHECK(blocks[0]["uses"].as_int() == 7);
  CHECK(blocks[599]["uses"].as_int() == 2);
  for (size_t i = 601; i < 1200; ++i) CHECK(blocks[i - 1]["id"].as_string() < blocks[i]["id"].as_string());
  CHECK(b.list({.limit = 0})["blocks"].size() == 0);
}

TEST_CASE("host/block_list: a pinned block shows how long its pin lasts, and its pin is no lease of a reader") {
  ListBench b(4);
  b.publish(1), b.publish(2);
  const std::vector<kv::PageIndex> pages{b.shelf.pool.find(hash_of(1))};
  REQUIRE_OK(b.pins.pin(hash_of(1), b.shelf, pages, b.now + 90s));
  const Json list = b.list({.sort = BlockQuery::Sort::uses, .limit = 10});
  for (const Json& block : list["blocks"].items()) {
    const bool is_pinned = block["id"].as_string() == hash_of(1).hex();
    CHECK(block.has("pin_ms") == is_pinned);
    if (is_pinned) CHECK(block["pin_ms"].as_double() == 90'000);
    CHECK(block["leases"].as_int() == 0);
  }
  CHECK(list["pinned_bytes"].as_int() == static_cast<int64_t>(b.shelf.layout.page_bytes()));
  CHECK(list["pinned_bytes_max"].as_int() == 1 << 29);
}

TEST_CASE("host/block_list: a block shows its model and tenant as far as the node knows them") {
  ListBench b(4);
  const kv::Namespace kv = node::bench::namespace_of(b.shelf.layout);
  b.publish(1), b.find_on_disk(2, 1);
  const Json unknown = b.list({});
  for (const Json& block : unknown["blocks"].items()) CHECK_FALSE((block.has("model") || block.has("tenant")));
  b.names.add({}, kv, "m");
  const Json salted = b.list({});
  for (const Json& block : salted["blocks"].items()) {
    CHECK(block["model"].as_string() == "m");
    CHECK_FALSE(block.has("tenant"));  // it is in the salt, which the text lacks
  }
  b.names.add({}, kv, "m", "alice");
  const Json list = b.list({});
  REQUIRE(list["blocks"].size() == 2);
  for (const Json& block : list["blocks"].items()) CHECK(block["tenant"].as_string() == "alice");
}

TEST_CASE("host/block_list: blocks that come and leave between the steps of a list leave the others in it once") {
  constexpr uint32_t kPages = 8000;
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  ListBench b(kPages);
  for (uint64_t n = 0; n < kPages; ++n) b.publish(n);
  b.find_on_disk(100'000, 1000);
  BlockListing listing({.sort = BlockQuery::Sort::position, .limit = 10'000});
  std::vector<bool> left(kPages);
  uint64_t fresh = 200'000;
  while (!b.step(listing)) {
    for (int i = 0; i < 20; ++i) {
      const uint64_t gone = rng.below(kPages);
      if (!left[gone]) b.shelf.pool.remove(hash_of(gone), kv::Removal::evicted), b.publish(fresh++);
      left[gone] = true;
    }
    b.find_on_disk(fresh++, 1);
  }
  const auto list = Json::parse(listing.take());
  REQUIRE_OK(list);
  std::vector<std::string> ids;
  for (const Json& block : (*list)["blocks"].items()) ids.emplace_back(block["id"].as_string());
  std::sort(ids.begin(), ids.end());
  CHECK(std::adjacent_find(ids.begin(), ids.end()) == ids.end());
  for (uint64_t n = 0; n < kPages; ++n)
    if (!left[n]) CHECK(std::binary_search(ids.begin(), ids.end(), hash_of(n).hex()));
  for (uint64_t n = 100'000; n < 101'000; ++n) CHECK(std::binary_search(ids.begin(), ids.end(), hash_of(n).hex()));
}

TEST_CASE("host/block_list: the call behind eight that wait is answered 429 and each other one 200") {
  ListServer<HeldLoop> b;
  std::deque<test::RawClient> clients;
  const TimePoint deadline = test::patience();
  for (size_t i = 0; i < BlockLister::kWaitingMax; ++i) {
    clients.emplace_back(b.port()).send(b.get);
    while (b.server->stats().requests < i + 1 && SystemClock::instance().now() < deadline) std::this_thread::yield();
  }
  test::RawClient late(b.port());
  late.send(b.get);
  const std::string refused = late.read_response();
  CHECK(refused.starts_with("HTTP/1.1 429 "));
  CHECK(refused.find("Retry-After: 1\r\n") != std::string::npos);
  CHECK(refused.find("8 lists of blocks wait already") != std::string::npos);
  b.loop.run();
  for (test::RawClient& client : clients) CHECK(client.read_response().starts_with("HTTP/1.1 200 "));
  late.send(b.get);  // there is room again
  while (!b.loop.run() && SystemClock::instance().now() < deadline) std::this_thread::yield();
  CHECK(late.read_response().starts_with("HTTP/1.1 200 "));
}

TEST_CASE("host/block_list: clients that left keep nobody out, and no list is made for them") {
  ListServer<HeldLoop> b;
  const TimePoint deadline = test::patience();
  const auto wait_for = [&](auto is_true) {
    while (!is_true() && SystemClock::instance().now() < deadline) std::this_thread::yield();
    REQUIRE(is_true());
  };
  {
    std::deque<test::RawClient> leaving;
    for (size_t i = 0; i < BlockLister::kWaitingMax; ++i) leaving.emplace_back(b.port()).send(b.get);
    wait_for([&] { return b.server->stats().requests == BlockLister::kWaitingMax; });
  }
  wait_for([&] { return b.server->stats().connections == 0; });
  test::RawClient late(b.port());
  late.send(b.get);
  wait_for([&] { return b.server->stats().requests == BlockLister::kWaitingMax + 1; });
  {
    // A request is counted before its first task is posted, so one run could come too early.
    const std::jthread runs([&](const std::stop_token& end) {
      while (!end.stop_requested())
        if (!b.loop.run()) std::this_thread::yield();
    });
    CHECK(late.read_response().starts_with("HTTP/1.1 200 "));
  }
  CHECK_LE(b.loop.ran, 8);  // the steps of one list
}

}  // namespace block_list_test
