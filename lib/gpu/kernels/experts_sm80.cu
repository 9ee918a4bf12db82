// The kernels of a mixture of experts beside its products: the router's choice, the order of rows by expert, and the
// weighted sum of the answers. No order depends on the schedule: experts of a row are ascending, rows of an expert are
// ascending, and answers are added in the order of experts. A row's result depends on that row alone.
#include "gpu/kernels/experts.h"
#include "gpu/kernels/layer.h"
#include "gpu/kernels/numbers.cuh"
#include "gpu/ptx/arithmetic.cuh"
#include "gpu/ptx/memory.cuh"
#include "gpu/ptx/warp.cuh"

namespace mc::gpu {
namespace {

constexpr int kWarps = kThreads / 32;

struct Candidate {
  float score = kMinusInf;
  int32_t expert = 0;
};

/// Whether `a` is chosen before `b`.
MC_DEVICE bool comes_before(const Candidate& a, const Candidate& b) {
  if (a.score != b.score) return a.score > b.score;
  return ptx::has_fault(Fault::ties_to_higher) ? a.expert > b.expert : a.expert < b.expert;
}

MC_DEVICE Candidate candidate(const float* scores, int expert) {
  const float score = ptx::load(scores + expert);
  return {score == score ? score : kMinusInf, expert};
}

/// Returns the first candidate after `last`, in all lanes.
MC_DEVICE Candidate first_after(const Candidate& last, const float* scores, int experts) {
  Candidate first{kMinusInf, experts};  // comes after every expert
#pragma unroll 1
  for (int expert = static_cast<int>(ptx::tid_x() % 32); expert < experts; expert += 32) {
    const Candidate one = candidate(scores, expert);
    if (comes_before(last, one) && (first.expert == experts || comes_before(one, first))) first = one;
  }
#pragma unroll
  for (uint32_t by = 16; by > 0; by /= 2) {
    const float score = ptx::shuffle_xor(first.score, by);
    const Candidate other{score, ptx::shuffle_xor(first.expert, by)};
    if (other.expert != experts && (first.expert == experts || comes_before(other, first))) first = other;
  }
  return first;
}

/// exp(score - best). Without a finite score all experts have the same weight.
MC_DEVICE float weight_of(const Candidate& one, float best) {
  return best == kMinusInf ? 1 : ptx::exp2_approx((one.score - best) * kLog2e);
}

MC_DEVICE uint32_t lanes_below() {
  return (1u << ptx::tid_x() % 32) - 1;
}

MC_DEVICE uint32_t sum_of_lanes(uint32_t value) {
#pragma unroll
  for (uint32_t by = 16; by > 0; by /= 2) value += ptx::shuffle_xor(value, by);
  return value;
}

}  // namespace

/// A warp has a row.
MC_KERNEL(route_rows, (kThreads))(MC_PARAM(RouteArgs) args) {
  const int64_t row = int64_t{ptx::ctaid_x()} * kRowsPerCta + ptx::tid_x() / 32;
  const int lane = ptx::tid_x() % 32;
  if (row >= args.rows) return;
  const float* scores = args.scores + row * args.stride;
  Candidate last = first_after({-kMinusInf, -1}, scores, args.experts);
  const float best = last.score;
  for (int i = 1; i < args.per_token; ++i) last = first_after(last, scores, args.experts);
  const bool over_chosen = args.normalise && !ptx::has_fault(Fault::shares_of_all);
  float sum = 0;
#pragma unroll 1
  for (int expert = lane; expert < args.experts; expert += 32) {
    const Candidate one = candidate(scores, expert);
    if (!over_chosen || !comes_before(last, one)) sum = ptx::add_rn(sum, weight_of(one, best));
  }
  sum = sum_of_warp(sum);
  int64_t at = row * args.per_token;
  for (int first = 0; first < args.experts; first += 32) {
    const bool is_expert = first + lane < args.experts;
    const Candidate one = is_expert ? candidate(scores, first + lane) : Candidate{};
    const bool is_chosen = is_expert && !comes_before(last, one);
    const uint32_t votes = ptx::ballot(is_chosen);
    if (is_chosen) {
      const int64_t to = at + ptx::popcount(votes & lanes_below());
      ptx::store(args.chosen + to, one.expert);
      ptx::store(args.shares + to, ptx::div_rn(weight_of(one, best), sum));
    }
    at += ptx::popcount(votes);
  }
}

/// A CTA has an expert. It counts the entries of all experts, because those before its own say where its group begins.
MC_KERNEL(group_rows, (kThreads))(MC_PARAM(GroupArgs) args) {
  const uint32_t counts = ptx::dynamic_shared<16>(), sums = counts + static_cast<uint32_t>(args.experts) * 4;
  const uint32_t votes_of = sums + 2 * kWarps * 4;
  const int expert = static_cast<int>(ptx::ctaid_x()), thread = static_cast<int>(ptx::tid_x()), warp = thread / 32;
  for (int i = thread; i < args.experts; i += kThreads) ptx::store_shared_u32(counts + i * 4, 0);
  ptx::barrier_all();
  for (int i = thread; i < args.entries; i += kThreads)
    ptx::atomic_add_shared(counts + static_cast<uint32_t>(ptx::load(args.chosen + i)) * 4, 1);
  ptx::barrier_all();
  const auto tiles_of = [&](uint32_t rows) { return (rows + args.tile_rows - 1) / args.tile_rows; };
  uint32_t slots_before = 0, tiles_before = 0;
  for (int i = thread; i < expert; i += kThreads) {
    const uint32_t rows = ptx::load_shared_u32(counts + i * 4);
    slots_before += rows;
    tiles_before += tiles_of(rows);
  }
  slots_before = sum_of_lanes(slots_before);
  tiles_before = sum_of_lanes(tiles_before);
  if (thread % 32 == 0) {
    ptx::store_shared_u32(sums + warp * 8, slots_before);
    ptx::store_shared_u32(sums + warp * 8 + 4, tiles_before);
  }
  ptx::barrier_all();
  uint32_t slot = 0, tile = 0;
  for (int i = 0; i < kWarps; ++i) {
    slot += ptx::load_shared_u32(sums + i * 8);
    tile += ptx::load_shared_u32(sums + i * 8 + 4);
  }
  const uint32_t rows = ptx::load_shared_u32(counts + expert * 4);
  for (uint32_t i = thread; i < tiles_of(rows); i += kThreads) {
    const uint32_t first = i * args.tile_rows;
    ptx::store(args.tiles + tile + i, ExpertTile{expert, static_cast<int32_t>(slot + first),
                                                 min(static_cast<int32_t>(rows - first), args.tile_rows)});
  }
  if (expert + 1 == args.experts)
    for (int i = static_cast<int>(tile + tiles_of(rows)) + thread; i < args.tile_count; i += kThreads)
      ptx::store(args.tiles + i, ExpertTile{});
  uint32_t votes_now = votes_of;
  for (int first = 0; first < args.entries; first += kThreads) {
    const int entry = first + thread;
    const bool is_own = entry < args.entries && ptx::load(args.chosen + entry) == expert;
    const uint32_t votes = ptx::ballot(is_own);
    if (thread % 32 == 0) ptx::store_shared_u32(votes_now + warp * 4, static_cast<uint32_t>(ptx::popcount(votes)));
    ptx::barrier_all();
    uint32_t before = 0, all = 0;
    for (int i = 0; i < kWarps; ++i) {
      const uint32_t others = ptx::load_shared_u32(votes_now + i * 4);
      if (i < warp && !ptx::has_fault(Fault::group_unordered)) before += others;
      all += others;
    }
    if (is_own) {
      const uint32_t to = slot + before + ptx::popcount(votes & lanes_below());
      ptx::store(args.rows + to, entry / args.per_token);
      ptx::store(args.slots + entry, static_cast<int32_t>(to));
    }
    slot += all;
    votes_now = votes_now == votes_of ? votes_of + kWarps * 4 : votes_of;  // a slower warp may still read the others
  }
}

MC_KERNEL(combine_experts, (kThreads))(MC_PARAM(CombineArgs) args) {
  const int64_t row = ptx::ctaid_x();
  const bool is_shared = args.shared != nullptr;
  const float gate = is_shared ? sigmoid(ptx::load(args.scores + row * args.stride + args.experts)) : 0;
  for (int i = static_cast<int>(ptx::tid_x()); i < args.columns; i += kThreads) {
    float sum = 0;
    for (int64_t entry = row * args.per_token; entry < (row + 1) * args.per_token; ++entry) {
      const float answer = ptx::load(args.answers + int64_t{ptx::load(args.slots + entry)} * args.columns + i);
      sum = ptx::add_rn(sum, ptx::mul_rn(ptx::load(args.shares + entry), answer));
    }
    if (is_shared) sum = ptx::add_rn(sum, ptx::mul_rn(gate, ptx::load(args.shared + row * args.columns + i)));
    float* x = args.x + row * args.columns + i;
    ptx::store(x, ptx::add_rn(ptx::load(x), sum));
  }
}

}  // namespace mc::gpu
