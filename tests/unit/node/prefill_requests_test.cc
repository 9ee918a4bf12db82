// The books of prefill requests, without the machine that fills them.

#include "node/prefill_requests.h"

#include "bench.h"

namespace prefill_requests_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;

namespace {

using Phase = PrefillRequest::Phase;

struct Books {
  PrefillRequests books;
  const TimePoint now = TimePoint{} + 100s;

  ~Books() { books.check(); }

  /// A request in the queue, whose prompt of `blocks` blocks begins with `first`.
  PrefillRequest& enqueue(const std::string& req, uint32_t first, uint32_t blocks = 2, bool no_cache = false) {
    std::vector<uint32_t> ids(blocks * 64, 5);
    ids[0] = first;
    auto r = std::make_shared<PrefillRequest>();
    r->spec = spec_of(req, ids);
    r->spec.attempt = 1;
    r->spec.no_cache = no_cache;
    r->times.deadline = now + 10s;
    books.add(r);
    r->hashes = kv::chain(NamespaceId{}, ids, 64);
    books.enqueue(*r);
    books.check();
    return *r;
  }
  void compute(PrefillRequest& r, uint64_t run) {
    r.phase = Phase::computing;
    books.leave_queue(r);
    r.work.run = run;
    books.begin_run(r);
    books.check();
  }
};

}  // namespace

TEST_CASE("node/prefill_requests: a request is found by its newest attempt alone, until it ends") {
  Books b;
  PrefillRequest& r = b.enqueue("a", 1);
  CHECK(b.books.find("a") == &r);
  CHECK(b.books.find("a", 1) == &r);
  CHECK(b.books.find("a", 2) == nullptr);
  CHECK(b.books.find("b") == nullptr);
  const auto keep = b.books.end(r);
  CHECK(b.books.find("a") == nullptr);
  CHECK(b.books.queue().empty());
  b.books.drop(r);
}

TEST_CASE("node/prefill_requests: a block is pending until the last request that has it ends") {
  Books b;
  PrefillRequest &a = b.enqueue("a", 1), &c = b.enqueue("c", 1, 3);
  b.enqueue("alone", 2, 2, true);
  const auto shared = a.hashes[0], longer = c.hashes[2];
  CHECK(b.books.is_pending(shared));
  CHECK_FALSE(b.books.is_pending(b.books.find("alone")->hashes[0]));  // it publishes nothing
  b.books.drop(*b.books.end(a));
  CHECK(b.books.is_pending(shared));
  b.books.drop(*b.books.end(c));
  CHECK_FALSE(b.books.is_pending(shared));
  CHECK_FALSE(b.books.is_pending(longer));
}

TEST_CASE("node/prefill_requests: an ended request stays until its run has ended") {
  Books b;
  PrefillRequest& r = b.enqueue("a", 1);
  b.compute(r, 7);
  CHECK(b.books.of_run(7) == &r);
  b.books.end(r);
  b.books.check();
  REQUIRE(b.books.ended().size() == 1);
  CHECK(b.books.end_run(8) == nullptr);
  const auto ended = b.books.end_run(7);
  REQUIRE(ended.get() == &r);
  CHECK(b.books.of_run(7) == nullptr);
  r.work.run = 0;
  b.books.drop(r);
  CHECK(b.books.ended().empty());
}

TEST_CASE("node/prefill_requests: a request that hands over is late only after the grace time") {
  Books b;
  PrefillRequest &a = b.enqueue("a", 1), &c = b.enqueue("c", 2);
  c.times.deadline = b.now + 5s;
  b.books.leave_queue(c);
  c.phase = Phase::handing_over;
  CHECK(b.books.any_in(Phase::handing_over));
  CHECK_FALSE(b.books.any_in(Phase::computing));
  CHECK(b.books.next_deadline(1s) == b.now + 6s);
  CHECK(b.books.late(b.now + 6s - 1ns, 1s).empty());
  CHECK(b.books.late(b.now + 6s, 1s).size() == 1);
  CHECK(b.books.late(b.now + 10s, 1s).size() == 2);
  CHECK(b.books.computing_besides(a).empty());
  a.times.deadline = kNever;
  c.times.deadline = kNever;
  CHECK(b.books.next_deadline(1s) == kNever);
}

TEST_CASE("node/prefill_requests: a block is awaited from requests that came before alone, and those give pages back") {
  kv::EventLog log;
  Shelf shelf(layout_of(2), 8, 8, kv::kLruTail, log);
  Peers peers{instance(50)};
  Numbers numbers;
  DiskTier disk({}, log, numbers);
  struct Reader final : BlockSource {
    Shelf* shelf_of(const NamespaceId&) override { return nullptr; }
    bool is_pending(const BlockHash&) const override { return false; }
  } reader;
  BlockReads reads(reader, numbers, peers);
  PrefixFetches fetches(shelf, peers, disk, reads, numbers, 5s, UINT64_MAX);
  wire::Peers list{1, {}};
  list.peers = {{"p0", instance(1), wire::Role::prefill, "", {}}};
  peers.take(list);
  Actions out;
  {
    Books b;
    PrefillRequest &a = b.enqueue("a", 1), &c = b.enqueue("c", 1), &d = b.enqueue("d", 9);
    fetches.start("a", {NamespaceId{}, a.hashes, a.spec.ids, {{"p0", instance(1), 0, 2, 0}}, b.now + 9s, &a.pages},
                  b.now, out);
    CHECK(b.books.is_fetched_before(c, 1, fetches));
    CHECK_FALSE(b.books.is_fetched_before(d, 1, fetches));  // another prompt
    CHECK_FALSE(b.books.is_fetched_before(a, 1, fetches));  // nobody came before
    fetches.start("d", {NamespaceId{}, d.hashes, d.spec.ids, {}, b.now + 9s, &d.pages}, b.now, out);
    REQUIRE_OK(a.pages.allocate(shelf.pool, 1));
    REQUIRE_OK(d.pages.allocate(shelf.pool, 2));
    CHECK(b.books.unpin_others(c, fetches, shelf.pool));
    CHECK(a.pages.size() == 1);  // its fetch may add to them
    CHECK(d.pages.empty());
    CHECK_FALSE(b.books.unpin_others(c, fetches, shelf.pool));
    a.pages.release(shelf.pool);
    fetches.end("a", out), fetches.end("d", out);
  }
  CHECK(shelf.pool.counts().owned == 0);
}

}  // namespace prefill_requests_test
