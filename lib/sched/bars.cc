#include "sched/bars.h"

#include <algorithm>

#include "sched/policy.h"

namespace mc::sched {

Bars::Bars(const Snapshot& snapshot) : prefill_(snapshot.prefill.size()), decode_(snapshot.decode.size()) {
  for (const Bar& bar : snapshot.bars) {
    if (bar.decode < 0)
      prefill_[static_cast<size_t>(bar.prefill)] = 1;
    else if (bar.prefill < 0)
      decode_[static_cast<size_t>(bar.decode)] = 1;
    else
      pairs_.emplace(bar.prefill, bar.decode);
  }
}

namespace {

bool concerns(const Bar& bar, int prefill, int decode) {
  return (bar.prefill < 0 || bar.prefill == prefill) && (bar.decode < 0 || bar.decode == decode);
}

}  // namespace

void lift_least_bad(Snapshot& snapshot) {
  if (snapshot.bars.empty()) return;
  const Bars bars(snapshot);
  for (size_t p = 0; p < snapshot.prefill.size(); ++p)
    for (size_t d = 0; snapshot.prefill[p].accepting && d < snapshot.decode.size(); ++d)
      if (snapshot.decode[d].accepting && bars.allows(p, d)) return;
  int prefill = -1, decode = -1;
  double least_s = 0;
  for (size_t p = 0; p < snapshot.prefill.size(); ++p)
    for (size_t d = 0; snapshot.prefill[p].accepting && d < snapshot.decode.size(); ++d) {
      if (!snapshot.decode[d].accepting) continue;
      double left_s = 0;
      for (const Bar& bar : snapshot.bars)
        if (concerns(bar, static_cast<int>(p), static_cast<int>(d))) left_s = std::max(left_s, bar.left_s);
      if (prefill >= 0 && left_s >= least_s) continue;
      prefill = static_cast<int>(p), decode = static_cast<int>(d), least_s = left_s;
    }
  std::erase_if(snapshot.bars, [&](const Bar& bar) { return concerns(bar, prefill, decode); });
}

}  // namespace mc::sched
