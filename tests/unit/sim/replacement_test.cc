#include "sim/replacement.h"

#include "sim/lru.h"
#include "sim/sharing.h"
#include "test.h"

using namespace mc;
using namespace mc::sim;

namespace {

std::vector<TraceRequest> prompts(const std::vector<std::vector<uint64_t>>& ids) {
  std::vector<TraceRequest> out;
  for (const auto& list : ids) out.push_back({1000.0 * static_cast<double>(out.size()), 512 * list.size(), 1, list});
  return out;
}

std::vector<uint32_t> replay(const std::vector<std::vector<uint64_t>>& ids, uint64_t size, std::string_view name) {
  const std::vector<TraceRequest> trace = prompts(ids);
  return replay_cache(TraceBlocks(trace), size, *find_replacement(name));
}

using Runs = std::vector<uint32_t>;

}  // namespace

TEST_CASE("sim/replacement: each rule evicts what its name says") {
  // A cache of two: block 1 is stored first, used most and last; 2 is stored later.
  const std::vector<std::vector<uint64_t>> ids = {{1}, {1}, {2}, {1}, {3}, {1}, {2}};
  CHECK(replay(ids, 2, "lru") == Runs{0, 1, 0, 1, 0, 1, 0});
  CHECK(replay(ids, 2, "fifo") == Runs{0, 1, 0, 1, 0, 0, 0});
  CHECK(replay(ids, 2, "lfu") == Runs{0, 1, 0, 1, 0, 1, 0});
  CHECK(replay(ids, 2, "belady") == Runs{0, 1, 0, 1, 0, 1, 1});  // 3 is not worth storing
}

TEST_CASE("sim/replacement: uses before an eviction count for ever or not") {
  // 1 was used twice and evicted by 2 and 3; back again it outlives 2 only if its past counts.
  const std::vector<std::vector<uint64_t>> ids = {{1}, {1}, {1}, {2}, {2}, {2}, {2}, {3}, {1}, {4}, {1}};
  CHECK(replay(ids, 1, "lfu-forever").back() == 0);
  CHECK(replay(ids, 2, "lfu").back() == replay(ids, 2, "lfu").at(8));
}

TEST_CASE("sim/replacement: touching heads last keeps the head of a prompt that is too long") {
  const std::vector<std::vector<uint64_t>> ids = {{1, 2, 3}, {1, 2, 3}};
  CHECK(replay(ids, 2, "lru") == Runs{0, 2});
  CHECK(replay(ids, 2, "lru-head") == Runs{0, 0});
  CHECK(replay(ids, 2, "length-aware") == Runs{0, 2});
}

TEST_CASE("sim/replacement: without a bound every rule hits the same") {
  const std::vector<std::vector<uint64_t>> ids = {{1, 2}, {1, 3}, {1, 2, 4}, {5}, {1, 2, 4, 6}};
  for (const Replacement& r : replacements()) CHECK(replay(ids, kUnlimitedBlocks, r.name) == Runs{0, 1, 2, 0, 3});
}

TEST_CASE("sim/sharing: a parent is the last request with the deepest known block") {
  const auto trace = prompts({{0, 1}, {0, 2}, {0, 1, 3}, {0, 1, 3, 4}, {0, 1, 5}, {0, 9}});
  const Sharing s = find_sharing(trace, TraceBlocks(trace));
  CHECK(s.common_blocks == 1);
  CHECK(s.parents == std::vector<size_t>{kNoParent, kNoParent, 0, 2, 3, kNoParent});
  CHECK(s.known_blocks == Runs{0, 1, 2, 3, 2, 1});
  CHECK(s.session_sizes == std::vector<uint64_t>{4, 1, 1});
  CHECK(s.uses[0] == 6);
  CHECK(s.reuse_gaps_s.size() == 9);
}

TEST_CASE("sim/sharing: a stack distance counts distinct blocks, once each") {
  const auto trace = prompts({{7}, {8}, {8}, {9}, {7}});
  const Sharing s = find_sharing(trace, TraceBlocks(trace));
  CHECK(s.stack_distances == std::vector<double>{0, 2});
}
