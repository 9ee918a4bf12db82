#include "count.h"
#include "test.h"
#include "unit/rfp/explorer.h"

using namespace mc;
using rfp::Fault;
using rfp::test::Bounds;
using rfp::test::Explored;

TEST_CASE("rfp/explore: in every interleaving each call ends once with its own response") {
  const uint64_t calls = test::count<uint64_t>(3, 4);
  for (const Bounds& bounds :
       {Bounds{.calls = calls}, {.calls = calls, .long_responses = true}, {.slots = 2, .calls = 2, .lost_pushes = 0}}) {
    const Explored all = rfp::test::explore(bounds);
    INFO(bounds.slots, " slots, ", bounds.calls, " calls: ", all.states, " states, ", all.steps, " steps");
    CHECK(all.violation == "");
    CHECK(all.states > test::count<uint64_t>(10'000, 20'000));
    CHECK(all.pushed_ends > 0);  // the exploration gets behind the switch and, with enough calls, back
    CHECK(all.fetched_after_push > 0);
    CHECK((all.switched_back > 0) == (bounds.calls > 2));
  }
}

TEST_CASE("rfp/explore: calls of a client that cannot fetch end although pushes fail") {
  Bounds bounds{.calls = 4, .fetches = false, .lost_pushes = 2, .lost_pushes_fail = true};
  const Explored all = rfp::test::explore(bounds);
  INFO(all.states, " states, ", all.steps, " steps");
  CHECK(all.violation == "");
  CHECK(all.pushed_ends > 0);
  bounds.slots = 2, bounds.calls = test::count<uint64_t>(2, 3);
  CHECK(rfp::test::explore(bounds).violation == "");
  CHECK(rfp::test::explore(bounds, Fault::failed_push_left).violation != "");
}

TEST_CASE("rfp/explore: the exploration finds every deliberate error") {
  struct Row {
    Fault fault;
    const char* violation;
  };
  for (const Row& row : {Row{Fault::request_unchecked, "a handler gets wrong arguments"},
                         {Fault::request_taken_twice, "a handler runs twice"},
                         {Fault::response_unchecked, "a call got a wrong response"},
                         {Fault::any_sequence, "a call got a wrong response"},
                         {Fault::stored_only_pushed, "a call can no longer end"},
                         {Fault::flag_read_once, "a response that should be pushed is not"},
                         {Fault::pushed_again, "a response is pushed twice"},
                         {Fault::no_late_fetch, "a call can no longer end"}}) {
    INFO("fault ", static_cast<int>(row.fault));
    CHECK(rfp::test::explore({.calls = 3}, row.fault).violation == row.violation);
  }
}
