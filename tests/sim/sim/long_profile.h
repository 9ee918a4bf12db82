// Parts of tests with long prompts: a cost profile by which a token takes 1 ms to compute and 0.25 ms on a link, and
// requests whose prompts begin with a prefix.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/world.h"
#include "test.h"

namespace mc::sim {

/// The profile; `link_rate` in bytes a second.
inline Result<sched::Profile> long_profile(const std::string& link_rate = "4e9") {
  return sched::parse_profile(R"(
name = "long"
[node]
layers = 4
kv_bytes_per_token = 1000000
kv_capacity_tokens = 400000
dram_bytes = 200000000000
context_tokens = 32768
chunk_tokens = 2048
[paths.net]
bytes_per_s = )" + link_rate + R"(
[prefill]
fixed_s = 1e-3
s_per_token = 1e-3
[decode]
fixed_s = 2e-3
s_per_row = 1e-5
)",
                              "long");
}

/// Tokens of a prompt behind its prefix.
inline constexpr uint32_t kSuffix = 150;

/// Submits a prompt of `ids` with kSuffix drawn tokens behind them, for the named nodes.
inline RequestId ask(World& world, std::vector<uint32_t> ids, const char* prefill, const char* decode) {
  node::Submit s;
  s.ids = std::move(ids);
  for (uint32_t i = 0; i < kSuffix; ++i) s.ids.push_back(static_cast<uint32_t>(world.rng().below(63)));
  s.stopping.max_tokens = 8, s.deadline = 300s;
  s.pin_prefill = prefill, s.pin_decode = decode;
  return world.submit(std::move(s));
}

/// Runs the world until all requests have ended, and checks that `req` was served.
inline const Outcome& served(World& world, const RequestId& req) {
  REQUIRE(world.run_until_done(300s));
  REQUIRE_MESSAGE(world.violation().empty(), world.violation());
  const Outcome& o = world.outcomes().at(req);
  INFO(req << " ended " << o.end());
  REQUIRE(o.served());
  return o;
}

}  // namespace mc::sim
