#include "sim/outcomes.h"

#include "base/assert.h"

namespace mc::sim {

void Outcomes::miss(uint32_t r) {
  missed_count_ += !missed_[r];
  missed_[r] = true;
  MC_ASSERT_LE(missed_count_, records_.size());
}

void Outcomes::first_token(uint32_t r, double ttft_s) {
  MC_ASSERT(ttft_s >= 0);
  records_[r].ttft_s = ttft_s;
  if (options_.sched.ttft_slo_s > 0 && ttft_s > options_.sched.ttft_slo_s) miss(r);
}

void Outcomes::end(uint32_t r, Fate fate, double at_s) {
  records_[r].fate = fate;
  records_[r].end_s = at_s;
  ++over_;
  MC_ASSERT_LE(over_, records_.size());
  if (fate != Fate::served || !is_good(records_[r], options_)) miss(r);
}

}  // namespace mc::sim
