#include "ctl/backoff.h"

#include "test.h"

using namespace mc;
using namespace mc::ctl;

TEST_CASE("ctl/backoff: pauses double from 50 ms to 5 s and keep within half of their mean") {
  Rng rng(test::seed());
  Backoff backoff(50ms, 5s);
  Duration mean = 50ms;
  for (int i = 0; i < 100; ++i) {
    const Duration pause = backoff.next(rng);
    CHECK(pause >= mean / 2);
    CHECK(pause < mean + mean / 2);
    mean = std::min<Duration>(mean * 2, 5s);
  }
  CHECK(mean == 5s);
}

TEST_CASE("ctl/backoff: two links with different streams do not dial in step") {
  Rng one(test::seed());
  Rng other(test::seed() + 1);
  Backoff a(50ms, 5s);
  Backoff b(50ms, 5s);
  int equal = 0;
  for (int i = 0; i < 100; ++i) equal += a.next(one) == b.next(other);
  CHECK(equal < 5);
}

TEST_CASE("ctl/backoff: only a link that lived for a second starts over") {
  Rng rng(test::seed());
  Backoff backoff(50ms, 5s);
  for (int i = 0; i < 4; ++i) (void)backoff.next(rng);
  backoff.lived(999ms);
  CHECK(backoff.next(rng) >= 400ms);
  backoff.lived(1s);
  CHECK(backoff.next(rng) < 75ms);
}
