// The sampling parameters that one party has set: a request, or the model's makers in generation_config.json. A
// parameter that is absent is left to the next party.
#pragma once

#include <algorithm>
#include <optional>

#include "wire/sampling.h"

namespace mc::wire {

struct SamplingChoice {
  std::optional<double> temperature, top_p, min_p;
  std::optional<int64_t> top_k;  // 0 and -1 switch it off
  std::optional<double> presence_penalty, frequency_penalty, repetition_penalty;

  bool operator==(const SamplingChoice&) const = default;
  /// This choice; absent parameters come from `defaults`, then from Sampling's initial values.
  Sampling over(const SamplingChoice& defaults) const {
    Sampling out;
    const auto choose = [](const auto& first, const auto& second, auto& value) {
      if (first)
        value = *first;
      else if (second)
        value = *second;
    };
    choose(temperature, defaults.temperature, out.temperature);
    choose(top_p, defaults.top_p, out.top_p);
    choose(min_p, defaults.min_p, out.min_p);
    choose(presence_penalty, defaults.presence_penalty, out.presence_penalty);
    choose(frequency_penalty, defaults.frequency_penalty, out.frequency_penalty);
    choose(repetition_penalty, defaults.repetition_penalty, out.repetition_penalty);
    int64_t kept = 0;
    choose(top_k, defaults.top_k, kept);
    out.top_k = static_cast<uint32_t>(std::clamp<int64_t>(kept, 0, UINT32_MAX));
    return out;
  }
};

}  // namespace mc::wire
