// links: sched
// Cost profiles: what parses must print as text that parses to the same profile, and cost no less than
// nothing.
#include <cstdlib>
#include <string_view>

#include "fuzz_target.h"
#include "sched/profile.h"

namespace mc::profile_fuzz {

FUZZ_TARGET(profile) {
  using namespace mc::sched;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto profile = parse_profile(text, "fuzz.toml");
  if (!profile) return 0;
  const std::string written = format_profile(*profile);
  const auto again = parse_profile(written, "again.toml");
  if (!again || format_profile(*again) != written) std::abort();
  if (!(profile->prefill_s(1000, 10) >= 0) || !(profile->step_s(3, 1000) >= 0)) std::abort();
  return 0;
}

}  // namespace mc::profile_fuzz
