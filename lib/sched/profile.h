// The costs of one node, as a file. One format serves simulated nodes (mc-bench sim --profile), costed workers
// (--runner costed:FILE) and fitted predictions (mc-bench sim --calibrate). There are three kinds:
//   fitted    coefficients of prefill(n, p) and step(rows, K) (Mooncake, arXiv 2407.00079)
//   analytic  a roofline of the hardware and the model
//   measured  points of a machine, interpolated
// All kinds give every layer an equal share of a chunk, as layer-wise overlap (Mooncake 5.2) and pipelines of layer
// ranges (5.1) need. Times are seconds of one node. The functions are pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sched/cost.h"

namespace mc::sched {

/// The latency and rate of one kind of transfer when it is alone.
struct Path {
  double bytes_per_s = 1e9;
  double latency_s = 0;
  double seconds(double bytes) const { return latency_s + bytes / bytes_per_s; }
};

/// A node's devices and a dense transformer with grouped-query attention: peak rates, and the share of each that is
/// reached.
struct Roofline {
  double flops = 1e12;               // dense peak of the node in the data type of the model
  double memory_bytes_per_s = 1e11;  // bandwidth of the devices that hold the weights and the running KV
  double memory_bytes = 1e9;
  double allreduce_bytes_per_s = 0;  // bandwidth of the two all-reduces a layer; 0 = one device, no all-reduce
  double hidden = 1024, intermediate = 4096, heads = 16, kv_heads = 8, head_dim = 64, vocab = 32000;
  double element_bytes = 2;
  double kv_element_bytes = 0;  // of K and V, when they have a type of their own; 0: element_bytes
  double gemm_efficiency = 0.65, attention_efficiency = 0.69, memory_efficiency = 0.58;
  double fixed_s = 0;  // seconds for each prompt
  double layer_s = 0;  // seconds for each layer of a step: launches and the latency of all-reduces
  double row_s = 0;    // seconds for each row of a step

  double layer_parameters() const;
  double weight_bytes(double layers) const;
  /// Bytes of an element of K or V.
  double kv_bytes() const { return kv_element_bytes > 0 ? kv_element_bytes : element_bytes; }
};

/// The paths of a node's bytes: [paths.*].
struct Paths {
  Path net;          // node to node; shared by the transfers that leave a node
  Path load, store;  // DRAM to device, and device to DRAM
  Path ssd_read, ssd_write;
};

/// The sizes of a node: a part of [node].
struct Capacity {
  uint64_t kv_tokens = 0;                  // of the running batch: kv_capacity_tokens
  uint64_t dram_bytes = 0, ssd_bytes = 0;  // sizes of the cache tiers
};

/// The points of a measured profile: `points` of [prefill] and [decode].
struct MeasuredPoints {
  std::vector<PrefillSample> prefill;
  std::vector<StepSample> steps;
};

/// [error]: mean absolute relative errors of the fit that made the profile; 0 = not fitted.
struct FitErrors {
  double prefill_mape = 0, step_mape = 0, net_mape = 0;
};

struct Profile {
  enum class Kind : uint8_t { fitted, analytic, measured };

  std::string name, hardware, model;
  Kind kind = Kind::fitted;

  // ---- [node]. In an analytic profile, 0 for a KV size = derived from hardware and model.
  uint64_t layers = 1;
  uint64_t kv_bytes_per_token = 0;
  uint64_t activation_bytes_per_token = 0;  // bytes that cross a pipeline boundary
  uint64_t context_tokens = 131072;
  uint64_t chunk_tokens = 2048;  // prefill_chunk
  Capacity capacity;

  Paths paths;

  // ---- [prefill] and [decode]
  Cost cost;                      // the fit of a fitted profile; complete() fits it for other kinds
  double reused_s_per_token = 0;  // time of loading the prefix that compute does not hide
  double chunk_s = 0;             // overhead of each chunk
  double join_s = 0;              // stall of a step for each request that joins it
  /// The scatter of steps: a step's time relative to the model, at equal shares of all steps, in ascending order.
  /// complete() makes the mean 1. Empty: no scatter. The scatter changes the gaps that clients see, not the sum of
  /// work.
  std::vector<double> step_spread;
  Roofline roofline;
  MeasuredPoints points;

  FitErrors error;

  /// Seconds of a whole prompt of `tokens` in one piece, of which `reused` are not computed.
  double prefill_s(double tokens, double reused) const;
  /// Compute time of positions begin..end over all layers, without the cost of each prompt (`fixed_s()`).
  double chunk_compute_s(double begin, double end) const;
  double fixed_s() const;
  /// A decode step of `rows` takes base_s + s_per_kv_token * K, so the steps of one batch add up in closed form.
  struct StepLine {
    double base_s = 0, s_per_kv_token = 0;
  };
  StepLine step_line(double rows) const;
  double step_s(double rows, double kv_tokens) const;
  /// A step of a coupled node: decode rows and one prefill chunk in one pass that reads the weights once.
  double mixed_step_s(double rows, double kv_tokens, double begin, double end) const;
  /// Duration of two activities that follow each other layer by layer (compute then store, or load then compute). The
  /// second activity of a layer overlaps the first activity of the next layer (Mooncake 5.2).
  double overlapped_s(double first_s, double second_s) const;

  /// Checks the profile and derives the dependent fields. invalid: names the wrong key.
  Result<void> complete();

 private:
  struct RowLine {
    double rows;
    StepLine line;
  };
  Result<void> complete_analytic();
  Result<void> complete_measured();
  double curve_at(double tokens) const;

  /// Measured points in the order in which they are interpolated.
  struct Curves {
    std::vector<PrefillSample> prefill;  // times of prompts without reuse, by tokens, ascending; starts at 0
    std::vector<RowLine> steps;          // index: rows
  };
  Curves curves_;
};

/// A sample for `fit_path`.
struct ReadSample {
  double bytes, seconds;
};
/// Latency and rate by least squares over relative errors. `path` keeps a value that the samples do not determine.
void fit_path(std::span<const ReadSample> samples, Path& path);

/// MC1003 with line and key: not TOML, an unknown or repeated key, a value out of range, or a table of another kind.
/// `source` names the file in messages.
Result<Profile> parse_profile(std::string_view text, std::string_view source);
/// The profile as TOML. parse_profile() reads it back to an equal profile.
std::string format_profile(const Profile& profile);

/// Names of the built-in profiles, in the order of the manual. For tests.
std::span<const std::string_view> builtin_profiles();
/// not_found lists the names that exist.
Result<Profile> builtin_profile(std::string_view name);

}  // namespace mc::sched
