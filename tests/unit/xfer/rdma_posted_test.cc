#include "test.h"
#include "xfer_rdma/posted_work.h"

namespace rdma_posted_test {

using namespace mc;
using namespace mc::xfer;

namespace {

std::array<std::byte, 4096> memory;

Slice slice(uint64_t id, size_t bytes, std::optional<uint32_t> immediate = std::nullopt) {
  Slice out;
  out.id = id;
  out.local = std::span(memory).first(bytes);
  out.immediate = immediate;
  return out;
}

std::vector<uint64_t> ids(const std::vector<Slice>& slices) {
  std::vector<uint64_t> out;
  for (const Slice& s : slices) out.push_back(s.id);
  return out;
}

using Ids = std::vector<uint64_t>;

}  // namespace

TEST_CASE("xfer/rdma posted: a completion retires its request and all before it") {
  PostedWork work;
  work.carry(slice(1, 100), 2);  // requests 1 and 2
  work.carry(slice(2, 50), 3);
  work.carry(slice(3, 7), 4);
  work.post(4);
  CHECK(work.bytes() == 157);
  CHECK(work.outstanding() == 4);
  std::vector<Slice> ok;
  work.complete(1, WorkStatus::ok, ok);
  CHECK(ok.empty());
  work.complete(3, WorkStatus::ok, ok);
  CHECK(ids(ok) == Ids{1, 2});
  CHECK(work.bytes() == 7);
  CHECK_FALSE(work.drained());
  CHECK(work.holds(3));
  work.complete(4, WorkStatus::ok, ok);
  CHECK(work.drained());
  CHECK(work.slices() == 0);
  CHECK(work.take_failed().empty());
}

TEST_CASE("xfer/rdma posted: a request that is the only one is retired alone, with its slice, and no other one is") {
  PostedWork work;
  std::vector<Slice> ok;
  CHECK(work.complete_only(0) == nullptr);
  work.carry(slice(1, 64), 1);
  work.post(1);
  CHECK(work.complete_only(2) == nullptr);
  const Slice* done = work.complete_only(1);
  REQUIRE(done != nullptr);
  CHECK(done->id == 1);
  CHECK(work.drained());
  CHECK(work.bytes() == 0);
  CHECK(work.slices() == 0);
  work.carry(slice(2, 64), 2);
  work.carry(slice(3, 64), 3);
  work.post(2);
  CHECK(work.complete_only(3) == nullptr);
  work.complete(3, WorkStatus::ok, ok);
  CHECK(ids(ok) == Ids{2, 3});
  work.post(1);  // carries no slice
  CHECK(work.complete_only(4) == nullptr);
  work.complete(4, WorkStatus::ok, ok);
  work.carry_part(slice(5, 64), 5);
  work.post(1);
  CHECK(work.complete_only(5) == nullptr);
  work.complete(5, WorkStatus::ok, ok);
  CHECK(ids(ok) == Ids{2, 3});
  CHECK(work.take_failed().size() == 1);
}

TEST_CASE("xfer/rdma posted: what lies before a failed request succeeded, and what lies behind it is flushed") {
  PostedWork work;
  for (uint64_t id = 1; id <= 4; ++id) work.carry(slice(id, 10), id);
  work.post(5);  // the fifth carries no slice
  std::vector<Slice> ok;
  work.complete(3, WorkStatus::remote_access, ok);
  CHECK(ids(ok) == Ids{1, 2});
  for (const uint64_t request : {4, 5}) work.complete(request, WorkStatus::flushed, ok);
  CHECK(ids(ok) == Ids{1, 2});
  CHECK(work.drained());
  const auto failed = work.take_failed();
  REQUIRE(failed.size() == 2);
  CHECK((failed[0].slice.id == 3 && failed[0].status == WorkStatus::remote_access));
  CHECK((failed[1].slice.id == 4 && failed[1].status == WorkStatus::flushed));
  CHECK_FALSE(work.holds(3));
}

TEST_CASE("xfer/rdma posted: a flushed request says nothing of those before it") {
  PostedWork work;
  work.carry(slice(1, 10), 1);
  work.carry(slice(2, 10), 2);
  work.post(2);
  std::vector<Slice> ok;
  work.complete(2, WorkStatus::flushed, ok);
  CHECK(ok.empty());
  CHECK(work.take_failed().size() == 2);
}

TEST_CASE("xfer/rdma posted: a slice that was posted in part fails even when its part succeeds") {
  PostedWork work;
  work.carry(slice(1, 10, 5), 1);
  work.carry_part(slice(2, 20, 6), 2);
  work.post(2);
  CHECK(work.immediates() == 1);  // the second one's immediate was not posted
  std::vector<Slice> ok;
  work.complete(2, WorkStatus::ok, ok);
  CHECK(ids(ok) == Ids{1});
  const auto failed = work.take_failed();
  REQUIRE(failed.size() == 1);
  CHECK((failed[0].status == WorkStatus::flushed && failed[0].immediate == 0));
}

TEST_CASE("xfer/rdma posted: when the queue pair is gone, all that was not retired has failed") {
  PostedWork work;
  work.carry(slice(1, 10), 1);
  work.carry(slice(2, 10, 9), 2);
  work.post(2);
  std::vector<Slice> ok;
  work.complete(1, WorkStatus::ok, ok);
  const auto failed = work.take_failed();
  REQUIRE(failed.size() == 1);
  CHECK((failed[0].slice.id == 2 && failed[0].immediate == 1));
  CHECK(work.bytes() == 0);
  CHECK(work.slices() == 0);
}

TEST_CASE("xfer/rdma posted: two slices have room whatever their size, and more as far as the window goes") {
  PostedWork work;
  const std::vector<Slice> next = {slice(1, 1000), slice(2, 1000), slice(3, 1000), slice(4, 1000)};
  CHECK(work.room(next, 100) == 2);
  CHECK(work.room(next, 3000) == 3);
  work.carry(slice(9, 500), 1);
  work.post(1);
  CHECK(work.room(next, 100) == 1);
  CHECK(work.room(next, 2500) == 2);
  work.carry(slice(10, 500), 2);
  work.post(1);
  CHECK(work.room(next, 100) == 0);
}

}  // namespace rdma_posted_test
