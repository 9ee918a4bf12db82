// A request's pages: shared ones that are pinned, own ones, and the change from one to the other.

#include "node/held_pages.h"

#include "kv/chain.h"
#include "test.h"

using namespace mc;
using namespace mc::node;

namespace {

struct Pages {
  kv::EventLog log;
  kv::Pool pool{{.page_count = 4}, log};
  std::vector<BlockHash> hashes = kv::chain(NamespaceId{}, std::vector<uint32_t>(64 * 4, 5), 64);
  kv::BlockMeta meta(uint32_t block) const {
    return {hashes[block], block == 0 ? BlockHash{} : hashes[block - 1], NamespaceId{}, block * 64, {}};
  }
  ~Pages() { pool.check(); }
};

}  // namespace

TEST_CASE("node/held_pages: a published page is shared, and the rest goes back to the pool") {
  Pages p;
  HeldPages first;
  REQUIRE_OK(first.allocate(p.pool, 2));
  CHECK(first.publish(p.pool, 0, p.meta(0)));
  CHECK(first.pinned(0));
  CHECK_FALSE(first.pinned(1));
  CHECK(first.pinned_count() == 1);

  HeldPages second;
  CHECK(second.pin_prefix(p.pool, p.hashes) == 1);
  CHECK(second[0] == first[0]);
  first.release(p.pool);
  CHECK(first.empty());
  CHECK(p.pool.pins(second[0]) == 1);
  CHECK(p.pool.counts().free == 3);
  second.release(p.pool);
  CHECK(p.pool.counts().cached == 1);
}

TEST_CASE("node/held_pages: a block that the pool has already leaves our page private") {
  Pages p;
  HeldPages first, second;
  REQUIRE_OK(first.allocate(p.pool, 1));
  REQUIRE_OK(second.allocate(p.pool, 1));
  CHECK(first.publish(p.pool, 0, p.meta(0)));
  CHECK_FALSE(first.publish(p.pool, 0, p.meta(0)));
  CHECK_FALSE(second.publish(p.pool, 0, p.meta(0)));
  CHECK_FALSE(second.pinned(0));
  first.release(p.pool), second.release(p.pool);
}

TEST_CASE("node/held_pages: pages come all or none, and can go from the end") {
  Pages p;
  HeldPages pages;
  REQUIRE_OK(pages.allocate(p.pool, 3));
  CHECK_FALSE(pages.allocate(p.pool, 2));
  CHECK(pages.size() == 3);
  pages.release_from(p.pool, 1);
  CHECK(pages.size() == 1);
  CHECK(p.pool.counts().free == 3);
  pages.release(p.pool);
}
