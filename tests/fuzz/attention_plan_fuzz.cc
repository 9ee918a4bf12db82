// links: attn
// Attention plans come from flags, model configs and requests: whatever parses must resolve or be refused,
// and a resolved plan's canonical text must read back as the same plan.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "attn/plan.h"
#include "base/assert.h"
#include "fuzz_target.h"

namespace mc::attention_plan_fuzz {

FUZZ_TARGET(attention_plan) {
  using namespace mc::attn;
  const auto asked = parse_plan({reinterpret_cast<const char*>(data), size});
  if (!asked) return 0;
  const auto plan = resolve(*asked, std::nullopt, 32, 16);
  if (!plan) return 0;
  MC_ASSERT_LE(plan->full_last, plan->layers);
  const auto again = parse_plan(to_string(*plan));
  MC_ASSERT(again.has_value());
  const auto same = resolve(*again, std::nullopt, 32, 16);
  MC_ASSERT(same.has_value() && *same == *plan);
  return 0;
}

}  // namespace mc::attention_plan_fuzz
