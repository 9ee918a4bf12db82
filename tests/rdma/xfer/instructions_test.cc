// The instructions of one small read in user space, counted one by one, beside those of the same read in bare verbs.
#include "instructions.h"

#include <cstdio>

#include "machine.h"
#include "rdma/verbs.h"

namespace instructions_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;
using ::mc::test::InstructionCount;
using ::mc::test::InstructionCounter;

namespace {

void print(const char* what, const InstructionCount& count) {
  std::printf("%s: %lu instructions, %lu of this program, %lu of the C library, %lu of the verbs library\n", what,
              count.total(), count.own, count.others, count.verbs);
}

/// One read in bare verbs: posted and found completed.
InstructionCount bare_read(InstructionCounter& counter) {
  ::mc::test::verbs::Pair pair;
  ibv_sge piece = pair.near.piece(0, 64);
  InstructionCount least;
  for (int i = 0; i < 5; ++i) {
    ibv_send_wr wr = ::mc::test::verbs::one_sided(IBV_WR_RDMA_READ, &piece, 1, pair.far, 0);
    ibv_send_wr* bad = nullptr;
    int posted = 0, found = 0;
    ibv_wc wc{};
    const InstructionCount count = counter.count([&] {
      posted = ibv_post_send(pair.near.qp.get(), &wr, &bad);
      while ((found = ibv_poll_cq(pair.near.cq.get(), 1, &wc)) == 0) continue;
    });
    REQUIRE(posted == 0);
    REQUIRE(found == 1);
    REQUIRE(wc.status == IBV_WC_SUCCESS);
    if (i == 0 || count.total() < least.total()) least = count;
  }
  return least;
}

}  // namespace

TEST_CASE("rdma/instructions: a caller that polls reads 64 bytes with at most 1,500 more than bare verbs need") {
  constexpr uint64_t kMost = 1500;
  if (const std::string why = ::mc::test::why_no_instruction_count(); !why.empty()) {
    MESSAGE("skipped: " << why);
    return;
  }
  Options reader = reader_options("rxe0");
  reader.spin = 20ms;
  RdmaPair pair(RdmaPair::kDefaultBytes, holder_options("rxe1"), reader);
  InstructionCounter counter;
  const InstructionCount bare = bare_read(counter);
  print("bare verbs", bare);
  std::vector<Event> events;
  events.reserve(64);
  // The least of some reads: a trap takes so long that the engine's thread often has a turn in between. More of
  // them only while the least is above the limit: each trap takes the emulated machine some 10 us.
  struct Least {
    const char* name;
    InstructionCount count{};
  } calls[] = {{"submit"}, {"poll"}, {"close"}};
  constexpr int kReads = 12, kMostReads = 40;
  InstructionCount whole;
  for (int i = 0; i < kReads || (i < kMostReads && whole.total() > bare.total() + kMost); ++i) {
    const Request request = pair.read(0, static_cast<size_t>(i) * 64, 64);
    const TimePoint deadline = in(kLong);
    BatchId batch{};
    bool closed = false;
    events.clear();
    InstructionCount counts[std::size(calls)];
    counts[0] = counter.count([&] { batch = *pair.reader->submit({&request, 1}, deadline); });
    if (i == kReads - 1) counter.profile("submit");
    counts[1] = counter.count([&] {
      while (pair.reader->poll(events, deadline) == 0) continue;
    });
    if (i == kReads - 1) counter.profile("poll");
    counts[2] = counter.count([&] { closed = pair.reader->close(batch, deadline).has_value(); });
    if (i == kReads - 1) counter.profile("close");
    REQUIRE(events.size() == 1);
    REQUIRE(events[0].code == Code::ok);
    REQUIRE(closed);
    REQUIRE(equal(request.local, pair.kv.bytes().subspan(static_cast<size_t>(i) * 64, 64)));
    for (size_t k = 0; k < std::size(calls); ++k)
      if (i == 0 || counts[k].total() < calls[k].count.total()) calls[k].count = counts[k];
    whole = {};
    for (const Least& call : calls) whole += call.count;
  }
  for (const Least& call : calls) print(call.name, call.count);
  print("one read", whole);
  std::printf("more than bare verbs: %lu instructions, at most %lu\n", whole.total() - bare.total(), kMost);
  CHECK(whole.total() <= bare.total() + kMost);
}

}  // namespace instructions_test
