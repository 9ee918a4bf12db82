#include "http/body_budget.h"

#include "base/assert.h"
#include "base/memory_reserve.h"

namespace mc::http::detail {
namespace {
constexpr size_t kSmallBodyMax = size_t{64} << 10;
constexpr size_t kBodyWhenShortMax = kSmallBodyMax;      // largest body of a request while memory is short
constexpr size_t kBodiesWhenShortMax = size_t{4} << 20;  // bodies of all requests while memory is short
}  // namespace

bool BodyBudget::admits(size_t whole) {
  return whole <= kBodyWhenShortMax || !memory_is_short();
}

BodyBudget::Room BodyBudget::reserve(size_t more, size_t whole) {
  MC_ASSERT_LE(more, whole);
  if (memory_is_short() && (whole > kBodyWhenShortMax || bytes_ + more > kBodiesWhenShortMax))
    return Room::short_of_memory;
  const size_t left_to_small = whole > kSmallBodyMax ? bytes_max_ / 4 : 0;
  if (bytes_ + more > bytes_max_ - left_to_small) return Room::none;
  bytes_ += more;
  return Room::taken;
}

void BodyBudget::release(size_t bytes) {
  MC_ASSERT_LE(bytes, bytes_);
  bytes_ -= bytes;
}

}  // namespace mc::http::detail
