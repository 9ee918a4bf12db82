// Which flags an admission looks at is in its row of the table (sched/admission.h).
#include "host/sched_flags.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/assert.h"
#include "base/errors.h"

namespace mc {

namespace flags {

Result<void> check_slack(std::string_view value) {
  MC_TRY(slack, parse_f64(value));
  if (slack > 0 && slack <= 1e6) return {};
  return {Code::invalid, "'" + std::string(value) + "' is not above 0 and at most 1e6"};
}

}  // namespace flags

namespace host {

namespace {
std::string names_of(std::span<const sched::Admission* const> admissions) {
  std::string out;
  for (const sched::Admission* a : admissions) out += (out.empty() ? "" : ", ") + std::string(a->name);
  return out;
}
}  // namespace

void read_sched_flags(const cli::Args& args, sched::Options& out) {
  out.slow_start_s = to_seconds(args.duration(flags::kSlowStart));
  out.first_with_second = choice_of(args, flags::kFirstToken);
  out.admitting.decode_s = to_seconds(args.duration(flags::kDecodeTime));
  out.admitting.slack = args.number(flags::kSlack);
  out.admitting.aggregate = choice_of(args, flags::kAggregate);
}

Result<void> check_sched_flags(const cli::Args& args, std::span<const sched::Admission* const> admissions) {
  MC_ASSERT(!admissions.empty());
  struct Use {
    const Flag* flag;
    bool sched::Admission::*by;
  };
  for (const Use& use :
       {Use{&flags::kDecodeTime, &sched::Admission::predicts_load},
        Use{&flags::kAggregate, &sched::Admission::predicts_load}, Use{&flags::kSlack, &sched::Admission::has_slack}}) {
    const auto looks = [&](const sched::Admission* a) { return a->*use.by; };
    if (!args.said(*use.flag) || std::ranges::any_of(admissions, looks)) continue;
    std::vector<const sched::Admission*> readers;
    std::ranges::copy_if(sched::admissions(), std::back_inserter(readers), looks);
    MC_ASSERT(!readers.empty());  // a flag that no admission reads would be dead
    const std::string name = "--" + std::string(use.flag->name);
    return user_error(err::kBadValue,
                      name + " " + args.text(*use.flag) + " applies to --admission " + names_of(readers) +
                          "; this run has --admission " + names_of(admissions) + ", which " +
                          (admissions.size() == 1 ? "does" : "do") + " not read it",
                      name, "leave " + name + " out, or choose --admission " + std::string(readers.front()->name));
  }
  return {};
}

}  // namespace host
}  // namespace mc
