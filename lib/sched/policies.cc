// The table of policies, in the order of --help.

#include <algorithm>

#include "sched/policy.h"

namespace mc::sched {

extern const Policy kPolicyKvCentric;
extern const Policy kPolicyCacheAware;
extern const Policy kPolicyLoad;
extern const Policy kPolicyLoadCount;
extern const Policy kPolicyRandom;
extern const Policy kPolicyAffinity;

namespace {
constexpr const Policy* kPolicies[] = {
    &kPolicyKvCentric, &kPolicyCacheAware, &kPolicyLoad, &kPolicyLoadCount, &kPolicyRandom, &kPolicyAffinity,
};
}  // namespace

std::span<const Policy* const> policies() {
  return kPolicies;
}

const Policy* find_policy(std::string_view name) {
  const auto it = std::find_if(std::begin(kPolicies), std::end(kPolicies), [&](auto* p) { return p->name == name; });
  return it == std::end(kPolicies) ? nullptr : *it;
}

}  // namespace mc::sched
