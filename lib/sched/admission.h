// Admission decides whether a request that has a place may run (Mooncake 7). Load is the predicted value of an SLO as a
// share of its bound, not the length of a queue:
//
//   load_P = predicted TTFT / its bound          load_D = predicted TBT / its bound          reject when > 1
//
// Admissions differ in the load_D that they read and in the time of the check. Each admission is a pure function of the
// snapshot. To add one: lib/sched/admission_<name>.cc with a `const Admission`, and its line in admissions.cc.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "sched/reason.h"

namespace mc::sched {

struct Options;
struct Placement;
struct Snapshot;

enum class Aggregate : uint8_t { mean, max };

struct AdmissionOptions {
  double decode_s = 0;  // t_d: assumed decode time of every request; 0 = the recent mean
  double slack = 1;     // factor on the TBT bound
  Aggregate aggregate = Aggregate::mean;
};

/// One decision's inputs, prediction and verdict.
struct Verdict {
  bool admit = true;
  Bound bound = Bound::none;  // the bound that is predicted to be missed; none when admitted
  double predicted_s = 0, allowed_s = 0;
  double load_prefill = 0, load_decode = 0;  // 0 where no bound is set
  double rows = 0, kv_tokens = 0;            // predicted decode load of one node, this request included
  double at_s = 0;                           // seconds from now to the moment of the prediction
  double capacity_tokens = 0;                // > 0: refused, because the pages of the node hold at most so many tokens
  bool hopeless = false;                     // the request alone on an idle node would break the bound of TBT
};

struct Admission {
  std::string_view name, summary;
  /// Whether the decode node checks the TBT bound again when the KV arrives; prefill is wasted if it fails.
  bool checks_again;
  /// Whether the admission reads Snapshot::inflight, which is costly to fill.
  bool looks_ahead;
  /// Whether the admission reads AdmissionOptions::slack, and whether it reads decode_s and aggregate.
  bool has_slack, predicts_load;
  Verdict (*decide)(const Snapshot&, const Placement&, const Options&);
};

std::span<const Admission* const> admissions();
const Admission* find_admission(std::string_view name);

/// The distribution of answer lengths, learnt from finished requests: counts that fade, in buckets that grow with
/// length.
class Lengths {
 public:
  Lengths();
  void observe(uint32_t answer_tokens);
  /// Share of answers that go on for `more` tokens after `answered`.
  double survival(double answered, double more) const;
  /// The length that a share q of the answers which reached `answered` tokens does not exceed.
  double quantile(double q, double answered = 0) const;
  double mean() const;
  uint64_t samples() const { return samples_; }
  /// Mean decode time of a request in seconds, which fades as well; `fallback` before the first observation.
  void observe_seconds(double seconds);
  double seconds(double fallback = 20) const { return seconds_samples_ == 0 ? fallback : seconds_; }

 private:
  static constexpr size_t kBuckets = 192;
  double beyond(double tokens) const;                // weight of the answers longer than `tokens`
  std::array<double, kBuckets> weight_{}, above_{};  // above_[i]: total of buckets > i
  double total_ = 0, seconds_ = 0;
  uint64_t samples_ = 0, seconds_samples_ = 0;
};

}  // namespace mc::sched
