// The costs of one node, as a file: the one format behind simulated nodes (mc-bench sim --profile), costed
// workers (--runner costed:FILE) and fitted predictions (mc-bench sim --calibrate). Three kinds share it:
//   fitted    coefficients of prefill(n, p) and step(rows, K) (Mooncake, arXiv 2407.00079)
//   analytic  a roofline of the hardware and the model
//   measured  points of a machine, interpolated
// All give a layer the same share of a chunk, which is what layer-wise overlap (5.2) and pipelines of
// layer ranges (5.1) need. Times are seconds of one node; the functions are pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sched/cost.h"

namespace mc::sched {

/// One way that bytes take, alone on it.
struct Path {
  double bytes_per_s = 1e9;
  double latency_s = 0;
  double seconds(double bytes) const { return latency_s + bytes / bytes_per_s; }
};

/// A node's devices and a dense transformer with grouped queries, as peak rates and the share reached.
struct Roofline {
  double flops = 1e12;               // dense peak of the node in the model's type
  double memory_bytes_per_s = 1e11;  // of the devices that hold weights and running KV
  double memory_bytes = 1e9;
  double allreduce_bytes_per_s = 0;  // what two all-reduces a layer run at; 0 = one device, none needed
  double hidden = 1024, intermediate = 4096, heads = 16, kv_heads = 8, head_dim = 64, vocab = 32000;
  double element_bytes = 2;
  double gemm_efficiency = 0.65, attention_efficiency = 0.69, memory_efficiency = 0.58;
  double fixed_s = 0;  // once a prompt
  double layer_s = 0;  // of a step: launches and the latency of all-reduces
  double row_s = 0;    // of a step, per row

  double layer_parameters() const;
  double weight_bytes(double layers) const;
};

struct Profile {
  enum class Kind : uint8_t { fitted, analytic, measured };

  std::string name, hardware, model;
  Kind kind = Kind::fitted;

  // ---- [node]: shape and room. 0 of an analytic profile's KV sizes = what its hardware and model give.
  uint64_t layers = 1;
  uint64_t kv_bytes_per_token = 0;
  uint64_t activation_bytes_per_token = 0;  // what crosses a pipeline boundary
  uint64_t context_tokens = 131072;
  uint64_t chunk_tokens = 2048;            // prefill_chunk
  uint64_t kv_capacity_tokens = 0;         // of the running batch
  uint64_t dram_bytes = 0, ssd_bytes = 0;  // of the cache

  // ---- [paths.*]
  Path net;          // node to node; shared by what leaves a node
  Path load, store;  // DRAM to device and back
  Path ssd_read, ssd_write;

  // ---- [prefill] and [decode]
  Cost cost;                      // fitted; of other kinds complete() fits it
  double reused_s_per_token = 0;  // loading the prefix, where it does not hide behind compute
  double chunk_s = 0;             // overhead of each chunk
  double join_s = 0;              // stall of a step per request that joins it
  /// How steps scatter about the model: a step's time over the modelled one, at equal shares of all steps, ascending;
  /// complete() makes their mean 1. Empty: they do not. It changes gaps that clients see, not what work takes in sum.
  std::vector<double> step_spread;
  Roofline roofline;
  std::vector<PrefillSample> prefill_points;
  std::vector<StepSample> step_points;

  // ---- [error]: of the fit that made the profile; mean absolute relative errors, 0 = not fitted
  double prefill_mape = 0, step_mape = 0, net_mape = 0;

  /// Seconds of a whole prompt of `tokens`, `reused` of them not computed, in one piece.
  double prefill_s(double tokens, double reused) const;
  /// Compute of positions begin..end over all layers, without what is paid once a prompt (`fixed_s()`).
  double chunk_compute_s(double begin, double end) const;
  double fixed_s() const;
  /// A decode step of `rows` is base_s + s_per_kv_token * K: steps of one batch add up in closed form.
  struct StepLine {
    double base_s = 0, s_per_kv_token = 0;
  };
  StepLine step_line(double rows) const;
  double step_s(double rows, double kv_tokens) const;
  /// A step of a coupled node: decode rows and one prefill chunk in one pass, the weights read once.
  double mixed_step_s(double rows, double kv_tokens, double begin, double end) const;
  /// Two activities that follow each other layer by layer (compute, then store; load, then compute), the
  /// second of a layer overlapped with the first of the next (Mooncake 5.2).
  double overlapped_s(double first_s, double second_s) const;

  /// Derives what depends on the rest and checks it. invalid: what is wrong, naming the key.
  Result<void> complete();

 private:
  struct RowLine {
    double rows;
    StepLine line;
  };
  Result<void> complete_analytic();
  Result<void> complete_measured();
  double curve_at(double tokens) const;

  std::vector<PrefillSample> curve_;  // of prompts with nothing reused, by tokens, growing; starts at 0
  std::vector<RowLine> lines_;        // by rows
};

/// A measured sample for `fit_path`.
struct ReadSample {
  double bytes, seconds;
};
/// Latency and rate by least squares over relative errors; `path` stays where the samples cannot tell.
void fit_path(std::span<const ReadSample> samples, Path& path);

/// MC1003 naming line and key: not TOML, an unknown or repeated key, a value out of range, a table that
/// belongs to another kind. `source` is for messages.
Result<Profile> parse_profile(std::string_view text, std::string_view source);
/// TOML that parse_profile reads back to the same profile.
std::string format_profile(const Profile& profile);

/// Names of the built-in profiles, in the order of the manual. For tests.
std::span<const std::string_view> builtin_profiles();
/// not_found names those there are.
Result<Profile> builtin_profile(std::string_view name);

}  // namespace mc::sched
