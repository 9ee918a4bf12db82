// The table of variants and the choice among them. A variant has a name, the CPU features that it needs, and its leaves
// for f32 and for bf16 KV. `ref` has no leaves. A GPU variant will be an entry with another device kind and drivers of
// its own.
//
// `auto` is a rule and not a measurement, because two processes on one machine must compute equal bits. For bf16 tiles
// the rule depends on the vendor: AMD issues vdpbf16ps at twice the f32 FMA rate. Intel issues it at half that rate
// (see peak.h), where widened f32 tiles are faster.
#include <string>

#include "attn/attn.h"
#include "attn/cpu.h"
#include "attn/ref.h"
#include "base/errors.h"

namespace mc::attn {

struct Variant {
  std::string_view name;
  mem::Location::Kind device;
  /// The CPU feature that is missing; empty: the variant runs.
  std::string (*lacking)();
  bool (*preferred)();  // `auto` takes the last entry that runs and is preferred
  const Kernels* f32;   // leaves for f32 KV, and for other KV whose head_dim the bf16 leaves exclude; null = ref
  const Kernels* bf16;  // for bf16 KV, and for fp8_e4m3 KV, which is widened to bf16
  uint32_t bf16_dims;   // the bf16 leaves need a head_dim that is a multiple of this
};

namespace {

bool always() {
  return true;
}

#if defined(__x86_64__)
// __builtin_cpu_supports also checks that the operating system saves the registers.
std::string lacks_avx2() {
  std::string missing;
  if (!__builtin_cpu_supports("avx2")) missing += " avx2";
  if (!__builtin_cpu_supports("fma")) missing += " fma";
  return missing.empty() ? missing : missing.substr(1);
}

std::string lacks_avx512() {
  std::string missing;
  if (!__builtin_cpu_supports("avx512f")) missing += " avx512f";
  if (!__builtin_cpu_supports("avx512bw")) missing += " avx512bw";
  if (!__builtin_cpu_supports("avx512vl")) missing += " avx512vl";
  if (!__builtin_cpu_supports("avx512dq")) missing += " avx512dq";
  return missing.empty() ? missing : missing.substr(1);
}

std::string lacks_avx512bf16() {
  const std::string missing = lacks_avx512();
  if (!__builtin_cpu_supports("avx512bf16")) return missing.empty() ? "avx512_bf16" : missing + " avx512_bf16";
  return missing;
}

bool on_amd() {
  return __builtin_cpu_is("amd");
}
#endif

constexpr Variant kRefVariant = {
    "ref", mem::Location::Kind::cpu, [] { return std::string(); }, always, nullptr, nullptr, 1};
#if defined(__x86_64__)
constexpr Variant kAvx2 = {"avx2", mem::Location::Kind::cpu, lacks_avx2, always, &kAvx2Kernels, &kAvx2Kernels, 1};
constexpr Variant kAvx512 = {"avx512", mem::Location::Kind::cpu, lacks_avx512, always, &kAvx512Kernels, &kAvx512Kernels,
                             1};
constexpr Variant kAvx512Bf16 = {"avx512bf16",    mem::Location::Kind::cpu, lacks_avx512bf16, on_amd,
                                 &kAvx512Kernels, &kAvx512Bf16Kernels,      kAvx512Bf16Dims};
#endif

constexpr const Variant* kVariants[] = {
    &kRefVariant,
#if defined(__x86_64__)
    &kAvx2,
    &kAvx512,
    &kAvx512Bf16,
#endif
};

const Kernels* kernels_for(const Variant& variant, const ExtentLayout& layout) {
  const bool bf16 = layout.dtype != Dtype::f32 && layout.head_dim % variant.bf16_dims == 0;
  return bf16 ? variant.bf16 : variant.f32;
}

}  // namespace

std::span<const Variant* const> variants() {
  return kVariants;
}
std::string_view name_of(const Variant& variant) {
  return variant.name;
}
std::string lacking(const Variant& variant) {
  return variant.lacking();
}

Result<const Variant*> find_variant(std::string_view name) {
  const bool automatic = name.empty() || name == "auto";
  const Variant* found = nullptr;
  std::string known = "auto", missing;
  for (const Variant* variant : kVariants) {
    if (automatic && variant->lacking().empty() && variant->preferred()) found = variant;
    known += ", " + std::string(variant->name);
    if (variant->name != name) continue;
    missing = variant->lacking();
    found = variant;
  }
  if (found == nullptr)
    return user_error(err::kBadValue,
                      "kernels: no attention variant '" + std::string(name.substr(0, 64)) + "'; there are " + known);
  if (!missing.empty())
    return Error{Code::unsupported, "kernels: attention variant '" + std::string(name) + "' needs " + missing +
                                        ", which this CPU lacks; use auto"};
  return found;
}

struct Attention::Scratch : CpuScratch {};

Attention::Attention(Parallel& parallel, const Variant& variant)
    : parallel_(&parallel), variant_(&variant), scratch_(std::make_unique<Scratch>()) {}
Attention::~Attention() = default;
Attention::Attention(Attention&&) noexcept = default;
Attention& Attention::operator=(Attention&&) noexcept = default;

Result<Attention> Attention::open(Parallel& parallel, std::string_view variant) {
  MC_TRY(found, find_variant(variant));
  return Attention(parallel, *found);
}

Result<void> Attention::prefill(const PrefillArgs& args) {
  const Kernels* kernels = kernels_for(*variant_, args.layout);
  if (kernels != nullptr) return prefill_cpu(*kernels, *parallel_, *scratch_, args);
  ref_prefill(args);
  return {};
}

Result<void> Attention::decode(const DecodeArgs& args) {
  const Kernels* kernels = kernels_for(*variant_, args.layout);
  if (kernels != nullptr) return decode_cpu(*kernels, *parallel_, *scratch_, args);
  ref_decode(args);
  return {};
}

}  // namespace mc::attn
