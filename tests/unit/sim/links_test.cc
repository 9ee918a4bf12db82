#include "sim/links.h"

#include <map>

#include "base/rng.h"
#include "kv/index.h"
#include "sched/sched.h"
#include "sim/tiers.h"
#include "test.h"

using namespace mc;
using namespace mc::sim;

namespace {

// Runs transfers to their ends; when each was over.
struct Network {
  Links links{4, 100};
  std::map<uint32_t, double> over;
  double now_s = 0;

  void run(double to_s) {
    while (links.next_s() <= to_s) {
      now_s = links.next_s();
      over[links.finish_next()] = now_s;
    }
    now_s = to_s;
  }
  uint32_t start(uint32_t from, uint32_t to, double bytes, double cap = 1e9) {
    return links.start(now_s, from, to, bytes, cap);
  }
};

}  // namespace

TEST_CASE("sim/links: transfers that leave one node share its link, others do not") {
  Network n;
  const uint32_t a = n.start(0, 1, 100), b = n.start(0, 2, 100), c = n.start(3, 0, 100);
  CHECK(n.links.leaving(0) == 2);
  CHECK(n.links.leaving_bytes(0, 0.5) == doctest::Approx(150));
  n.run(10);
  CHECK(n.over[a] == doctest::Approx(2));
  CHECK(n.over[b] == doctest::Approx(2));
  CHECK(n.over[c] == doctest::Approx(1));
}

TEST_CASE("sim/links: who is left goes faster, and a stream goes no faster than it is made") {
  Network n;
  const uint32_t a = n.start(0, 1, 50), b = n.start(2, 1, 100);
  n.run(10);
  CHECK(n.over[a] == doctest::Approx(1));
  CHECK(n.over[b] == doctest::Approx(1.5));
  const uint32_t c = n.start(0, 1, 100, 20);
  n.run(20);
  CHECK(n.over[c] == doctest::Approx(15));
  const uint32_t d = n.start(0, 1, 200, 20), e = n.start(0, 2, 160);  // 20 of 100 leave 80
  n.run(40);
  CHECK(n.over[e] == doctest::Approx(22));
  CHECK(n.over[d] == doctest::Approx(30));
}

TEST_CASE("sim/links: an end that is stopped sends and receives nothing more, and the others go faster") {
  Network n;
  const uint32_t from = n.start(0, 1, 100), to = n.start(2, 0, 100), other = n.start(2, 1, 100);
  n.run(1);
  n.links.stop(n.now_s, 0);
  CHECK(n.links.leaving(0) == 0);
  CHECK(n.links.moved_bytes() == doctest::Approx(50 + 50 + 100));
  n.run(10);
  CHECK_FALSE(n.over.contains(from));
  CHECK_FALSE(n.over.contains(to));
  CHECK(n.over[other] == doctest::Approx(1.5));
  const uint32_t again = n.start(0, 1, 100);
  n.run(20);
  CHECK(n.over[again] == doctest::Approx(11));
}

TEST_CASE("sim/links: whatever starts when, transfers end in order, and links carry what they can and no more") {
  Rng rng(test::seed());
  Network n;
  double now_s = 0, bytes = 0;
  std::map<uint32_t, double> sizes;
  for (int i = 0; i < 300; ++i) {
    now_s += rng.chance(0.3) ? 0 : rng.uniform() * 3;
    double last_s = 0;
    while (n.links.next_s() <= now_s) {
      CHECK(n.links.next_s() >= last_s);
      last_s = n.links.next_s();
      sizes.erase(n.links.finish_next());
    }
    n.now_s = now_s;
    const double size = rng.uniform() * 400;
    const uint32_t from = static_cast<uint32_t>(rng.below(2));
    sizes[n.start(from, static_cast<uint32_t>(2 + rng.below(2)), size, rng.chance(0.5) ? 1e9 : 30)] = size;
    bytes += size;
    double under_way = 0, left = n.links.leaving_bytes(0, now_s) + n.links.leaving_bytes(1, now_s);
    for (const auto& [id, of] : sizes) under_way += of;
    CHECK(n.links.leaving(0) + n.links.leaving(1) == sizes.size());
    CHECK(left <= under_way * (1 + 1e-9));
    CHECK(bytes - left <= now_s * 2 * 100 * (1 + 1e-9));
  }
  n.run(1e9);
  CHECK(n.links.leaving(0) + n.links.leaving(1) == 0);
  CHECK(n.links.next_s() == Links::kNever);
  CHECK(n.links.moved_bytes() == doctest::Approx(bytes));
}

