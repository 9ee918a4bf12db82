// The draw of a token for each row of logits, as ops/sample.h defines it: penalties, edits, temperature, top_k, top_p,
// min_p, and the log-probabilities of the unmodified logits. A CTA has one row, whatever the other rows ask for.
//
// Weights are integers (base/draw.h), so sums have one value in every order, and the CPU draws the same token. Nothing
// is sorted: find() walks down the bits of a key, eight at a time, by histograms in shared memory. It finds the
// top_k-th logit, the end of a nucleus, the drawn token, and the lowest ids among equal logits.
//
// A thread has elements i, i + kDrawThreads, ... of the row in every pass, so it reads the changed logits that it
// wrote.
#include "base/draw.h"
#include "gpu/kernels/draw.h"
#include "gpu/kernels/fed.cuh"
#include "gpu/ptx/arithmetic.cuh"
#include "gpu/ptx/memory.cuh"
#include "gpu/ptx/warp.cuh"

namespace mc::gpu {
namespace {

constexpr int kWarps = kDrawThreads / 32, kBins = 256;
// Shared memory: low and high words of the bins, the bin that was found, the length of the list, sums of warps.
constexpr uint32_t kHighWords = kBins * 4, kDigit = kBins * 8, kBefore = kDigit + 4, kListed = kDigit + 12;
constexpr uint32_t kPartials = kDigit + 16, kPartialBytes = kWarps * 8, kReductionsMax = 8;
static_assert(kBins == kDrawThreads && kPartials + kReductionsMax * kPartialBytes == kDrawShared);

/// A row of logits, and the shared memory of its CTA.
struct Row {
  const float* x = nullptr;
  int columns = 0;
  uint32_t thread = 0, shared = 0;
  uint32_t partials = 0;  // of the next sum or maximum, each of which has a place of its own
};

struct Largest {
  float value = kMinusInf;
  int32_t index = -1;
};

/// An element of a search: its key, and what it adds to the sum. 0: it takes no part.
struct Item {
  uint32_t key = 0;
  uint64_t measure = 0;
};

struct Found {
  uint32_t key = 0;
  uint64_t before = 0;  // sum of the elements with larger keys
};

MC_DEVICE uint64_t load_pair(uint32_t low, uint32_t high) {
  return uint64_t{ptx::load_shared_u32(high)} << 32 | ptx::load_shared_u32(low);
}
MC_DEVICE void store_pair(uint32_t at, uint64_t value) {
  ptx::store_shared_u32(at, static_cast<uint32_t>(value));
  ptx::store_shared_u32(at + 4, static_cast<uint32_t>(value >> 32));
}

/// The order of logits as one of unsigned numbers. Both zeros are one.
MC_DEVICE uint32_t key_of(float logit) {
  const uint32_t bits = ptx::to_bits(ptx::add_rn(logit, 0));  // -0 + 0 = 0
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
MC_DEVICE float logit_of(uint32_t key) {
  return ptx::from_bits((key >> 31) != 0 ? key & 0x7fffffffu : ~key);
}

/// Keys of token ids, the lowest id first.
struct IdKeys {
  int bits = 8;
  MC_DEVICE explicit IdKeys(int columns) : bits(columns <= 1 << 8 ? 8 : columns <= 1 << 16 ? 16 : 24) {}
  MC_DEVICE uint32_t of(int id) const { return (1u << bits) - 1 - static_cast<uint32_t>(id); }
  MC_DEVICE int32_t id_of(uint32_t key) const { return static_cast<int32_t>((1u << bits) - 1 - key); }
};

MC_DEVICE uint64_t sum_of_warp(uint64_t value) {
#pragma unroll
  for (uint32_t by = 16; by > 0; by /= 2) value += ptx::shuffle_xor(value, by);
  return value;
}

MC_DEVICE uint64_t sum_of_cta(Row& row, uint64_t value) {
  const uint32_t at = row.shared + row.partials;
  row.partials += kPartialBytes;
  value = sum_of_warp(value);
  if (row.thread % 32 == 0) store_pair(at + row.thread / 4, value);
  ptx::barrier_all();
  uint64_t sum = 0;
  for (uint32_t warp = 0; warp < kWarps; ++warp) sum += load_pair(at + warp * 8, at + warp * 8 + 4);
  return sum;
}

/// Takes `other` when it is larger, or equal with a lower index. Nothing is larger than itself, so NaN never wins.
MC_DEVICE void take_larger(Largest& best, Largest other) {
  if (other.index < 0) return;
  if (best.index < 0 || other.value > best.value || (other.value == best.value && other.index < best.index))
    best = other;
}

/// The largest element of a row and its lowest index; index -1 when no element is more than minus infinity.
MC_DEVICE Largest largest_of_cta(Row& row) {
  const uint32_t at = row.shared + row.partials;
  row.partials += kPartialBytes;
  Largest best;
  for (int i = static_cast<int>(row.thread); i < row.columns; i += kDrawThreads) {
    const float value = ptx::load(row.x + i);
    if (value > best.value) best = {value, i};
  }
#pragma unroll
  for (uint32_t by = 16; by > 0; by /= 2) {
    const float value = ptx::shuffle_xor(best.value, by);
    take_larger(best, {value, ptx::shuffle_xor(best.index, by)});
  }
  if (row.thread % 32 == 0) {
    ptx::store_shared_f32(at + row.thread / 4, best.value);
    ptx::store_shared_u32(at + row.thread / 4 + 4, static_cast<uint32_t>(best.index));
  }
  ptx::barrier_all();
  for (uint32_t warp = 0; warp < kWarps; ++warp)
    take_larger(best,
                {ptx::load_shared_f32(at + warp * 8), static_cast<int32_t>(ptx::load_shared_u32(at + warp * 8 + 4))});
  return best;
}

// ---- the search ----

/// Adds to a 64-bit sum by two 32-bit atomics: one of them sees the low word wrap, and carries.
MC_DEVICE void add_to_bin(uint32_t low_word, uint64_t value) {
  const uint32_t low = static_cast<uint32_t>(value);
  const uint32_t old = ptx::atomic_add_shared(low_word, low);
  const uint32_t high = static_cast<uint32_t>(value >> 32) + (old + low < old ? 1 : 0);
  if (high != 0) ptx::atomic_add_shared(low_word + kHighWords, high);
}

MC_DEVICE uint64_t load_bin(const Row& row, uint32_t bin) {
  return load_pair(row.shared + bin * 4, row.shared + bin * 4 + kHighWords);
}

/// By warp 0: the largest bin at which the sum from the top reaches `limit`. A lane has a bin of each group of 32.
MC_DEVICE void pick_bin(const Row& row, uint64_t limit, uint64_t before) {
  for (int group = kBins / 32 - 1; group >= 0; --group) {
    const uint32_t bin = static_cast<uint32_t>(group) * 32 + row.thread;
    const uint64_t own = load_bin(row, bin);
    uint64_t all = own, above = 0;  // of the group, and of its lanes behind this one
#pragma unroll
    for (uint32_t by = 1; by < 32; by *= 2) {
      const uint64_t other = ptx::shuffle_xor(all, by);
      if ((row.thread & by) == 0) above += other;
      all += other;
    }
    if (before + all >= limit) {
      if (before + above < limit && before + above + own >= limit) {
        ptx::store_shared_u32(row.shared + kDigit, bin);
        store_pair(row.shared + kBefore, before + above);
      }
      return;
    }
    before += all;
  }
}

/// The key at which the sum of measures, from the largest key on, first reaches `limit`. The sum of all measures is at
/// least `limit`, and keys have `bits` bits.
template <class ItemOf>
MC_DEVICE Found find(const Row& row, uint64_t limit, int bits, ItemOf item_of) {
  Found found;
  for (int shift = bits - 8; shift >= 0; shift -= 8) {
    ptx::store_shared_u32(row.shared + row.thread * 4, 0);
    ptx::store_shared_u32(row.shared + row.thread * 4 + kHighWords, 0);
    ptx::barrier_all();
    for (int i = static_cast<int>(row.thread); i < row.columns; i += kDrawThreads) {
      const Item item = item_of(i);
      if (item.measure != 0 && uint64_t{item.key} >> (shift + 8) == found.key)
        add_to_bin(row.shared + (item.key >> shift & (kBins - 1)) * 4, item.measure);
    }
    ptx::barrier_all();
    if (row.thread < 32) pick_bin(row, limit, found.before);
    ptx::barrier_all();
    found.key = found.key << 8 | ptx::load_shared_u32(row.shared + kDigit);
    found.before = load_pair(row.shared + kBefore, row.shared + kBefore + 4);
  }
  return found;
}

// ---- the draw ----

/// Writes the row's logits behind penalties and edits.
MC_DEVICE void change_logits(const DrawArgs& args, const DrawRule& rule, const Row& row, float* changed) {
  const uint32_t* counts = args.counts + int64_t{max(rule.slot, 0)} * 2 * row.columns;
  for (int i = static_cast<int>(row.thread); i < row.columns; i += kDrawThreads) {
    float x = ptx::load(row.x + i);
    if (rule.slot >= 0) {
      const uint32_t in_prompt = ptx::load(counts + i), in_answer = ptx::load(counts + row.columns + i);
      if (in_prompt + in_answer > 0) x = x > 0 ? ptx::div_rn(x, rule.repetition) : ptx::mul_rn(x, rule.repetition);
      if (in_answer > 0)
        x = ptx::add_rn(x, -ptx::add_rn(rule.presence, ptx::mul_rn(rule.frequency, static_cast<float>(in_answer))));
    }
    ptx::store(changed + i, x);
  }
  for (int e = rule.first_edit; e < rule.first_edit + rule.edits; ++e) {
    const LogitEdit edit = ptx::load(args.edits + e);
    if (static_cast<uint32_t>(edit.token) % kDrawThreads != row.thread) continue;
    float* at = changed + edit.token;
    ptx::store(at, edit.add == kMinusInf ? kMinusInf : ptx::add_rn(ptx::load(at), edit.add));
  }
}

/// Elements of a row by their weight at one temperature.
struct Weights {
  const Row& row;
  float top;
  double scale;
  MC_DEVICE uint64_t of(float logit) const { return draw_weight(top, logit, scale); }
  MC_DEVICE Item by_logit(int i) const {
    const float x = ptx::load(row.x + i);
    return {key_of(x), of(x)};
  }
};

/// of / by, at most kDrawVocabMax, rounded down. A division of 64 bits is a call on a GPU, around which registers
/// spill.
MC_DEVICE uint64_t quotient(uint64_t of, uint64_t by) {
  uint64_t out = 0;
  for (uint64_t bit = kDrawVocabMax; bit > 0; bit /= 2)
    if ((out | bit) * by <= of) out |= bit;
  return out;
}

/// The elements that may be drawn: those with larger keys than `key`, and the first `ties` of those with that key.
struct Kept {
  uint32_t key = 0;
  uint64_t ties = 0;
};

/// Sum of the kept weights that are at least `least`.
MC_DEVICE uint64_t kept_weight(Row& row, const Weights& weights, const Kept& kept, uint64_t least) {
  uint64_t sum = 0;
  for (int i = static_cast<int>(row.thread); i < row.columns; i += kDrawThreads) {
    const Item item = weights.by_logit(i);
    if (item.key > kept.key && item.measure >= least) sum += item.measure;
  }
  const uint64_t equal = kept.ties > 0 ? weights.of(logit_of(kept.key)) : 0;
  return sum_of_cta(row, sum) + (equal >= least ? kept.ties * equal : 0);
}

/// The id of element `nth` among those with a key, from the lowest id on.
MC_DEVICE int32_t id_among_equals(const Row& row, uint32_t key, uint64_t nth) {
  const IdKeys ids(row.columns);
  return ids.id_of(find(row, nth + 1, ids.bits, [&](int i) {
                     return Item{ids.of(i), key_of(ptx::load(row.x + i)) == key ? uint64_t{1} : 0};
                   }).key);
}

/// `candidates`: elements above minus infinity.
MC_DEVICE int32_t draw_token(Row& row, const DrawRule& rule, float top, uint64_t candidates) {
  const Weights weights{row, top, rule.scale};
  const auto by_logit = [&](int i) { return weights.by_logit(i); };
  const bool cuts = rule.top_k > 0 && rule.top_k < candidates, has_nucleus = rule.top_p < 1;
  Kept kept;
  if (cuts) {
    const Found last = find(row, rule.top_k, 32, [&](int i) {
      const float x = ptx::load(row.x + i);
      return Item{key_of(x), x > kMinusInf ? uint64_t{1} : 0};
    });
    kept = {last.key, rule.top_k - last.before};
  }
  uint64_t total = kept_weight(row, weights, kept, 0);
  if (has_nucleus) {
    const uint64_t limit = nucleus_weight(rule.top_p, total);
    const Found last = find(row, limit, 32, by_logit);
    const uint64_t weight = weights.of(logit_of(last.key));
    kept = {last.key, quotient(limit - last.before - 1, weight) + 1};
    total = last.before + kept.ties * weight;
  }
  if (rule.min_p > 0) total = kept_weight(row, weights, kept, least_weight(rule.min_p));
  const uint64_t target = draw_target(rule.uniform, total);
  if (!cuts && !has_nucleus && !(rule.min_p > 0)) {  // in the order of ids
    const IdKeys ids(row.columns);
    return ids.id_of(find(row, target + 1, ids.bits, [&](int i) {
                       return Item{ids.of(i), weights.of(ptx::load(row.x + i))};
                     }).key);
  }
  const Found drawn = find(row, target + 1, 32, by_logit);  // the likeliest first: kept ones come before the others
  return id_among_equals(row, drawn.key, quotient(target - drawn.before, weights.of(logit_of(drawn.key))));
}

// ---- log-probabilities ----

/// Lists the `count` likeliest elements.
MC_DEVICE void list_likeliest(const Row& row, uint64_t count, ListedToken* out) {
  const Found last = find(row, count, 32, [&](int i) { return Item{key_of(ptx::load(row.x + i)), uint64_t{1}}; });
  const int32_t last_id = id_among_equals(row, last.key, count - last.before - 1);
  if (row.thread == 0) ptx::store_shared_u32(row.shared + kListed, 0);
  ptx::barrier_all();
  for (int i = static_cast<int>(row.thread); i < row.columns; i += kDrawThreads) {
    const float x = ptx::load(row.x + i);
    const uint32_t key = key_of(x);
    if (key < last.key || (key == last.key && i > last_id)) continue;
    const uint32_t at = ptx::atomic_add_shared(row.shared + kListed, 1);
    if (at < count) ptx::store(out + at, ListedToken{i, x});
  }
}

/// `row` has the unmodified logits.
MC_DEVICE void score(Row& row, const DrawRule& rule, Drawn& drawn, ListedToken* listed) {
  const Largest top = largest_of_cta(row);
  const Weights weights{row, top.value, draw_scale(1)};
  uint64_t sum = 0, nan = 0;
  for (int i = static_cast<int>(row.thread); i < row.columns; i += kDrawThreads) {
    const float x = ptx::load(row.x + i);
    sum += weights.of(x);
    nan += x == x ? 0 : 1;
  }
  drawn.total = sum_of_cta(row, sum);
  drawn.has_nan = sum_of_cta(row, nan) > 0 ? 1 : 0;
  drawn.top = top.value;
  drawn.listed = min(rule.logprobs, row.columns);
  if (drawn.listed > 0) list_likeliest(row, static_cast<uint64_t>(drawn.listed), listed);
}

}  // namespace

MC_KERNEL(draw_rows, (kDrawThreads))(MC_PARAM(DrawArgs) args) {
  const int64_t number = ptx::ctaid_x();
  const DrawRule rule = ptx::load(args.rules + number);
  Row row{args.logits + number * args.columns, args.columns, ptx::tid_x(), ptx::dynamic_shared<16>(), kPartials};
  const float* raw = row.x;
  if (rule.slot >= 0 || rule.edits > 0) {
    float* changed = args.changed + number * args.columns;
    change_logits(args, rule, row, changed);
    row.x = changed;
  }
  const Largest best = largest_of_cta(row);
  Drawn drawn;
  drawn.token = best.index;
  drawn.best = best.value;
  const bool is_sound = best.index >= 0 && best.value < -kMinusInf;
  if (is_sound && rule.scale > 0) {
    uint64_t candidates = 0;
    if (rule.top_k > 0) {
      for (int i = static_cast<int>(row.thread); i < row.columns; i += kDrawThreads)
        candidates += ptx::load(row.x + i) > kMinusInf ? 1 : 0;
      candidates = sum_of_cta(row, candidates);
    }
    drawn.token = draw_token(row, rule, best.value, candidates);
  }
  if (is_sound && rule.logprobs >= 0) {
    row.x = raw;
    score(row, rule, drawn, args.listed + number * kListedMax);
  }
  if (row.thread > 0) return;
  if (is_sound && rule.logprobs >= 0) drawn.logit = ptx::load(raw + drawn.token);
  ptx::store(args.drawn + number, drawn);
}

MC_KERNEL(count_tokens, (kThreads))(MC_PARAM(CountArgs) args) {
  const CountedTokens span = ptx::load(args.spans + ptx::ctaid_x());
  uint32_t* counts = args.counts + int64_t{span.slot} * 2 * args.columns;
  for (int i = static_cast<int>(ptx::tid_x()); i < span.count; i += kThreads) {
    const int32_t token = fed_token(ptx::load(args.tokens + span.first + i), args.fed);
    if (static_cast<uint32_t>(token) >= static_cast<uint32_t>(args.columns)) continue;
    ptx::atomic_add(counts + (i < span.prompt ? 0 : args.columns) + token, 1);
  }
}

}  // namespace mc::gpu
