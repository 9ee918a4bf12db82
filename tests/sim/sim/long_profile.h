// A cost profile for clusters whose prompts are long: a token takes 1 ms to compute and 0.25 ms on a link.
#pragma once

namespace mc::sim {

inline constexpr const char* kLongProfile = R"(
name = "long"
[node]
layers = 4
kv_bytes_per_token = 1000000
kv_capacity_tokens = 400000
dram_bytes = 200000000000
context_tokens = 32768
chunk_tokens = 2048
[paths.net]
bytes_per_s = 4e9
[prefill]
fixed_s = 1e-3
s_per_token = 1e-3
[decode]
fixed_s = 2e-3
s_per_row = 1e-5
)";

}  // namespace mc::sim
