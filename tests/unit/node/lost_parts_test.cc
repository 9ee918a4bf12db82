// Blocks of a pipeline that lost a member, without the pipeline.

#include "node/lost_parts.h"

#include "bench.h"

namespace lost_parts_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;

namespace {

struct LostBench {
  kv::EventLog log;
  kv::Pool pool{{.page_count = 8}, log};
  LostParts lost{pool};
  std::vector<BlockHash> hashes = kv::chain(NamespaceId{}, std::vector<uint32_t>(64 * 4, 5), 64);

  ~LostBench() { pool.check(); }
  kv::PageIndex publish(size_t i) {
    const auto page = pool.allocate(1);
    REQUIRE_OK(page);
    kv::BlockMeta meta{hashes[i], i == 0 ? BlockHash{} : hashes[i - 1], {}, static_cast<uint32_t>(i * 64), {1, 2}};
    const kv::PageIndex at = pool.publish(page->front(), std::move(meta)).page;
    pool.unpin(at);
    return at;
  }
};

constexpr uint32_t kCrcs[] = {1, 2};

}  // namespace

TEST_CASE(
    "node/lost_parts: blocks leave the index with their pages, and are taken back with the members that lack them") {
  LostBench b;
  const kv::PageIndex first = b.publish(0), second = b.publish(1), held = b.publish(2);
  b.pool.pin(held);
  b.lost.lose(1);
  CHECK(b.pool.match(b.hashes) == 0);
  CHECK(b.lost.size() == 2);  // a request still reads the third, which is dropped
  CHECK(b.pool.counts().owned == 2);
  CHECK(b.pool.counts().draining == 1);
  b.pool.unpin(held);
  b.lost.lose(2);
  const auto one = b.lost.take(b.hashes[0], kCrcs);
  REQUIRE(one);
  CHECK((one->page == first && one->lost == 0b110));
  CHECK_FALSE(b.lost.take(b.hashes[0], kCrcs));
  CHECK_FALSE(b.lost.take(b.hashes[2], kCrcs));
  // The block of another computation has other bytes: nothing of this one can be used.
  const uint32_t other[] = {1, 3};
  CHECK_FALSE(b.lost.take(b.hashes[1], other));
  CHECK(b.lost.size() == 0);
  CHECK(b.pool.state(second) == kv::PageState::free);
  b.pool.release(first);
}

TEST_CASE("node/lost_parts: any other use of the pages comes first, and the least recently used go first") {
  LostBench b;
  for (size_t i = 0; i < 4; ++i) b.publish(i);
  b.pool.touch(std::span(b.hashes).first(4));  // the head of the chain is the most recent
  b.lost.lose(1);
  CHECK(b.lost.size() == 4);
  b.lost.make_room(5);
  CHECK(b.lost.size() == 3);
  CHECK(b.pool.available() == 5);
  CHECK_FALSE(b.lost.take(b.hashes[3], kCrcs));
  b.lost.make_room(100);
  CHECK(b.lost.size() == 0);
  CHECK(b.pool.counts().free == 8);
}

TEST_CASE("node/lost_parts: a block that was computed again is kept once, and lost again with its new page") {
  LostBench b;
  b.publish(0);
  b.lost.lose(1);
  b.lost.forget(b.hashes[0]);
  CHECK((b.lost.size() == 0 && b.pool.counts().free == 8));
  b.publish(0);
  b.lost.lose(1);
  const kv::PageIndex page = b.publish(0);  // fetched whole from another node
  b.lost.lose(2);
  REQUIRE(b.lost.size() == 1);
  const auto kept = b.lost.take(b.hashes[0], kCrcs);
  REQUIRE(kept);
  CHECK((kept->page == page && kept->lost == 0b100));
  b.pool.release(page);
}

}  // namespace lost_parts_test
