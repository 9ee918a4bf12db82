// The reasons of a decision, as types. Decisions compare the types. The words are made where text leaves the process:
// JSON, metrics labels, logs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mc::sched {

/// A bound that a request is predicted to miss. kv: the capacity of the decode node.
enum class Bound : uint8_t { none, ttft, tbt, kv };
/// "" for none.
constexpr std::string_view to_string(Bound bound) {
  constexpr std::string_view kWords[] = {"", "ttft", "tbt", "kv"};
  return kWords[static_cast<size_t>(bound)];
}
/// The phase that the bound belongs to: prefill or decode; "" for none.
constexpr std::string_view phase_of(Bound bound) {
  return bound == Bound::none ? "" : bound == Bound::ttft ? "prefill" : "decode";
}

/// Why place() found no place. no_pair: nodes of both roles accept, but every pair is barred.
enum class NoPlace : uint8_t { none, no_prefill, no_decode, no_pair, predicted_slo_miss };
/// "" for none.
constexpr std::string_view to_string(NoPlace reason) {
  constexpr std::string_view kWords[] = {"", "no_prefill", "no_decode", "no_pair", "predicted_slo_miss"};
  return kWords[static_cast<size_t>(reason)];
}

}  // namespace mc::sched
