// Which flags an admission looks at is in its row of the table (sched/admission.h).
#include "run/sched_flags.h"

#include "base/errors.h"

namespace mc {

namespace flags {

Result<void> check_slack(std::string_view value) {
  MC_TRY(slack, parse_f64(value));
  if (slack > 0 && slack <= 1e6) return {};
  return {Code::invalid, "'" + std::string(value) + "' is not above 0 and at most 1e6"};
}

}  // namespace flags

namespace run {

void read_sched_flags(const cli::Args& args, sched::Options& out) {
  out.slow_start_s = to_seconds(args.duration(flags::kSlowStart));
  out.admitting.decode_s = to_seconds(args.duration(flags::kDecodeTime));
  out.admitting.slack = args.number(flags::kSlack);
  out.admitting.aggregate = args.text(flags::kAggregate) == "max" ? sched::Aggregate::max : sched::Aggregate::mean;
}

Result<void> check_sched_flags(const cli::Args& args, const sched::Admission& admission) {
  struct Use {
    const Flag* flag;
    bool sched::Admission::*by;
  };
  for (const Use& use :
       {Use{&flags::kDecodeTime, &sched::Admission::predicts_load},
        Use{&flags::kAggregate, &sched::Admission::predicts_load}, Use{&flags::kSlack, &sched::Admission::has_slack}}) {
    if (!args.given(*use.flag) || admission.*use.by) continue;
    std::string words, first;
    for (const sched::Admission* other : sched::admissions()) {
      if (!(other->*use.by)) continue;
      if (first.empty()) first = other->name;
      words += (words.empty() ? "" : ", ") + std::string(other->name);
    }
    const std::string name = "--" + std::string(use.flag->name);
    return user_error(err::kBadValue,
                      name + " " + args.text(*use.flag) + " is of --admission " + words + "; it is " +
                          std::string(admission.name) + " here, which does not look at it",
                      name, "leave " + name + " out, or choose --admission " + first);
  }
  return {};
}

}  // namespace run
}  // namespace mc
