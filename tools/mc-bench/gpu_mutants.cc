#include "gpu_mutants.h"

#include "gpu/kernels/kernels.h"

namespace mc::bench {
namespace {

using gpu::AttentionKernel;
constexpr auto kPrefill = AttentionKernel::prefill, kDecode = AttentionKernel::decode,
               kHopper = AttentionKernel::hopper;
constexpr std::string_view kPrefillEntry = "attention_prefill_d64", kDecodeEntry = "attention_decode_d64",
                           kHopperEntry = "attention_hopper_d64", kGateEntry = "moba_gate_d64",
                           kCentroidEntry = "moba_centroids", kCombineEntry = "attention_combine";
constexpr std::string_view kMoba = "moba:block=64,top_k=2", kMobaOfTwoPages = "moba:block=128,top_k=2";
constexpr std::string_view kBarrier = "bar.sync \t0;";  // nvcc writes a tab

constexpr GpuMutant kMutants[] = {
#include "gpu_mutants.inc"
};

size_t line_start(const std::string& text, size_t at) {
  const size_t end = text.rfind('\n', at);
  return end == std::string::npos ? 0 : end + 1;
}

/// The text of the kernel with the line at `at` edited.
void edit(std::string& text, size_t at, const GpuMutant& mutant) {
  const size_t first = line_start(text, at), end = std::min(text.find('\n', at), text.size());
  if (mutant.with.empty()) {
    text.replace(first, end - first, "");
    return;
  }
  // The bytes of arrive.expect_tx stand in a register, so these two edits need a register more.
  const bool twice = mutant.with == "mbarrier.expect_twice";
  if (twice || mutant.with == "mbarrier.expect_half") {
    const size_t comma = text.rfind(',', end), semicolon = text.find(';', comma);
    const std::string bytes = text.substr(comma + 1, semicolon - comma - 1);
    text.replace(comma + 1, semicolon - comma - 1, " changed");
    text.insert(text.find(';', comma) + 1, " }");
    text.insert(first, "{ .reg .b32 changed; " + std::string(twice ? "shl" : "shr") + (twice ? ".b32" : ".u32") +
                           " changed," + bytes + ", 1;\n");
    return;
  }
  text.replace(at, mutant.find.size(), mutant.with);
}

}  // namespace

std::span<const GpuMutant> gpu_mutants() {
  return kMutants;
}

Result<std::string> mutate(const GpuMutant& mutant) {
  const std::string entry = ".entry " + std::string(mutant.entry) + "(";
  for (const gpu::KernelText& kernel : gpu::kernel_texts()) {
    const size_t begin = kernel.text.find(entry);
    if (begin == std::string_view::npos) continue;
    const size_t next = std::min(kernel.text.find(".visible .entry", begin), kernel.text.size());
    const size_t head = kernel.text.find(".visible .entry");
    std::string text(kernel.text.substr(begin, next - begin));
    int seen = 0, edited = 0;
    for (size_t at = text.find(mutant.find); at != std::string::npos; at = text.find(mutant.find, at + 1)) {
      if (++seen != mutant.nth && mutant.nth != 0) continue;
      edit(text, at, mutant);
      ++edited;
      if (mutant.nth != 0) break;
    }
    if (edited == 0) break;
    // Files and debug sections stand behind the last kernel.
    const size_t tail = kernel.text.find("\t.file\t");
    std::string out(kernel.text.substr(0, head));
    out += ".visible " + text;
    if (next < kernel.text.size() && tail != std::string_view::npos)
      out += "\n" + std::string(kernel.text.substr(tail));
    return out;
  }
  return Error{Code::not_found, "mutant '" + std::string(mutant.name) + "': " + std::string(mutant.entry) +
                                    " has no line " + std::to_string(mutant.nth) + " with '" +
                                    std::string(mutant.find) + "'"};
}

}  // namespace mc::bench
