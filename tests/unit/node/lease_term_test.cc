#include "node/lease_term.h"

#include "test.h"

namespace lease_term_test {

using namespace mc;
using namespace mc::node;

namespace {
constexpr TimePoint kStart = TimePoint{} + 100s;

/// The renewal that is due at this time.
wire::LeaseRenew renewal(LeaseTerm& term, TimePoint now) {
  const auto out = term.renew(7, now);
  REQUIRE(out.has_value());
  CHECK(out->lease == 7);
  return *out;
}
}  // namespace

TEST_CASE("node/lease_term: a read that ends before its lease renews nothing") {
  LeaseTerm term(kStart, 1000);
  term.read_until(kStart + 1s);
  CHECK(term.next_renewal() == kNever);
  CHECK_FALSE(term.renew(7, kStart + 999ms).has_value());
  CHECK(term.give_up_at() == kStart + 2s);
  CHECK_FALSE(term.is_over(kStart + 5s));  // the host ends the read in time
}

TEST_CASE("node/lease_term: a longer read renews at half of the lease, and again each quarter without an answer") {
  LeaseTerm term(kStart, 1000);
  term.read_until(kStart + 10s);
  CHECK(term.give_up_at() == kStart + 1s);
  CHECK(term.next_renewal() == kStart + 500ms);
  CHECK_FALSE(term.renew(7, kStart + 499ms).has_value());
  CHECK(renewal(term, kStart + 500ms).round == 1);
  CHECK_FALSE(term.renew(7, kStart + 500ms).has_value());
  CHECK(renewal(term, kStart + 750ms).round == 2);
  CHECK_FALSE(term.renew(7, kStart + 1s).has_value());  // it is over
  CHECK(term.is_over(kStart + 1s));
}

TEST_CASE("node/lease_term: a renewed lease counts from the moment at which the renewal was sent") {
  LeaseTerm term(kStart, 1000);
  term.read_until(kStart + 2s);
  const auto sent = renewal(term, kStart + 600ms);
  CHECK(sent.ttl_ms == 1000);
  term.renewed({7, sent.round, 1000}, kStart + 900ms);
  CHECK(term.end() == kStart + 1600ms);
  CHECK(term.give_up_at() == kStart + 1600ms);
  CHECK_FALSE(term.is_over(kStart + 1599ms));
  CHECK(term.next_renewal() == kStart + 1150ms);  // not at 1100: a quarter after the answer
  const auto next = renewal(term, kStart + 1150ms);
  term.renewed({7, next.round, 1000}, kStart + 1160ms);
  CHECK(term.next_renewal() == kNever);  // the lease ends after the read
  CHECK(term.give_up_at() == kStart + 2150ms);
}

TEST_CASE("node/lease_term: the first lease counts from its request, less the time for which the holder made it wait") {
  wire::LeaseGrant grant;
  grant.ttl_ms = 1000;
  CHECK(LeaseTerm::of(grant, kStart, kStart + 300ms).end() == kStart + 1s);  // a slow link takes from it
  grant.waited_ms = 5000;
  CHECK(LeaseTerm::of(grant, kStart, kStart + 5200ms).end() == kStart + 6s);
  grant.waited_ms = UINT32_MAX;  // a holder cannot make it longer than from the grant
  CHECK(LeaseTerm::of(grant, kStart, kStart + 300ms).end() == kStart + 1300ms);
  LeaseTerm term = LeaseTerm::of({.ttl_ms = 1000}, kStart, kStart + 700ms);
  term.read_until(kStart + 5s);
  CHECK(renewal(term, kStart + 700ms).round == 1);  // half of the lease went by on the way
}

TEST_CASE("node/lease_term: an answer that comes after the next renewal counts from the one that it answers") {
  LeaseTerm term(kStart, 1000);
  term.read_until(kStart + 10s);
  const auto first = renewal(term, kStart + 500ms), second = renewal(term, kStart + 750ms);
  term.renewed({7, first.round, 1000}, kStart + 800ms);
  CHECK(term.end() == kStart + 1500ms);
  term.renewed({7, second.round, 1000}, kStart + 1200ms);
  CHECK(term.end() == kStart + 1750ms);
  term.renewed({7, first.round, 1000}, kStart + 1210ms);  // once more
  CHECK(term.end() == kStart + 1750ms);
  (void)renewal(term, term.next_renewal());
  term.renewed({7, second.round, 0}, kStart + 1500ms);
  CHECK(term.is_over(kStart + 1500ms));
}

TEST_CASE("node/lease_term: answers to renewals long ago, or to none, change nothing") {
  LeaseTerm term(kStart, 1000);
  term.renewed({7, 0, 1000}, kStart + 10ms);
  term.read_until(kStart + 10s);
  for (const uint32_t ttl : {0, 1000}) term.renewed({7, 0, ttl}, kStart + 10ms);
  const auto first = renewal(term, kStart + 500ms);
  const auto second = renewal(term, kStart + 750ms);
  term.renewed({7, second.round, 1000}, kStart + 760ms);
  const auto third = renewal(term, term.next_renewal());
  const TimePoint end = term.end();
  for (const uint32_t ttl : {0, 60'000}) {
    term.renewed({7, first.round, ttl}, kStart + 1300ms);
    term.renewed({7, third.round + 1, ttl}, kStart + 1300ms);
  }
  CHECK(term.end() == end);
}

TEST_CASE("node/lease_term: a refusal ends the lease at once, and a short answer is not followed by a storm") {
  LeaseTerm refused(kStart, 1000);
  refused.read_until(kStart + 10s);
  refused.renewed({7, renewal(refused, kStart + 500ms).round, 0}, kStart + 510ms);
  CHECK(refused.is_over(kStart + 510ms));
  CHECK(refused.give_up_at() == kStart + 510ms);

  LeaseTerm bounded(kStart, 1000);
  bounded.read_until(kStart + 10s);
  int sent = 0;
  for (TimePoint now = kStart; now < kStart + 1s; now += 1ms)
    if (const auto renew = bounded.renew(7, now)) {
      ++sent;
      bounded.renewed({7, renew->round, static_cast<uint32_t>((kStart + 1s - now) / 1ms)}, now);
    }
  CHECK(sent <= 3);
  CHECK(bounded.is_over(kStart + 1s));
}

}  // namespace lease_term_test
