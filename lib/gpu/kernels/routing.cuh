// Where the index of MoBA prefill lies (Routing in attention.h), for the kernels that make it and those that use it.
#pragma once

#include "gpu/kernels/attention.h"
#include "gpu/ptx/memory.cuh"

namespace mc::gpu {

/// The range of a KV head in an array that has `each` elements for a head.
template <class T>
MC_DEVICE T* of_head(T* array, int kv_head, int64_t each) {
  return array + kv_head * each;
}

MC_DEVICE int32_t rows_of(const AttentionArgs& args, const Sequence& sequence) {
  return sequence.tokens * (args.q_heads / args.pool.kv_heads);
}

/// Items that the list of a block is cut into.
MC_DEVICE int32_t items_of(const Routing& routing, int32_t rows) {
  return (rows + routing.item_rows - 1) / routing.item_rows;
}

MC_DEVICE int32_t union_tiles_of(const AttentionArgs& args, const Sequence& sequence) {
  return (rows_of(args, sequence) + kUnionRows - 1) / kUnionRows;
}

/// Whether row `number` of a KV head belongs to a union tile.
MC_DEVICE bool is_union(const AttentionArgs& args, const Sequence& sequence, const Routing& routing, int kv_head,
                        int number) {
  if (routing.is_union == nullptr) return false;
  return ptx::load(of_head(routing.is_union, kv_head, union_tiles_of(args, sequence)) + number / kUnionRows) != 0;
}

/// Rows of one list that a CTA attends for: places [first, first + count).
struct Item {
  const int32_t* list = nullptr;  // the numbers of the rows
  int32_t block = 0, first = 0, count = 0;
};

/// The CTA's item of a KV head; without rows when the head has fewer.
MC_DEVICE Item item_of(const AttentionArgs& args, int kv_head) {
  const Routing routing = ptx::load(args.routing + ptx::ctaid_z());
  const auto number = static_cast<int32_t>(ptx::ctaid_x());
  const int32_t* firsts = of_head(routing.item_first, kv_head, routing.blocks + 1);
  if (number >= ptx::load(firsts + routing.blocks)) return {};
  Item item;
  item.block = ptx::load(of_head(routing.item_block, kv_head, routing.items) + number);
  const int32_t* offsets = of_head(routing.offsets, kv_head, routing.blocks + 1) + item.block;
  item.first = ptx::load(offsets) + (number - ptx::load(firsts + item.block)) * routing.item_rows;
  item.count = min(ptx::load(offsets + 1) - item.first, routing.item_rows);
  item.list = of_head(routing.list, kv_head, routing.entries) + item.first;
  return item;
}

}  // namespace mc::gpu
