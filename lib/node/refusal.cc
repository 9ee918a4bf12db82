#include "node/refusal.h"

#include <algorithm>
#include <cmath>

namespace mc::node {

std::string Miss::text() const {
  const auto ms = [](double seconds) {
    const auto tenths = static_cast<int64_t>(std::llround(std::min(seconds, 1e9) * 1e4));
    return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " ms";
  };
  const auto whole = [](double tokens) { return std::to_string(static_cast<int64_t>(tokens)); };
  if (bound == sched::Bound::kv)
    return "predicted " + whole(kv_tokens) + " tokens of KV on the decode node, room for " + whole(capacity_tokens);
  return (bound == sched::Bound::ttft ? "predicted TTFT " : "predicted TBT ") + ms(predicted_s) + ", allowed " +
         ms(allowed_s);
}

}  // namespace mc::node
