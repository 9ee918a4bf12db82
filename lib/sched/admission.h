// Admission: whether a request that has found its place may run (Mooncake 7). Load is predicted
// satisfaction of the promises (SLO), not length of queues:
//
//   load_P = predicted TTFT / its bound          load_D = predicted TBT / its bound          reject when > 1
//
// Admissions differ in the load_D they read and in the time of the check. Each is a pure function of the snapshot.
// To add one: lib/sched/admission_<name>.cc with a `const Admission`, and its line in admissions.cc.
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
  double decode_s = 0;  // t_d: how long every request is taken to decode; 0 = what was seen lately
  double slack = 1;     // the TBT bound times this
  Aggregate aggregate = Aggregate::mean;
};

/// One decision's inputs, prediction and verdict.
struct Verdict {
  bool admit = true;
  Bound bound = Bound::none;  // that is predicted to be broken; none when admitted
  double predicted_s = 0, allowed_s = 0;
  double load_prefill = 0, load_decode = 0;  // 0 where no bound is set
  double rows = 0, kv_tokens = 0;            // the decode load that was looked at, of a node, with the request
  double at_s = 0;                           // how far ahead
  double capacity_tokens = 0;                // > 0: refused because the node's pages would hold no more than that
};

struct Admission {
  std::string_view name, summary;
  /// Whether the decode node checks the TBT bound again when the KV arrives; prefill is wasted if it fails.
  bool checks_again;
  /// Whether it reads Snapshot::inflight, which is some work to make.
  bool looks_ahead;
  /// Whether it reads AdmissionOptions::slack; and decode_s and aggregate.
  bool has_slack, predicts_load;
  Verdict (*decide)(const Snapshot&, const Placement&, const Options&);
};

std::span<const Admission* const> admissions();
const Admission* find_admission(std::string_view name);

/// How long answers are, learnt from those that ended: counts that fade, in buckets that grow with length.
class Lengths {
 public:
  Lengths();
  void observe(uint32_t answer_tokens);
  /// Share of answers that go on for `more` tokens after `answered`.
  double survival(double answered, double more) const;
  /// Tokens that a share q of answers that reached `answered` does not exceed.
  double quantile(double q, double answered = 0) const;
  double mean() const;
  uint64_t samples() const { return samples_; }
  /// Mean seconds of decoding a request, likewise fading; `fallback` before the first.
  void observe_seconds(double seconds);
  double seconds(double fallback = 20) const { return seconds_samples_ == 0 ? fallback : seconds_; }

 private:
  static constexpr size_t kBuckets = 192;
  double beyond(double tokens) const;                // weight of answers longer than that
  std::array<double, kBuckets> weight_{}, above_{};  // above_[i]: total of buckets > i
  double total_ = 0, seconds_ = 0;
  uint64_t samples_ = 0, seconds_samples_ = 0;
};

}  // namespace mc::sched
