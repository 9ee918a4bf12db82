#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>

#include "base/assert.h"

namespace mc::ops {

namespace {

/// `smooth` 1 keeps a frequency, 0 divides it by the factor.
double blend(double frequency, double factor, double smooth) {
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

double llama3_smooth(const RopeConfig& c, double frequency) {
  const double turns = c.original_positions * frequency / (2 * std::numbers::pi);
  return std::clamp((turns - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor), 0.0, 1.0);
}

/// The dimension whose frequency makes `turns` rotations over the original context (section 3.2).
double yarn_dimension(const RopeConfig& c, double turns, uint32_t head_dim) {
  return head_dim * std::log(c.original_positions / (turns * 2 * std::numbers::pi)) / (2 * std::log(c.theta));
}

struct YarnRange {
  double low, high;
  YarnRange(const RopeConfig& c, uint32_t head_dim)
      : low(yarn_dimension(c, c.beta_fast, head_dim)), high(yarn_dimension(c, c.beta_slow, head_dim)) {
    if (c.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, head_dim - 1.0);
    if (low == high) high += 0.001;
  }
  double smooth(size_t i) const { return 1 - std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0); }
};

}  // namespace

std::string RopeConfig::text() const {
  char line[256];
  switch (kind) {
    case Kind::plain: std::snprintf(line, sizeof line, "default:theta=%.17g", theta); break;
    case Kind::linear: std::snprintf(line, sizeof line, "linear:theta=%.17g,factor=%.17g", theta, factor); break;
    case Kind::llama3:
      std::snprintf(line, sizeof line,
                    "llama3:theta=%.17g,factor=%.17g,low_freq_factor=%.17g,high_freq_factor=%.17g,original=%u", theta,
                    factor, low_freq_factor, high_freq_factor, original_positions);
      break;
    case Kind::yarn:
      std::snprintf(line, sizeof line,
                    "yarn:theta=%.17g,factor=%.17g,beta_fast=%.17g,beta_slow=%.17g,truncate=%d,attention=%.17g,"
                    "original=%u",
                    theta, factor, beta_fast, beta_slow, truncate, attention_factor, original_positions);
      break;
  }
  return line;
}

Rope::Rope(const RopeConfig& config, uint32_t head_dim) : frequency_(head_dim / 2), scale_(config.attention_factor) {
  MC_ASSERT(head_dim > 0 && head_dim % 2 == 0);
  const YarnRange yarn(config, head_dim);
  for (size_t i = 0; i < frequency_.size(); ++i) {
    double frequency = std::pow(config.theta, -2.0 * static_cast<double>(i) / head_dim);
    switch (config.kind) {
      case RopeConfig::Kind::plain: break;
      case RopeConfig::Kind::linear: frequency /= config.factor; break;
      case RopeConfig::Kind::llama3:
        frequency = blend(frequency, config.factor, llama3_smooth(config, frequency));
        break;
      case RopeConfig::Kind::yarn: frequency = blend(frequency, config.factor, yarn.smooth(i)); break;
    }
    frequency_[i] = static_cast<float>(frequency);
  }
}

void Rope::at(uint64_t position, float* cosine, float* sine) const {
  for (size_t i = 0; i < frequency_.size(); ++i) {
    const double angle = static_cast<double>(position) * frequency_[i];
    cosine[i] = static_cast<float>(scale_ * std::cos(angle));
    sine[i] = static_cast<float>(scale_ * std::sin(angle));
  }
}

}  // namespace mc::ops
