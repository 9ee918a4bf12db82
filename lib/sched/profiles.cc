// The built-in profiles: one function and one table line each.
//
// a800-llama3-70b is calibrated to the figures of Mooncake (arXiv 2407.00079). a800-llama2-70b has the shape of the
// older curve (6.3: .03113 k + .001954 k^2 for prompts of 8k k tokens), which is published relative to its longest
// prompt. The curve is scaled so that 128k tokens take 27.51 s, the time measured on equal machines with a model of
// nearly equal arithmetic. The H800 and H200 are rooflines with the efficiencies of the A800.
#include <algorithm>
#include <array>

#include "base/assert.h"
#include "sched/profile.h"

namespace mc::sched {
namespace {

Profile node_of(std::string name, std::string hardware, std::string model) {
  Profile p;
  p.name = std::move(name), p.hardware = std::move(hardware), p.model = std::move(model);
  return p;
}

// The common shape of the 70B models. DRAM: 3 M tokens of cache for each node (Mooncake 4).
void shape_70b(Profile& p) {
  p.layers = 80;
  p.kv_bytes_per_token = 327'680;
  p.activation_bytes_per_token = 16'384;
  p.capacity.dram_bytes = 3'000'000 * p.kv_bytes_per_token;
  p.paths.net = {87e9, 0};
  p.paths.load = p.paths.store = {102e9, 0};
  p.paths.ssd_read = {12e9, 100e-6};
  p.paths.ssd_write = {6e9, 100e-6};
}

Roofline llama3_70b() {
  Roofline r;
  r.hidden = 8192, r.intermediate = 28672, r.heads = 64, r.kv_heads = 8, r.head_dim = 128, r.vocab = 128'256;
  r.fixed_s = 0.0428, r.layer_s = 143e-6, r.row_s = 0.143e-3;
  return r;
}

Profile a800_llama3_70b() {
  Profile p = node_of("a800-llama3-70b", "8 x A800-SXM4-80GB, 4 x 200 Gbit/s", "Llama-3-70B bf16");
  shape_70b(p);
  p.context_tokens = 262'144;  // context of the papers' dummy model: their traces have prompts of 191,378 tokens
  p.capacity.kv_tokens = 1'370'000;
  p.cost.prefill_s = 0.0428, p.cost.prefill_s_per_token = 0.11048e-3, p.cost.prefill_s_per_token2 = 0.7589e-9;
  p.cost.decode_s = 26.16e-3, p.cost.decode_s_per_row = 0.143e-3, p.cost.decode_s_per_kv_token = 3.47e-8;
  return p;
}

Profile a800_llama2_70b() {
  Profile p = a800_llama3_70b();
  p.name = "a800-llama2-70b", p.model = "Llama-2-70B bf16";
  p.cost.prefill_s = 0;
  p.cost.prefill_s_per_token = 27.51 * 0.03113 / 8192;
  p.cost.prefill_s_per_token2 = 27.51 * 0.001954 / (8192.0 * 8192.0);
  return p;
}

Profile analytic_70b(std::string name, std::string hardware, double flops, double memory_rate, double memory_bytes,
                     double allreduce_rate) {
  Profile p = node_of(std::move(name), std::move(hardware), "Llama-3-70B bf16");
  p.kind = Profile::Kind::analytic;
  shape_70b(p);
  p.roofline = llama3_70b();
  p.roofline.flops = flops, p.roofline.memory_bytes_per_s = memory_rate, p.roofline.memory_bytes = memory_bytes;
  p.roofline.allreduce_bytes_per_s = allreduce_rate;
  return p;
}

Profile a800_70b() {
  return analytic_70b("a800-70b", "8 x A800-SXM4-80GB, 4 x 200 Gbit/s", 8 * 312e12, 8 * 2.039e12, 8 * 80e9, 100e9);
}

Profile h800_70b() {
  Profile p = analytic_70b("h800-70b", "8 x H800-SXM5-80GB, 8 x 400 Gbit/s", 8 * 989e12, 8 * 3.35e12, 8 * 80e9, 100e9);
  p.paths.net = {190e9, 0};
  p.paths.load = p.paths.store = {200e9, 0};
  return p;
}

Profile h200_70b() {
  Profile p = analytic_70b("h200-70b", "8 x H200-SXM5-141GB, 8 x 400 Gbit/s", 8 * 989e12, 8 * 4.8e12, 8 * 141e9, 225e9);
  p.paths.net = {190e9, 0};
  p.paths.load = p.paths.store = {200e9, 0};
  return p;
}

// Two cores with AVX-512 and bf16, mc-tiny, all roles on one host. The GEMM peak is 945 GFLOP/s.
Profile cpu() {
  Profile p = node_of("cpu", "2 cores AVX-512 bf16, one host", "mc-tiny bf16");
  p.kind = Profile::Kind::analytic;
  p.layers = 6;
  p.context_tokens = 8192;
  p.chunk_tokens = 512;
  p.capacity.dram_bytes = uint64_t{4} << 30;
  Roofline& r = p.roofline;
  r.flops = 945e9, r.memory_bytes_per_s = 20e9, r.memory_bytes = 1e9;
  r.hidden = 256, r.intermediate = 704, r.heads = 4, r.kv_heads = 2, r.head_dim = 64, r.vocab = 2048;
  r.gemm_efficiency = 0.4, r.attention_efficiency = 0.2, r.memory_efficiency = 0.6;
  r.fixed_s = 0.3e-3, r.layer_s = 20e-6, r.row_s = 50e-6;
  p.paths.net = {4e9, 50e-6};
  p.paths.load = p.paths.store = {8e9, 0};
  p.paths.ssd_read = {1e9, 100e-6};
  p.paths.ssd_write = {0.5e9, 100e-6};
  return p;
}

struct Builtin {
  std::string_view name;
  Profile (*make)();
};
constexpr Builtin kBuiltins[] = {
    {"a800-llama3-70b", a800_llama3_70b},
    {"a800-llama2-70b", a800_llama2_70b},
    {"a800-70b", a800_70b},
    {"h800-70b", h800_70b},
    {"h200-70b", h200_70b},
    {"cpu", cpu},
};

}  // namespace

std::span<const std::string_view> builtin_profiles() {
  static constexpr auto kNames = [] {
    std::array<std::string_view, std::size(kBuiltins)> names;
    for (size_t i = 0; i < names.size(); ++i) names[i] = kBuiltins[i].name;
    return names;
  }();
  return kNames;
}

Result<Profile> builtin_profile(std::string_view name) {
  const auto it = std::find_if(std::begin(kBuiltins), std::end(kBuiltins), [&](auto& b) { return b.name == name; });
  if (it == std::end(kBuiltins)) {
    std::string known;
    for (auto& b : kBuiltins) known += (known.empty() ? "" : ", ") + std::string(b.name);
    return Error{Code::not_found, "no built-in profile '" + std::string(name) + "'; there are " + known};
  }
  Profile profile = it->make();
  const auto done = profile.complete();
  MC_ASSERT(done.has_value());
  return profile;
}

}  // namespace mc::sched
