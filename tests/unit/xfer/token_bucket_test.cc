#include "xfer/token_bucket.h"

#include "test.h"

namespace token_bucket_test {

using namespace mc;
using namespace mc::xfer;

namespace {
const TimePoint kStart = TimePoint{} + 1000s;

/// Bytes that pass in `span` when slices of `slice` bytes are always waiting.
uint64_t passed(TokenBucket& bucket, uint64_t slice, Duration span) {
  uint64_t bytes = 0;
  for (TimePoint now = kStart; now < kStart + span;) {
    if (!bucket.open(now)) {
      CHECK(bucket.opens() > now);
      now = bucket.opens();
      continue;
    }
    bucket.spend(slice);
    bytes += slice;
  }
  return bytes;
}
}  // namespace

TEST_CASE("xfer/token_bucket: no rate means no limit") {
  TokenBucket bucket;
  CHECK(!bucket.limited());
  bucket.spend(uint64_t{1} << 40);
  CHECK(bucket.open(kStart));
}

TEST_CASE("xfer/token_bucket: over a second the rate is kept within a burst and a slice, whatever their size") {
  for (const uint64_t rate : {uint64_t{1} << 20, uint64_t{100} << 20, uint64_t{10} << 30})
    for (const uint64_t slice : {uint64_t{64} << 10, uint64_t{1} << 20}) {
      CAPTURE(rate);
      CAPTURE(slice);
      TokenBucket bucket(rate);
      const uint64_t bytes = passed(bucket, slice, 1s);
      CHECK(bytes >= rate - slice);
      CHECK(bytes <= rate + rate / 1000 + slice + slice);
    }
}

TEST_CASE("xfer/token_bucket: time without work is not saved up beyond a burst") {
  TokenBucket bucket(1000000);
  CHECK(bucket.open(kStart));
  CHECK(bucket.open(kStart + 3600s));
  bucket.spend(1000);  // a millisecond's worth
  CHECK(!bucket.open(kStart + 3600s));
  CHECK(bucket.open(kStart + 3600s + 2us));
}

}  // namespace token_bucket_test
