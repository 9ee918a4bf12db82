#include "ops/rope.h"

#include <cmath>
#include <cstdio>
#include <numbers>

#include "base/assert.h"

namespace mc::ops {

std::string RopeConfig::text() const {
  char line[192];
  if (kind == Kind::plain)
    std::snprintf(line, sizeof line, "default:theta=%.17g", theta);
  else
    std::snprintf(line, sizeof line,
                  "llama3:theta=%.17g,factor=%.17g,low_freq_factor=%.17g,high_freq_factor=%.17g,original=%u", theta,
                  factor, low_freq_factor, high_freq_factor, original_positions);
  return line;
}

Rope::Rope(const RopeConfig& config, uint32_t head_dim) : frequency_(head_dim / 2) {
  MC_ASSERT(head_dim > 0 && head_dim % 2 == 0);
  const double low_wavelength = config.original_positions / config.low_freq_factor;
  const double high_wavelength = config.original_positions / config.high_freq_factor;
  for (size_t i = 0; i < frequency_.size(); ++i) {
    double frequency = std::pow(config.theta, -2.0 * static_cast<double>(i) / head_dim);
    if (config.kind == RopeConfig::Kind::llama3) {
      const double wavelength = 2 * std::numbers::pi / frequency;
      if (wavelength > low_wavelength) {
        frequency /= config.factor;
      } else if (wavelength >= high_wavelength) {
        const double smooth = (config.original_positions / wavelength - config.low_freq_factor) /
                              (config.high_freq_factor - config.low_freq_factor);
        frequency = (1 - smooth) * frequency / config.factor + smooth * frequency;
      }
    }
    frequency_[i] = static_cast<float>(frequency);
  }
}

void Rope::at(uint64_t position, float* cosine, float* sine) const {
  for (size_t i = 0; i < frequency_.size(); ++i) {
    const double angle = static_cast<double>(position) * frequency_[i];
    cosine[i] = static_cast<float>(std::cos(angle));
    sine[i] = static_cast<float>(std::sin(angle));
  }
}

}  // namespace mc::ops
