#include "door/lent_values.h"

#include "base/assert.h"
#include "base/errors.h"
#include "base/units.h"

namespace mc::door {

Result<LentValues::Loan> LentValues::lend(node::SharedValue value) {
  MC_ASSERT(value != nullptr);
  const std::lock_guard lock(mutex_);
  expire_locked();
  if (bytes_ + value->size() > kBytesMax && !lent_.empty())
    return user_error(err::kQueueFull,
                      "other nodes are reading values of " + format_bytes(bytes_) + ", and " + format_bytes(kBytesMax) +
                          " is the limit",
                      "key", "send the request again in a moment");
  bytes_ += value->size();
  lent_[++last_number_] = {std::move(value), kNever};
  return Loan(*this, last_number_);
}

void LentValues::leave(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto lent = lent_.find(number);
  if (lent != lent_.end()) lent->second.until = after(clock_.now(), kLentFor);
}

node::SharedValue LentValues::find(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto lent = lent_.find(number);
  return lent == lent_.end() ? nullptr : lent->second.value;
}

void LentValues::end(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto lent = lent_.find(number);
  if (lent == lent_.end()) return;  // it was over
  bytes_ -= lent->second.value->size();
  lent_.erase(lent);
  MC_ASSERT(!lent_.empty() || bytes_ == 0);
}

void LentValues::expire() {
  const std::lock_guard lock(mutex_);
  expire_locked();
}

void LentValues::expire_locked() {
  std::erase_if(lent_, [this, now = clock_.now()](const auto& lent) {
    const bool is_over = lent.second.until <= now;
    if (is_over) bytes_ -= lent.second.value->size();
    return is_over;
  });
}

}  // namespace mc::door
