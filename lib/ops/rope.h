// Rotary position embedding, half-split form: element i of a head is paired with i + head_dim / 2 and
// turned by position * frequency[i] (Su et al., arXiv:2104.09864; the pairing of Hugging Face weights).
// Kinds: `plain` (theta^(-2i/d)); `linear` (all of them divided by `factor`); `llama3` (Llama 3.1:
// frequencies below low_freq are divided by `factor`, those above high_freq are kept, in between they are
// blended); `yarn` (Peng et al., arXiv:2309.00071: dimensions that turn fewer than beta_slow times over the
// original context are divided, those that turn more than beta_fast times are kept, in between they are
// blended, and sine and cosine are multiplied by attention_factor).
// Frequencies are rounded to f32 once, as every published model was trained; angles are computed in
// double and only their sine and cosine are rounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mc::ops {

struct RopeConfig {
  enum class Kind : uint8_t { plain, linear, llama3, yarn };
  Kind kind = Kind::plain;
  double theta = 10000;
  double factor = 1;                     // linear, llama3, yarn
  double low_freq_factor = 1;            // llama3
  double high_freq_factor = 4;           // llama3
  uint32_t original_positions = 8192;    // llama3, yarn: the context before scaling
  double beta_fast = 32, beta_slow = 1;  // yarn
  bool truncate = true;                  // yarn: the blend begins and ends at whole dimensions
  double attention_factor = 1;           // yarn: of sine and cosine

  bool operator==(const RopeConfig&) const = default;
  /// "default:theta=10000" or "llama3:theta=...,factor=...": one spelling per meaning, for the namespace.
  std::string text() const;
};

class Rope {
 public:
  Rope() = default;
  /// head_dim must be even.
  Rope(const RopeConfig& config, uint32_t head_dim);

  size_t half() const { return frequency_.size(); }
  std::span<const float> frequency() const { return frequency_; }
  /// cosine and sine [half] of one position, times attention_factor.
  void at(uint64_t position, float* cosine, float* sine) const;

 private:
  std::vector<float> frequency_;
  double scale_ = 1;
};

}  // namespace mc::ops
