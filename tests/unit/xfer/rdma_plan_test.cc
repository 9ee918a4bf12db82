#include "base/rng.h"
#include "test.h"
#include "xfer_rdma/plan.h"

namespace rdma_plan_test {

using namespace mc;
using namespace mc::xfer;

namespace {

/// A local and a remote registration, 1 KiB to a chunk; keys are chunk number + 100 (local), + 200.
struct World {
  static constexpr uint64_t kLocal = 0x10000;
  static constexpr uint64_t kRemote = 0x900000;
  static constexpr uint64_t kBytes = 16384;
  std::vector<uint32_t> local_keys, remote_keys;
  World() {
    for (uint32_t i = 0; i < 16; ++i) {
      local_keys.push_back(100 + i);
      remote_keys.push_back(200 + i);
    }
  }
  PlanItem item(uint64_t local_at, uint64_t remote_at, uint64_t bytes, Op op = Op::read) const {
    Slice slice{.op = op, .offset = remote_at};
    slice.local = {reinterpret_cast<std::byte*>(kLocal + local_at), bytes};
    return {slice, {kLocal, kBytes, 1024, local_keys}, {kRemote, kBytes, 1024, remote_keys}};
  }
};

}  // namespace

TEST_CASE("xfer/rdma_plan: a slice inside one chunk is one request with that chunk's keys") {
  const World world;
  WorkPlan plan;
  plan_works(std::vector{world.item(2048, 5 * 1024 + 8, 100, Op::write)}, {.works = 8}, plan);
  REQUIRE(plan.works.size() == 1);
  CHECK(plan.taken == 1);
  CHECK(plan.works[0].op == Op::write);
  CHECK(plan.works[0].remote == World::kRemote + 5 * 1024 + 8);
  CHECK(plan.works[0].key == 205);
  CHECK(plan.works[0].bytes == 100);
  CHECK(plan.works[0].slices_ended == 1);
  REQUIRE(plan.pieces.size() == 1);
  CHECK(plan.pieces[0].address == World::kLocal + 2048);
  CHECK(plan.pieces[0].key == 102);
}

TEST_CASE("xfer/rdma_plan: a slice over a chunk's end ends with its last request") {
  const World world;
  WorkPlan plan;
  plan_works(std::vector{world.item(0, 1000, 100)}, {.works = 8, .gather = 4}, plan);
  REQUIRE(plan.works.size() == 2);
  CHECK(plan.works[0].bytes == 24);
  CHECK(plan.works[0].slices_ended == 0);
  CHECK(plan.works[1].bytes == 76);
  CHECK(plan.works[1].key == 201);
  CHECK(plan.works[1].slices_ended == 1);
  // over a local chunk only: gathered when there is room, else two requests
  plan_works(std::vector{world.item(1000, 0, 100)}, {.works = 8, .gather = 2}, plan);
  CHECK(plan.works.size() == 1);
  CHECK(plan.pieces.size() == 2);
  plan_works(std::vector{world.item(1000, 0, 100)}, {.works = 8, .gather = 1}, plan);
  CHECK(plan.works.size() == 2);
}

TEST_CASE("xfer/rdma_plan: scattered pieces of one remote range are gathered, up to the NIC's limit") {
  const World world;
  std::vector<PlanItem> items;
  for (uint64_t i = 0; i < 8; ++i) items.push_back(world.item(2048 - i * 256, i * 64, 64));
  WorkPlan plan;
  plan_works(items, {.works = 8, .gather = 3}, plan);
  REQUIRE(plan.works.size() == 3);
  CHECK(plan.works[0].piece_count == 3);
  CHECK(plan.works[0].slices_ended == 3);
  CHECK(plan.works[2].piece_count == 2);
  CHECK(plan.taken == 8);
  plan_works(items, {.works = 8, .gather = 30, .bytes = 128}, plan);
  CHECK(plan.works.size() == 4);
}

TEST_CASE("xfer/rdma_plan: reads and writes, or gaps, do not share a request") {
  const World world;
  WorkPlan plan;
  plan_works(std::vector{world.item(0, 0, 64), world.item(64, 64, 64, Op::write), world.item(128, 256, 64, Op::write)},
             {.works = 8, .gather = 8}, plan);
  CHECK(plan.works.size() == 3);
}

TEST_CASE("xfer/rdma_plan: an item that does not fit leaves no trace") {
  const World world;
  WorkPlan plan;
  const std::vector items = {world.item(0, 0, 64), world.item(512, 64, 2048)};  // the second needs three requests
  plan_works(items, {.works = 2, .gather = 4}, plan);
  CHECK(plan.taken == 1);
  REQUIRE(plan.works.size() == 1);
  CHECK(plan.works[0].bytes == 64);
  CHECK(plan.works[0].slices_ended == 1);
  CHECK(plan.pieces.size() == 1);
  CHECK(plan.pieces[0].bytes == 64);
}

TEST_CASE("xfer/rdma_plan: a slice alone is the one request that a plan of it would be, unless a chunk ends in it") {
  const World world;
  Rng rng(mc::test::seed());
  for (int round = 0; round < 500; ++round) {
    const uint64_t bytes = 1 + rng.below(rng.chance(0.5) ? 64 : 1500);
    const PlanItem item = world.item(rng.below(World::kBytes - bytes + 1), rng.below(World::kBytes - bytes + 1), bytes,
                                     rng.chance(0.5) ? Op::read : Op::write);
    WorkPlan plan;
    plan_works({&item, 1}, {.works = 8, .gather = 1}, plan);
    SingleWork work;
    const bool one = plan_one(item.slice, item.local, item.remote, work);
    CHECK(one == (plan.works.size() == 1));
    if (!one) continue;
    CHECK(work.remote == plan.works[0].remote);
    CHECK(work.key == plan.works[0].key);
    CHECK(work.local.bytes == plan.works[0].bytes);
    CHECK(work.local.address == plan.pieces[0].address);
    CHECK(work.local.bytes == plan.pieces[0].bytes);
    CHECK(work.local.key == plan.pieces[0].key);
  }
}

TEST_CASE("xfer/rdma_plan: every byte is moved exactly once, between the right places, with the right keys") {
  const World world;
  Rng rng(mc::test::seed());
  for (int round = 0; round < 300; ++round) {
    std::vector<PlanItem> items;
    uint64_t follow = 0;
    for (int i = 0; i < 10; ++i) {
      const uint64_t bytes = 1 + rng.below(rng.chance(0.5) ? 64 : 3000);
      uint64_t remote =
          rng.chance(0.6) && follow + bytes <= World::kBytes ? follow : rng.below(World::kBytes - bytes + 1);
      items.push_back(
          world.item(rng.below(World::kBytes - bytes + 1), remote, bytes, rng.chance(0.8) ? Op::read : Op::write));
      follow = remote + bytes;
    }
    const PlanLimits limits{.works = 1 + rng.below(40), .gather = 1 + rng.below(5), .bytes = 4096};
    WorkPlan plan;
    plan_works(items, limits, plan);
    CHECK(plan.works.size() <= limits.works);
    // walk the plan and the items side by side
    size_t item = 0, ended = 0;
    bool right = true;
    uint64_t at = 0;
    for (const RdmaWork& work : plan.works) {
      CHECK(work.piece_count <= limits.gather);
      uint64_t remote = work.remote;
      for (size_t p = 0; p < work.piece_count; ++p) {
        const LocalPiece& piece = plan.pieces[work.first_piece + p];
        CHECK(piece.key == 100 + (piece.address - World::kLocal) / 1024);
        CHECK((piece.address - World::kLocal) / 1024 == (piece.address + piece.bytes - 1 - World::kLocal) / 1024);
        for (uint32_t byte = 0; byte < piece.bytes; ++byte, ++remote) {
          const PlanItem& now = items[item];
          right &= now.slice.op == work.op &&
                   reinterpret_cast<uint64_t>(now.slice.local.data()) + at == piece.address + byte &&
                   World::kRemote + now.slice.offset + at == remote &&
                   work.key == 200 + (remote - World::kRemote) / 1024;
          if (++at == now.slice.local.size()) {
            ++item;
            at = 0;
          }
        }
      }
      CHECK(remote == work.remote + work.bytes);
      ended += work.slices_ended;
      CHECK(ended <= item);
    }
    CHECK(right);
    CHECK(at == 0);
    CHECK(item == plan.taken);
    CHECK(ended == plan.taken);
  }
}

TEST_CASE(
    "xfer/rdma_plan: an immediate travels with the last request of its slice, and nothing is gathered behind it") {
  const World world;
  WorkPlan plan;
  std::vector<PlanItem> items = {world.item(0, 0, 64, Op::write), world.item(512, 64, 64, Op::write),
                                 world.item(256, 128, 64, Op::write), world.item(2000, 2000, 100, Op::write)};
  items[1].slice.immediate = 7;
  items[3].slice.immediate = 0;
  plan_works(items, {.works = 8, .gather = 8}, plan);
  REQUIRE(plan.works.size() == 4);
  CHECK(plan.works[0].slices_ended == 2);
  CHECK(plan.works[0].immediate == 7u);
  CHECK(plan.works[1].bytes == 64);
  CHECK(!plan.works[1].immediate);
  CHECK(!plan.works[2].immediate);  // the first part of one that crosses a chunk
  CHECK(plan.works[3].immediate == 0u);
}

}  // namespace rdma_plan_test
