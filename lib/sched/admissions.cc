// The table of admissions, in the order of --help.

#include <algorithm>

#include "sched/admission.h"

namespace mc::sched {

extern const Admission kAdmissionNone;
extern const Admission kAdmissionBaseline;
extern const Admission kAdmissionEarly;
extern const Admission kAdmissionPredict;
extern const Admission kAdmissionCommitted;
extern const Admission kAdmissionGoodput;

namespace {
constexpr const Admission* kAdmissions[] = {
    &kAdmissionNone,    &kAdmissionBaseline,  &kAdmissionEarly,
    &kAdmissionPredict, &kAdmissionCommitted, &kAdmissionGoodput,
};
}  // namespace

std::span<const Admission* const> admissions() {
  return kAdmissions;
}

const Admission* find_admission(std::string_view name) {
  const auto it =
      std::find_if(std::begin(kAdmissions), std::end(kAdmissions), [&](auto* a) { return a->name == name; });
  return it == std::end(kAdmissions) ? nullptr : *it;
}

}  // namespace mc::sched
