#include "kv/lease.h"

#include "test.h"

using namespace mc;
using namespace mc::kv;

namespace {

struct Fixture {
  EventLog log;
  Pool pool{{.page_count = 8}, log};
  Leases leases{pool, {.lease_count_max = 3, .holder_page_count_max = 4}};
  std::vector<PageIndex> pages = pool.allocate(8).value();
  TimePoint t0{};
  ~Fixture() {
    leases.check();
    pool.check();
  }
  std::span<const PageIndex> some(size_t count) { return std::span(pages).first(count); }
};

}  // namespace

TEST_CASE("kv/lease: a lease ends at its date, not before, and its pages come free then") {
  Fixture f;
  const auto id = f.leases.grant("d0", f.some(2), f.t0 + 5s);
  REQUIRE_OK(id);
  f.pool.release(f.some(2));
  CHECK(f.leases.next_expiry() == f.t0 + 5s);
  CHECK(f.leases.expire(f.t0 + 5s - 1ns).empty());
  CHECK(f.pool.counts().draining == 2);
  const auto over = f.leases.expire(f.t0 + 5s);
  REQUIRE(over.size() == 1);
  CHECK(over[0].id == *id);
  CHECK(over[0].holder == "d0");
  CHECK(over[0].pages.size() == 2);
  CHECK(f.pool.counts().free == 2);
  CHECK(f.leases.next_expiry() == kNever);
}

TEST_CASE("kv/lease: renewing moves the date later and never earlier") {
  Fixture f;
  const auto id = f.leases.grant("d0", f.some(1), f.t0 + 5s);
  REQUIRE_OK(id);
  REQUIRE_OK(f.leases.renew(*id, f.t0 + 9s));
  REQUIRE_OK(f.leases.renew(*id, f.t0 + 1s));
  CHECK(f.leases.next_expiry() == f.t0 + 9s);
  CHECK(f.leases.expire(f.t0 + 8s).empty());
}

TEST_CASE("kv/lease: a lease that is over cannot be renewed, extended or released again") {
  Fixture f;
  const auto id = f.leases.grant("d0", f.some(1), f.t0 + 1s);
  REQUIRE_OK(id);
  REQUIRE_OK(f.leases.release(*id));
  CHECK(f.leases.renew(*id, f.t0 + 9s).error().code == Code::not_found);
  CHECK(f.leases.extend(*id, f.some(1)).error().code == Code::not_found);
  CHECK(f.leases.release(*id).error().what == "lease: 1 is over");
  CHECK(f.leases.release(99).error().what == "lease: 99 was never granted");
}

TEST_CASE("kv/lease: two leases on one page both have to end") {
  Fixture f;
  const auto a = f.leases.grant("d0", f.some(1), f.t0 + 1s), b = f.leases.grant("d1", f.some(1), f.t0 + 2s);
  REQUIRE_OK(a);
  REQUIRE_OK(b);
  f.pool.release(f.some(1));
  f.leases.expire(f.t0 + 1s);
  CHECK(f.pool.counts().draining == 1);
  REQUIRE_OK(f.leases.release(*b));
  CHECK(f.pool.counts().free == 1);
}

TEST_CASE("kv/lease: one holder cannot lease everything, and a refused grant leaves no trace") {
  Fixture f;
  const auto id = f.leases.grant("d0", f.some(3), f.t0 + 1s);
  REQUIRE_OK(id);
  CHECK(f.leases.grant("d0", f.some(2), f.t0 + 1s).error().code == Code::busy);
  CHECK(f.leases.extend(*id, f.some(2)).error().code == Code::busy);
  CHECK(f.leases.pages_of("d0") == 3);
  REQUIRE_OK(f.leases.extend(*id, f.some(1)));
  REQUIRE_OK(f.leases.grant("d1", f.some(4), f.t0 + 1s));
  REQUIRE_OK(f.leases.grant("d2", f.some(1), f.t0 + 1s));
  const auto fourth = f.leases.grant("d3", f.some(1), f.t0 + 1s);
  REQUIRE_FALSE(fourth);
  CHECK(fourth.error().what == "lease: all 3 leases are in use");
  CHECK(f.leases.size() == 3);
  CHECK(f.leases.page_count() == 9);
}

TEST_CASE("kv/lease: expiry goes by date and then by id, whatever the order of grants") {
  Fixture f;
  REQUIRE_OK(f.leases.grant("c", f.some(1), f.t0 + 3s));
  REQUIRE_OK(f.leases.grant("a", f.some(1), f.t0 + 1s));
  REQUIRE_OK(f.leases.grant("b", f.some(1), f.t0 + 1s));
  const auto over = f.leases.expire(f.t0 + 10s);
  REQUIRE(over.size() == 3);
  CHECK(over[0].holder == "a");
  CHECK(over[1].holder == "b");
  CHECK(over[2].holder == "c");
}

TEST_CASE("kv/lease: leases of no pages come and go like others") {
  Fixture f;
  REQUIRE_OK(f.leases.grant("d0", {}, f.t0 + 1s));
  REQUIRE_OK(f.leases.grant("d0", f.some(1), f.t0 + 1s));
  REQUIRE_OK(f.leases.grant("d0", {}, f.t0 + 2s));
  CHECK(f.leases.expire(f.t0 + 5s).size() == 3);
  CHECK(f.leases.pages_of("d0") == 0);
}
