#include "run/sched_flags.h"

#include <algorithm>
#include <array>

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
  static constexpr std::array kPredict = {std::string_view("predict")};
  static constexpr std::array kAtArrival = {std::string_view("early"), std::string_view("predict"),
                                            std::string_view("committed"), std::string_view("goodput")};
  struct Use {
    const Flag* flag;
    std::span<const std::string_view> by;
  };
  for (const Use& use :
       {Use{&flags::kDecodeTime, kPredict}, Use{&flags::kAggregate, kPredict}, Use{&flags::kSlack, kAtArrival}}) {
    if (!args.given(*use.flag) || std::find(use.by.begin(), use.by.end(), admission.name) != use.by.end()) continue;
    const std::string name = "--" + std::string(use.flag->name);
    std::string words;
    for (const std::string_view by : use.by) words += (words.empty() ? "" : ", ") + std::string(by);
    return user_error(err::kBadValue,
                      name + " " + args.text(*use.flag) + " is of --admission " + words + "; it is " +
                          std::string(admission.name) + " here, which does not look at it",
                      name, "leave " + name + " out, or choose --admission " + std::string(use.by.front()));
  }
  return {};
}

}  // namespace run
}  // namespace mc
