#include "http/output.h"

#include "base/assert.h"

namespace mc::http::detail {
namespace {
constexpr size_t kKeepBytes = size_t{4} << 10;    // capacity that an idle connection keeps
constexpr size_t kWrittenMax = size_t{64} << 10;  // fewer written bytes are kept in front of unsent ones
}  // namespace

void Output::on_written(size_t count, TimePoint now) {
  MC_ASSERT_LE(count, unsent().size());
  progress_ = now;
  span_taken_ += count;
  if (written_ == bytes_.size())
    lent_.remove_prefix(count);
  else
    written_ += count;
  if (!is_empty()) {
    // Half of the bytes at least, so that a long answer is moved as often as its length doubles.
    if (written_ >= kWrittenMax && written_ >= bytes_.size() - written_) bytes_.erase(0, std::exchange(written_, 0));
    return;
  }
  held_.clear();
  written_ = 0;
  if (bytes_.capacity() > kKeepBytes)
    std::string().swap(bytes_);
  else
    bytes_.clear();
}

bool Output::is_stalled(TimePoint now, Duration limit, size_t lent_bytes_min) {
  if (is_empty()) progress_ = now;
  if (now - progress_ > limit) return true;
  const bool span_over = now - span_ > limit;
  const bool too_little = span_over && !lent_.empty() && span_taken_ < lent_bytes_min;
  if (span_over || lent_.empty()) {
    span_ = now;
    span_taken_ = 0;
  }
  return too_little;
}

}  // namespace mc::http::detail