TEST_CASE("sim/tiers: blocks are readable when settled, move to SSD, and are gone with the node") {
  TieredCaches caches(2, 3, 2, 10);
  CacheMatch found(2);
  const std::vector<uint32_t> first = {0, 1, 2}, second = {3, 4};
  caches.use(0, first, 7);
  caches.match(first, found);
  CHECK(found.resident == std::vector<uint32_t>{3, 0});
  CHECK(found.readable == std::vector<uint32_t>{0, 0});
  CHECK(caches.maker(2) == 7);
  caches.settle(0, first);
  caches.match(first, found);
  CHECK(found.readable == std::vector<uint32_t>{3, 0});
  caches.use(0, second, 8);  // 2 and 1 were used before 0: they go to SSD
  caches.match(first, found);
  CHECK(found.resident[0] == 3);
  CHECK(caches.on_ssd(0, first) == 2);
  CHECK(found.on_ssd == std::vector<uint32_t>{2, 0});
  CHECK((!caches.is_on_ssd(0, 0) && caches.is_on_ssd(0, 1)));
  CHECK(caches.replicas(0) == 1);
  caches.drop(0);
  caches.match(first, found);
  CHECK(found.resident[0] == 0);
}

TEST_CASE("sim/tiers: a pending block whose maker was given up comes from its heir, or is forgotten") {
  TieredCaches caches(2, 3, 2, 10);
  const std::vector<uint32_t> blocks = {0, 1, 2};
  CacheMatch found(2);
  caches.use(0, {blocks.data(), 1}, 6);
  caches.settle(0, {blocks.data(), 1});
  caches.use(0, blocks, 7);
  caches.pass_on(0, 0, std::nullopt);  // it is not pending
  caches.pass_on(0, 1, 9);
  caches.pass_on(0, 2, std::nullopt);
  caches.match(blocks, found);
  CHECK(found.resident[0] == 2);
  CHECK(found.readable[0] == 1);
  CHECK(caches.is_readable(0, 0));
  CHECK_FALSE(caches.is_readable(0, 1));
  CHECK(caches.maker(1) == 9);
  CHECK_FALSE(caches.holds(0, 2));
  const std::vector<uint32_t> other = {5};
  caches.use(0, other, 8);  // in the room of the forgotten block
  CHECK(caches.on_ssd(0, blocks) == 0);
  caches.use(0, blocks, 10);
  CHECK(caches.maker(2) == 10);
  CHECK(caches.maker(1) == 9);
}

TEST_CASE("sim/tiers: the runs of a prompt are those that a conductor's index finds") {
  INFO("seed ", test::seed());
  Rng rng(test::seed());
  const uint32_t nodes = 70, count = 16;
  size_t compared = 0;
  for (int round = 0; round < 300; ++round) {
    TieredCaches caches(nodes, 3, 100, count);
    kv::PrefixIndex index;
    std::vector<uint32_t> prompt;
    std::vector<BlockHash> hashes(count);
    for (uint32_t i = 0; i < count; ++i) prompt.push_back(i), hashes[i].bytes[0] = static_cast<uint8_t>(i + 1);
    for (uint32_t node = 0; node < nodes; ++node) {
      if (rng.chance(0.9)) {
        index.add_node("n" + std::to_string(node));
        continue;
      }
      for (int i = 0; i < 6; ++i) {
        const uint32_t first = static_cast<uint32_t>(rng.below(count));
        const auto used = std::span(prompt).subspan(first, 1 + rng.below(count - first));
        caches.use(node, used, 0);
        if (rng.chance(0.8)) caches.settle(node, used);
      }
      std::vector<kv::ResidentBlock> readable;
      for (const uint32_t block : prompt)
        if (caches.is_readable(node, block))
          readable.push_back({.hash = hashes[block],
                              .parent = block == 0 ? BlockHash{} : hashes[block - 1],
                              .first_position = block * 512,
                              .tier = caches.is_on_ssd(node, block) ? kv::Tier::disk : kv::Tier::host});
      index.replace(index.add_node("n" + std::to_string(node)), 1, readable);
    }
    const auto first = static_cast<uint32_t>(rng.below(count));
    for (const size_t most : {size_t{2}, sched::kRunsMax}) {
      std::vector<kv::NodeRun> ours, theirs;
      caches.runs(prompt, first, most, ours);
      index.runs(hashes, first, most, theirs);
      CHECK(ours == theirs);
      compared += ours.size();
    }
  }
  CHECK(compared > 1000);
}
