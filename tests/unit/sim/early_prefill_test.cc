#include "sim/early_prefill.h"

#include "test.h"

namespace early_prefill_test {

using namespace mc;
using namespace mc::sim;

namespace {

constexpr uint64_t kReused = 1000, kTokens = 1600;  // a chunk of four seconds, and one of two

sched::Profile four_layers() {
  sched::Profile profile;
  profile.layers = 4, profile.chunk_tokens = 400;
  profile.cost = {.prefill_s = 0, .prefill_s_per_token = 0.01};
  profile.paths.load.latency_s = 0;
  return profile;
}

/// A prefix of one part, of which the first layer took so many seconds.
PrefixParts first_layer_in(double seconds) {
  PrefixParts prefix;
  prefix.fetch({{1, 0, 4}}, {}, false, {.layers = 4, .blocks_min = 1});
  REQUIRE(prefix.ask(0));
  prefix.arrive(0, seconds);
  return prefix;
}

void next_layer(PrefixParts& prefix, double at_s) {
  REQUIRE(prefix.ask(at_s));
  prefix.arrive(0, at_s);
}

}  // namespace

TEST_CASE("sim/early_prefill: a prompt begins when its first chunk takes at least as long as the rest of its prefix") {
  const sched::Profile profile = four_layers();
  for (const double layer_s : {1.0, 1.3, 1.4, 4.0}) {
    CAPTURE(layer_s);
    const PrefixParts prefix = first_layer_in(layer_s);
    CHECK(EarlyPrefill::begin(profile, prefix, kReused, kTokens, layer_s).has_value() == (3 * layer_s <= 4));
    CHECK_FALSE(EarlyPrefill::begin(profile, prefix, kReused, kReused + 1, layer_s));
  }
}

TEST_CASE("sim/early_prefill: the first chunk waits for each layer of the prefix, and later chunks follow it") {
  const sched::Profile profile = four_layers();
  PrefixParts prefix = first_layer_in(1);
  auto early = EarlyPrefill::begin(profile, prefix, kReused, kTokens, 1);
  REQUIRE(early);
  next_layer(prefix, 1.5);  // before the chunk needs it, at 2
  CHECK_FALSE(early->follow(prefix, 1.5));
  next_layer(prefix, 5);  // the chunk has waited since 3
  CHECK_FALSE(early->follow(prefix, 5));
  CHECK_FALSE(early->has_end());
  next_layer(prefix, 6.5);  // the chunk has waited since 6
  const auto left_s = early->follow(prefix, 6.5);
  REQUIRE(left_s);
  CHECK(*left_s == doctest::Approx(1 + 2));
  CHECK(early->has_end());
}

TEST_CASE("sim/early_prefill: a prompt whose prefix arrives in time takes as long as if the prefix had been there") {
  const sched::Profile profile = four_layers();
  PrefixParts prefix = first_layer_in(1);
  auto early = EarlyPrefill::begin(profile, prefix, kReused, kTokens, 1);
  REQUIRE(early);
  for (const double at_s : {1.9, 2.9}) {
    next_layer(prefix, at_s);
    CHECK_FALSE(early->follow(prefix, at_s));
  }
  next_layer(prefix, 3.9);
  CHECK(early->follow(prefix, 3.9) == doctest::Approx(1 + 6 - 3.9));
}

TEST_CASE("sim/early_prefill: a prompt of which a block does not come begins again with the blocks before it") {
  const sched::Profile profile = four_layers();
  PrefixParts prefix;
  prefix.fetch({{1, 0, 4}, {2, 4, 8}}, {}, false, {.layers = 4, .blocks_min = 1});
  REQUIRE(prefix.ask(0));
  REQUIRE(prefix.ask(0));
  prefix.arrive(0, 1);
  prefix.arrive(4, 1);
  auto early = EarlyPrefill::begin(profile, prefix, kReused, kTokens, 1);
  REQUIRE(early);
  CHECK(prefix.lose(2) == 4);
  early->begin_again(kReused / 2);
  CHECK_FALSE(early->follow(prefix, 2));
  for (const double at_s : {3, 4, 9}) {
    CHECK_FALSE(early->has_end());
    next_layer(prefix, at_s);
    const auto left_s = early->follow(prefix, at_s);
    CHECK(left_s.has_value() == prefix.is_here());
    if (left_s) CHECK(*left_s == doctest::Approx((kTokens - kReused / 2) * 0.01));
  }
  CHECK(early->has_end());
}

TEST_CASE("sim/early_prefill: only nodes alone cut a prefix by layers, and only parts of the given bytes") {
  sched::Profile profile = four_layers();
  profile.kv_bytes_per_token = 100;
  ClusterOptions options{.profile = &profile};
  CHECK(layer_cut(options).layers == 1);  // off by default
  constexpr uint64_t block_bytes = 512 * 100;
  for (const auto& [bytes, blocks] :
       {std::pair<uint64_t, uint64_t>{0, 1}, {1, 1}, {3 * block_bytes, 3}, {3 * block_bytes + 1, 4}}) {
    CAPTURE(bytes);
    options.by_layer_bytes = bytes;
    CHECK(layer_cut(options).layers == 4);
    CHECK(layer_cut(options).blocks_min == blocks);
  }
  ClusterOptions pipeline = options, coupled = options;
  pipeline.pipeline = 2;
  coupled.shape.coupled = 2;
  CHECK(layer_cut(pipeline).layers == 1);
  CHECK(layer_cut(coupled).layers == 1);
  profile.layers = 1;
  CHECK(layer_cut(options).layers == 1);
}

}  // namespace early_prefill_test
