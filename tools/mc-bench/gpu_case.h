// One attention call of `mc-bench gpu`: a batch of sequences whose pages lie scattered among poison in device memory,
// the call on the device, and the distance of its result from the reference of lib/attn.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attn/attn.h"
#include "base/parallel.h"
#include "gpu/attention.h"

namespace mc::bench {

/// Kinds of numbers that a case is filled with.
enum class Values : uint8_t { normal, huge, equal_keys, zeros };

struct GpuShape {
  /// The kernel whose bits this one promises.
  std::optional<gpu::AttentionKernel> bits_of() const {
    if (kernel == gpu::AttentionKernel::cluster) return gpu::AttentionKernel::decode;
    const bool is_shape = kernel > gpu::AttentionKernel::wide && mode.kind == attn::ModeKind::moba;
    return is_shape ? std::optional(gpu::AttentionKernel::wide) : std::nullopt;
  }
  /// The name of that kernel.
  std::string_view bits_name() const { return bits_of() == gpu::AttentionKernel::decode ? "decode" : "wide"; }
  bool decode() const { return kernel == gpu::AttentionKernel::decode || kernel == gpu::AttentionKernel::cluster; }
  bool mixed() const { return kernel == gpu::AttentionKernel::automatic; }  // decode rows and chunks by turns
  gpu::AttentionKernel kernel = gpu::AttentionKernel::prefill;
  int64_t tokens = 0;  // of the longest sequence
  ExtentLayout layout;
  int32_t q_heads = 0;
  attn::Mode mode;
  int32_t splits = 1;
  size_t wave = 0;  // bytes of MoBA prefill by key blocks; 0: by the device's memory
  Values values = Values::normal;
  bool exact_choice = true;  // of MoBA blocks; false: blocks of equal score, within rounding, may stand for each other
  bool coherent = false;     // --speed: the heads of a group and neighbouring rows choose alike, as in AttnShape
  uint64_t seed = 0;
};

class GpuCase {
 public:
  /// The fault that a run found, besides numbers beyond their bound.
  enum class Wrong : uint8_t { nothing, choice, bits };

  /// Draws lengths, values and page order from the seed, and computes the expected result by the reference.
  static Result<std::unique_ptr<GpuCase>> open(const GpuShape& shape, Parallel& parallel, gpu::Device& device);

  /// Runs the call on poisoned outputs. The largest error as a share of its bound; at most 1 is right. The error is
  /// the device's, or Code::corrupt when the gate chose other blocks than the reference, or when the kernel
  /// has other bits than it promises.
  Result<double> run();
  /// The fault that the last run ended with.
  Wrong wrong() const { return wrong_; }
  /// Rows of the last run whose choice differs from the reference's by blocks of equal score, within rounding. Their
  /// output is not compared.
  size_t ties() const { return ties_; }

 private:
  GpuCase(const GpuShape& shape, gpu::Device& device) : shape_(shape), device_(&device) {}
  Result<void> fill(Parallel& parallel);
  Result<void> expect(Parallel& parallel);
  /// The output and the choice of a kernel.
  struct Answer {
    std::vector<bf16_t> out;
    std::vector<int32_t> chosen;
  };
  Result<Answer> compute(gpu::AttentionKernel kernel);
  Result<void> compare_bits(const Answer& answer);
  /// The bound of one element's error. `q_norm`: the norm of its query.
  double bound(double q_norm, double out) const;
  Result<std::vector<bool>> tied_rows(const std::vector<int32_t>& chosen) const;
  bool is_tie(size_t row, const int32_t* chosen) const;
  std::pair<double, double> score(const gpu::SequenceRows& s, size_t row, int32_t block) const;
  size_t rows() const { return static_cast<size_t>(tokens_) * static_cast<size_t>(shape_.q_heads); }

  GpuShape shape_;
  gpu::Device* device_;
  gpu::AttentionShape attention_;
  std::vector<gpu::SequenceRows> sequences_;
  gpu::AttentionLayer layer_;
  int64_t tokens_ = 0;  // rows of all sequences
  gpu::DeviceBuffer pool_, q_, out_, selection_;
  std::vector<std::byte> pages_;
  std::vector<float> queries_, expected_;
  std::vector<int32_t> chosen_;
  std::optional<Answer> promised_;  // by the kernel of bits_of(); every run of it has these bits
  double k_norm_ = 0, v_max_ = 0;   // of the whole case, for the bound
  size_t ties_ = 0;
  Wrong wrong_ = Wrong::nothing;
};

}  // namespace mc::bench
