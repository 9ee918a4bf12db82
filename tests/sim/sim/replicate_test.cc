// The gain of copying a hot prefix ahead of demand, on a workload made for it: requests of one long prefix, whose rate
// rises until two nodes are needed. Without copies the second node gets its first request when the queue of the first
// takes as long as a fetch (kv-centric) or as computing the prefix again (cache-aware), and every request waits that
// long. A copy is made when the load asks for it, which is earlier, and no request waits for it.

#include <algorithm>
#include <cmath>
#include <span>

#include "count.h"
#include "long_profile.h"
#include "sim/world.h"
#include "test.h"

namespace replicate_test {

using namespace mc;
using namespace mc::sim;

namespace {

// Computing the prefix takes 20 s, fetching it 5 s, the rest of a prompt 0.15 s.
constexpr uint32_t kPrefix = 20480;

struct Seen {
  double mean_s = 0, p50_s = 0, p99_s = 0;
  uint64_t copies = 0, requests = 0;
};

Seen run(const char* policy, uint32_t replicas_max, uint64_t seed) {
  const auto profile = long_profile();
  REQUIRE_OK(profile);
  WorldOptions options;
  options.seed = seed;
  options.prefill = 4, options.decode = 1, options.layers = 4, options.block_tokens = 512;
  options.page_count = 200, options.decode_pages = 400, options.batch_max = 64;
  options.chunk_tokens = 2048, options.context_tokens = 32768;
  options.policy = policy;
  options.events_per_check = 8;
  options.profile = &*profile;
  options.replicate = {.replicas_max = replicas_max, .bytes_per_s = 1e12};
  World world(options);
  world.run_for(1s);
  const std::vector<uint32_t> prefix(kPrefix, 7);
  const auto ask = [&] {
    std::vector<uint32_t> ids = prefix;
    for (uint32_t i = 0; i < kSuffix; ++i) ids.push_back(static_cast<uint32_t>(world.rng().below(63)));
    return world.submit(std::move(ids), 2, 300s);
  };
  ask();
  REQUIRE(world.run_until_done(60s));
  std::vector<RequestId> sent;
  constexpr double kRise = 100;  // seconds, from one request in two seconds to eleven a second
  for (double t = 0; t < kRise;) {
    const double gap_s = -std::log(1 - world.rng().uniform()) / (0.5 + 10.5 * t / kRise);
    t += gap_s;
    world.run_for(from_seconds(gap_s));
    sent.push_back(ask());
  }
  REQUIRE(world.run_until_done(200s));
  REQUIRE_MESSAGE(world.violation().empty(), world.violation());
  std::vector<double> ttft;
  for (const RequestId& req : sent) {
    const Outcome& o = world.outcomes().at(req);
    REQUIRE(o.finish == node::Finish::length);
    ttft.push_back(to_seconds(o.first_token - o.submitted));
  }
  std::sort(ttft.begin(), ttft.end());
  Seen out;
  for (const double s : ttft) out.mean_s += s / static_cast<double>(ttft.size());
  out.p50_s = ttft[ttft.size() / 2], out.p99_s = ttft[ttft.size() * 99 / 100];
  out.copies = world.conductor()->copies().stats().copies, out.requests = ttft.size();
  return out;
}

}  // namespace

TEST_CASE("sim: while the load of a costly prefix rises, copies ahead of demand keep first tokens early") {
  constexpr const char* kPolicies[] = {"kv-centric", "cache-aware"};
  for (const char* policy : std::span(kPolicies).first(test::count(size_t{1}, std::size(kPolicies)))) {
    const Seen without = run(policy, 0, 3 + test::seed()), with = run(policy, 4, 3 + test::seed());
    MESSAGE(std::string(policy) << ", " << with.requests << " requests, TTFT mean, median and p99: without "
                                << without.mean_s << " " << without.p50_s << " " << without.p99_s << " s, with "
                                << with.mean_s << " " << with.p50_s << " " << with.p99_s << " s, " << with.copies
                                << " copies");
    CHECK(without.copies == 0);
    CHECK((with.copies >= 1 && with.copies <= 3));
    CHECK(with.mean_s < without.mean_s);
    CHECK(with.p99_s < without.p99_s);
  }
}

}  // namespace replicate_test
