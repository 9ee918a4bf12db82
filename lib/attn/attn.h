// Attention over a paged KV: full or MoBA, prefill or decode, normalised or as a mergeable state.
// The public face of lib/attn:
//
//   auto asked = parse_plan("auto");                               attn/plan.h   which mode each layer runs
//   auto plan = resolve(*asked, declared, layers, block_tokens);
//   append({.layout = l, .target = {pages, l.layer_offset(i)}, ...}, &pool);    attn/seal.h   K, V into pages
//   auto attention = Attention::open(pool);                        here          the fastest variant of this CPU
//   attention->prefill({.layout = l, .mode = plan->layer(i), ...});             attn/args.h
//   attention->decode({...});
//   index.extend(*plan, pages, position, pool);                    attn/centroids.h  optional: the gate streams
//
// Variants (ref, avx2, avx512, avx512bf16) compute the same function within rounding; one variant is
// chosen at open() and kept. Which one decides the last bits, so `auto` follows a fixed rule, no measurement.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "attn/args.h"
#include "attn/centroids.h"
#include "attn/mode.h"
#include "attn/peak.h"
#include "attn/plan.h"
#include "attn/seal.h"
#include "attn/state.h"
#include "base/result.h"
#include "mem/mem.h"

namespace mc {
class Parallel;
}

namespace mc::attn {

struct Variant;

/// Names of kVariants[] in the order of the table, for --kernels and tests.
std::span<const Variant* const> variants();
std::string_view name_of(const Variant& variant);
/// Empty when this machine can run it, else what is missing ("avx512_bf16").
std::string lacking(const Variant& variant);
/// "auto" or "" = the best this CPU runs. Code::unsupported names what is missing and what there is.
Result<const Variant*> find_variant(std::string_view name);

/// One variant with its scratch memory. Owned by one thread; the loops run on `parallel`, which must
/// outlive it. Scratch grows to the largest call seen and then stays.
class Attention {
 public:
  static Result<Attention> open(Parallel& parallel, std::string_view variant = "auto");
  ~Attention();
  Attention(Attention&&) noexcept;
  Attention& operator=(Attention&&) noexcept;

  /// Blocks until done. Code::no_space if the scratch cannot grow.
  Result<void> prefill(const PrefillArgs& args);
  Result<void> decode(const DecodeArgs& args);

  const Variant& variant() const { return *variant_; }

 private:
  struct Scratch;
  Attention(Parallel& parallel, const Variant& variant);

  Parallel* parallel_;
  const Variant* variant_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace mc::attn
