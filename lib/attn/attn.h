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
// Variants (ref, avx2, avx512, avx512bf16) compute the same function within rounding; one variant is chosen at open()
// and kept. The last bits depend on the variant, so `auto` follows a fixed rule and measures nothing.
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
/// The feature that this machine lacks for the variant ("avx512_bf16"); empty when it can run.
std::string lacking(const Variant& variant);
/// The variant of that name; "auto" or "": the best that this CPU runs. Code::unsupported names the missing feature
/// and the variants that run.
Result<const Variant*> find_variant(std::string_view name);

/// One variant with its scratch memory. Owned by one thread; the loops run on `parallel`, which must outlive it.
/// Scratch memory grows to that of the largest call.
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
