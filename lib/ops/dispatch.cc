// Which variant runs. bf16 on AVX-512: AMD executes vdpbf16ps at twice the f32 FMA rate (Zen 5: 877 of
// 945 GFLOP/s in a 64-row oneDNN tile), Intel at half of it (Sapphire Rapids with AMX hidden: 114
// against 226 GFLOP/s a core for widened f32), so `auto` looks at the vendor. It must be a fixed rule
// and not a measurement: two processes on one machine have to make the same bits.
#include <string>

#include "ops/variants.h"

namespace mc::ops {
namespace {

constexpr const Kernels* kVariants[] = {
    &kRef,
#if defined(__x86_64__)
    &kAvx2,
    &kAvx512,
    &kAvx512Bf16,
#endif
};

}  // namespace

std::span<const Kernels* const> variants() {
  return kVariants;
}

const Kernels& best_kernels() {
#if defined(__x86_64__)
  if (kAvx512Bf16.supported() && __builtin_cpu_is("amd")) return kAvx512Bf16;
  if (kAvx512.supported()) return kAvx512;
  if (kAvx2.supported()) return kAvx2;
#endif
  return kRef;
}

Result<const Kernels*> kernels_named(std::string_view name) {
  if (name.empty() || name == "auto") return &best_kernels();
  std::string usable;
  for (const Kernels* kernels : kVariants) {
    if (!kernels->supported()) continue;
    if (kernels->name == name) return kernels;
    usable += std::string(usable.empty() ? "" : ", ") + kernels->name;
  }
  return Error{Code::unsupported, "kernels: no variant '" + std::string(name) + "' here; this CPU runs " + usable};
}

}  // namespace mc::ops
