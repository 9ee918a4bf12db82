#include "sched/profile.h"

#include <cmath>

#include "test.h"

using namespace mc;
using namespace mc::sched;

namespace {

Profile builtin(std::string_view name) {
  auto profile = builtin_profile(name);
  REQUIRE(profile.has_value());
  return *profile;
}

std::string refusal(std::string_view text) {
  const auto parsed = parse_profile(text, "p.toml");
  REQUIRE_FALSE(parsed.has_value());
  return parsed.error().where + ": " + parsed.error().what;
}

constexpr std::string_view kMeasured = R"(name = "m"
kind = "measured"
[node]
layers = 4
kv_bytes_per_token = 1024
kv_capacity_tokens = 10000
[prefill]
points = [[1000, 0, 0.3], [500, 0, 0.2], [2000, 0, 0.7], [2000, 1000, 0.55]]
[decode]
points = [[1, 0, 0.010], [1, 1000, 0.011], [4, 0, 0.016], [4, 1000, 0.020]]
)";

}  // namespace

TEST_CASE("sched/profile: the A800 as calibrated gives the brief's prefill and step times") {
  const Profile p = builtin("a800-llama3-70b");
  CHECK(p.kv_bytes_per_token == 327'680);
  CHECK(p.prefill_s(8192, 0) == doctest::Approx(0.9988).epsilon(0.0001));
  CHECK(p.prefill_s(131072, 0) == doctest::Approx(27.5614).epsilon(0.0001));
  CHECK(p.step_s(1, 8192) == doctest::Approx(26.58e-3).epsilon(0.002));
  CHECK(p.paths.net.seconds(131072.0 * 327'680) == doctest::Approx(0.4937).epsilon(0.001));
}

TEST_CASE("sched/profile: the older curve keeps its published shape") {
  const Profile p = builtin("a800-llama2-70b");
  const double longest = p.prefill_s(16 * 8192, 0);
  CHECK(longest == doctest::Approx(27.51).epsilon(0.01));
  const double published[] = {.0336, .0712, .1125, .158,  .2067, .2586, .3146, .3728,
                              .4373, .505,  .5768, .6533, .7337, .8196, .9081, 1.0};
  for (int k = 1; k <= 16; ++k)
    CHECK(p.prefill_s(8192.0 * k, 0) / longest == doctest::Approx(published[k - 1]).epsilon(0.02));
}

TEST_CASE("sched/profile: a roofline of the A800 comes within 2 % of its calibration") {
  const Profile roofline = builtin("a800-70b"), fitted = builtin("a800-llama3-70b");
  for (double n : {4096.0, 8192.0, 32768.0, 131072.0})
    CHECK(roofline.prefill_s(n, 0) == doctest::Approx(fitted.prefill_s(n, 0)).epsilon(0.02));
  for (double kv : {8192.0, 131072.0})
    CHECK(roofline.step_s(1, kv) == doctest::Approx(fitted.step_s(1, kv)).epsilon(0.02));
  CHECK(static_cast<double>(roofline.capacity.kv_tokens) == doctest::Approx(1.37e6).epsilon(0.02));
}

TEST_CASE("sched/profile: chunks of a prompt add up to the whole, whatever the cut") {
  for (std::string_view name : builtin_profiles()) {
    const Profile p = builtin(name);
    double sum = p.fixed_s();
    for (double b = 0; b < 16384; b += 2048) sum += p.chunk_compute_s(b, b + 2048);
    CAPTURE(name);
    CHECK(sum == doctest::Approx(p.prefill_s(16384, 0)).epsilon(1e-9));
  }
}

TEST_CASE("sched/profile: what every built-in writes reads back equal") {
  for (std::string_view name : builtin_profiles()) {
    CAPTURE(name);
    const Profile p = builtin(name);
    const std::string text = format_profile(p);
    const auto again = parse_profile(text, "again.toml");
    REQUIRE(again.has_value());
    CHECK(format_profile(*again) == text);
    CHECK(again->step_s(7, 12345) == p.step_s(7, 12345));
    CHECK(again->prefill_s(5000, 640) == p.prefill_s(5000, 640));
  }
}

TEST_CASE("sched/profile: a measured profile goes through its points") {
  const auto p = parse_profile(kMeasured, "m.toml");
  REQUIRE(p.has_value());
  CHECK(p->prefill_s(500, 0) == doctest::Approx(0.2));
  CHECK(p->prefill_s(750, 0) == doctest::Approx(0.25));
  CHECK(p->prefill_s(1000, 0) == doctest::Approx(0.3));
  CHECK(p->prefill_s(2000, 1000) == doctest::Approx(0.55));
  CHECK(p->prefill_s(4000, 0) > 1.4);
  CHECK(p->step_s(1, 500) == doctest::Approx(0.0105));
  CHECK(p->step_s(4, 1000) == doctest::Approx(0.020));
  CHECK(p->step_s(2.5, 0) == doctest::Approx(0.013));
  CHECK(p->step_s(7, 0) == doctest::Approx(0.022));
  const auto again = parse_profile(format_profile(*p), "again.toml");
  REQUIRE(again.has_value());
  CHECK(format_profile(*again) == format_profile(*p));
}

TEST_CASE("sched/profile: how steps scatter has a mean of 1, and costs nothing in sum") {
  const std::string head = "extends = \"a800-llama3-70b\"\n[decode]\nspread = ";
  const auto p = parse_profile(head + "[1, 2, 3]\n", "p.toml");
  REQUIRE(p.has_value());
  CHECK(p->step_spread == std::vector<double>{0.5, 1, 1.5});
  CHECK(p->step_s(3, 100) == builtin("a800-llama3-70b").step_s(3, 100));
  const auto again = parse_profile(format_profile(*p), "again.toml");
  REQUIRE(again.has_value());
  CHECK(again->step_spread == p->step_spread);
  for (const char* bad : {"[2, 1]", "[0, 0]", "[1, -1]", "[1, \"x\"]", "3", "[1e300]"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_profile(head + bad + "\n", "p.toml").has_value());
  }
}

TEST_CASE("sched/profile: a file that extends a built-in changes only what it names") {
  const auto p = parse_profile("extends = \"h200-70b\"\nname = \"slow-net\"\n[paths.net]\nbytes_per_s = 12.5e9\n", "p");
  REQUIRE(p.has_value());
  const Profile base = builtin("h200-70b");
  CHECK(p->name == "slow-net");
  CHECK(p->paths.net.bytes_per_s == 12.5e9);
  CHECK(p->cost.read_bytes_per_s == 12.5e9);
  CHECK(p->prefill_s(8192, 0) == base.prefill_s(8192, 0));
}

TEST_CASE("sched/profile: what is wrong is named with its line and key") {
  CHECK(refusal("kind = \"guessed\"\n") == "p.toml:1: 'kind' is not \"fitted\", \"analytic\" or \"measured\"");
  CHECK(refusal("[node]\nlayer = 3\n") == "p.toml:2: 'node.layer' is not a key of a profile");
  CHECK(refusal("[nodes]\n") == "p.toml:1: 'nodes' is not a table of a profile");
  CHECK(refusal("[node]\nlayers = 2.5\n") == "p.toml:2: 'node.layers' is not a whole number");
  CHECK(refusal("[paths.net]\nbytes_per_s = 0\n") == "p.toml:2: 'paths.net.bytes_per_s' is not in 1..1e+18");
  CHECK(refusal("[paths.net]\nbytes_per_s = nan\n") == "p.toml:2: 'paths.net.bytes_per_s' is not in 1..1e+18");
  CHECK(refusal("[prefill]\nfixed_s = \"1\"\n") == "p.toml:2: 'prefill.fixed_s' is not a number");
  CHECK(refusal("[roofline]\nflops = 1e12\n") ==
        "p.toml:2: 'roofline.flops' does not belong in a profile of kind \"fitted\"");
  CHECK(refusal("extends = \"a100\"\n").find("there are a800-llama3-70b") != std::string::npos);
  CHECK(refusal("[node]\nlayers = 2\nkv_capacity_tokens = 5\n").find("node.kv_bytes_per_token is missing") !=
        std::string::npos);
  CHECK(
      refusal("kind = \"analytic\"\n[node]\nlayers = 1\n[roofline]\nkv_heads = 1\nhead_dim = 1\nelement_bytes = 0.25\n")
          .find("a token's KV is less than a byte") != std::string::npos);
  CHECK(refusal("kind = \"measured\"\n[prefill]\npoints = [[1, 2, 3]]\n") ==
        "p.toml:3: 'prefill.points' has a point that is not [tokens, reused, seconds]");
  CHECK(refusal("kind = \"measured\"\n[prefill]\npoints = [[10, 0, 3], [20, 0, 2]]\n[decode]\npoints = [[1, 1, 1]]\n")
            .find("must grow") != std::string::npos);
}

TEST_CASE("sched/profile: K and V of one byte halve the bytes of a token and the step time of each") {
  const std::string text =
      "kind = \"analytic\"\n[node]\nlayers = 4\n[roofline]\nkv_heads = 2\nhead_dim = 64\nmemory_bytes = 1e12\n";
  const auto wide = parse_profile(text, "p.toml"), narrow = parse_profile(text + "kv_element_bytes = 1\n", "p.toml");
  REQUIRE_OK(wide);
  REQUIRE_OK(narrow);
  CHECK(wide->kv_bytes_per_token == 4 * 2 * 2 * 64 * 2);
  CHECK(narrow->kv_bytes_per_token == 4 * 2 * 2 * 64);
  const auto kv_s = [](const Profile& p) { return p.step_s(1, 1e6) - p.step_s(1, 0); };
  CHECK(kv_s(*wide) == doctest::Approx(2 * kv_s(*narrow)));
  CHECK(narrow->capacity.kv_tokens > wide->capacity.kv_tokens);
}

TEST_CASE("sched/profile: layers that overlap hide the shorter of two activities but for one layer") {
  const Profile p = builtin("a800-llama3-70b");
  CHECK(p.overlapped_s(8, 0) == doctest::Approx(8));
  CHECK(p.overlapped_s(8, 0.8) == doctest::Approx(8 + 0.01));
  CHECK(p.overlapped_s(0.8, 8) == doctest::Approx(8 + 0.01));
}

TEST_CASE("sched/profile: a mixed step costs at least its chunk and less than chunk and step apart") {
  for (std::string_view name : {"a800-llama3-70b", "h200-70b"}) {
    const Profile p = builtin(name);
    const double chunk = p.chunk_compute_s(4096, 4608), step = p.step_s(8, 40000);
    const double mixed = p.mixed_step_s(8, 40000, 4096, 4608);
    CHECK(mixed > chunk);
    CHECK(mixed < chunk + step);
    CHECK(p.mixed_step_s(8, 40000, 0, 0) == step);
  }
}
