// The link of costed workers against arithmetic done by hand: times are milliseconds on a clock that stands still
// but where a case moves it. What holds throughout: reads do not overlap, the one that is carried is never moved, and
// those behind it start as early as that allows.
#include "costed/modelled_link.h"

#include "test.h"

using namespace mc;
using namespace mc::costed;

namespace {
TimePoint ms(int64_t n) {
  return TimePoint{} + n * 1ms;
}
}  // namespace

TEST_CASE("costed/modelled_link: one read is carried at a time, in the order they began") {
  ModelledLink link;
  link.begin(1, 10ms, ms(0));
  link.begin(2, 5ms, ms(3));
  link.begin(3, 1ms, ms(40));
  CHECK(*link.carried_at(1) == ms(10));
  CHECK(*link.carried_at(2) == ms(15));
  CHECK(*link.carried_at(3) == ms(41));
  CHECK_FALSE(link.carried_at(4).has_value());
}

TEST_CASE("costed/modelled_link: a read that ends early gives the rest of its time to those behind it, and no more") {
  ModelledLink link;
  for (uint64_t read = 1; read <= 4; ++read) link.begin(read, 10ms, ms(0));
  link.end(1, ms(4));  // half way
  CHECK_FALSE(link.carried_at(1).has_value());
  CHECK(*link.carried_at(2) == ms(14));
  CHECK(*link.carried_at(4) == ms(34));
  link.end(3, ms(6));  // in the queue: the one that is carried does not notice
  CHECK(*link.carried_at(2) == ms(14));
  CHECK(*link.carried_at(4) == ms(24));
  link.end(2, ms(20));  // long carried
  CHECK(*link.carried_at(4) == ms(24));
  link.end(9, ms(20));
  link.begin(5, 10ms, ms(21));
  CHECK(*link.carried_at(5) == ms(34));
  link.end(4, ms(22));
  CHECK(*link.carried_at(5) == ms(32));
}

TEST_CASE("costed/modelled_link: a link whose reads are all over is free at once") {
  ModelledLink link;
  link.begin(1, 1000ms, ms(0));
  link.end(1, ms(1));
  link.begin(2, 10ms, ms(2));
  CHECK(*link.carried_at(2) == ms(12));
}
