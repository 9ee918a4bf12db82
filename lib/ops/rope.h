// Rotary position embedding, half-split form: element i of a head is paired with i + head_dim / 2 and
// turned by position * frequency[i] (Su et al., arXiv:2104.09864; the pairing of Hugging Face weights).
// Kinds: `plain` (theta^(-2i/d)) and `llama3` (Llama 3.1: frequencies below low_freq are divided by
// `factor`, those above high_freq are kept, in between they are blended).
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
  enum class Kind : uint8_t { plain, llama3 };
  Kind kind = Kind::plain;
  double theta = 10000;
  // llama3 only
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  uint32_t original_positions = 8192;

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
  /// cosine and sine [half] of one position.
  void at(uint64_t position, float* cosine, float* sine) const;

 private:
  std::vector<float> frequency_;
};

}  // namespace mc::ops
