// Bulk copies from shared to global memory, which the issuing thread waits for by groups (PTX ISA 9.0, section
// 9.7.9.27). The source belongs to the copy until wait_group.read; what it writes is there for the thread after
// wait_group.
#include <algorithm>

#include "base/assert.h"
#include "gpu/emu/machine.h"
#include "gpu/emu/tensor_map.h"

namespace mc::gpu::emu {
namespace {

/// Rows of the box that lie in the tensor, with their bytes in shared memory.
std::vector<BulkStore::Piece> pieces_of(const TensorMapBytes& map, const int32_t (&at)[5], uint32_t from) {
  const Cta& cta = running_cta();
  std::vector<BulkStore::Piece> out;
  const uint64_t element = map.strides[0];
  const auto inner = static_cast<uint32_t>(map.box[0] * element);
  uint32_t index[5] = {}, row = 0;
  for (;; ++row) {
    bool inside = at[0] < static_cast<int64_t>(map.dims[0]);
    uint64_t to = map.base + static_cast<uint64_t>(at[0]) * element;
    for (int d = 1; d < 5; ++d) {
      const int64_t c = int64_t{at[d]} + index[d];
      inside = inside && c < static_cast<int64_t>(map.dims[d]);
      to += static_cast<uint64_t>(c) * map.strides[d];
    }
    if (inside) {
      const uint64_t columns = std::min<uint64_t>(map.box[0], map.dims[0] - static_cast<uint64_t>(at[0]));
      BulkStore::Piece piece{to, std::vector<std::byte>(columns * element)};
      for (size_t i = 0; i < piece.bytes.size(); ++i) {
        uint32_t source = from + row * inner + static_cast<uint32_t>(i);
        if (map.swizzled != 0) source ^= source >> 3 & 0x70;
        piece.bytes[i] = cta.shared[source];
      }
      out.push_back(std::move(piece));
    }
    int d = 1;
    while (d < 5 && ++index[d] == map.box[d]) index[d++] = 0;
    if (d == 5) return out;
  }
}

/// The bytes of a store reach global memory, where they were in flight.
void write_pieces(const BulkStore& store) {
  DeviceMemory& memory = running_cta().grid.memory;
  MC_ASSERT(store.read);
  for (const BulkStore::Piece& piece : store.pieces) {
    DeviceMemory::Block* block = memory.find(piece.to, piece.bytes.size());
    if (block == nullptr) fail(Rule::bounds, "the bulk store's target " + hex(piece.to) + " was freed");
    const size_t at = piece.to - block->address;
    for (size_t word = at / 4; word * 4 < at + piece.bytes.size(); ++word) block->writer[word].in_flight = false;
    std::byte* to = block->bytes.at(at, piece.bytes.size());
    for (size_t i = 0; i + 4 <= piece.bytes.size() && store.reduce; i += 4) {
      float sum, value;
      std::memcpy(&sum, to + i, 4);
      std::memcpy(&value, piece.bytes.data() + i, 4);
      sum += value;
      std::memcpy(to + i, &sum, 4);
    }
    if (!store.reduce) std::copy(piece.bytes.begin(), piece.bytes.end(), to);
  }
}

void end_reads(BulkStore& store) {
  if (store.read) return;
  store.read = true;
  Cta& cta = running_cta();
  if (cta.grid.options.checks) cta.shadow.end_read(running_warp().agent, running().bit(), store.from, store.bytes);
}

}  // namespace

void store_tensor(uint32_t from, const void* map_at, const Coordinates& at, uint32_t rank, bool reduce,
                  const Where& where) {
  if (!begin(reduce ? Instruction::reduce_tensor : Instruction::store_tensor, where)) return;
  Cta& cta = running_cta();
  const TensorMapBytes map = read_map(map_at, rank);
  if (reduce && map.is_f32 == 0) fail(Rule::tensor_map, "a sum of f32 goes by a map of other elements");
  uint64_t bytes = map.strides[0];
  for (const uint32_t extent : map.box) bytes *= extent;
  if (std::any_of(std::begin(at.at), std::end(at.at), [](int32_t c) { return c < 0; }))
    fail(Rule::bounds, "a bulk store starts at a negative coordinate");
  shared_bytes(from, static_cast<uint32_t>(bytes), map.swizzled != 0 ? 1024 : 128);
  BulkStore store{.lane = running().number,
                  .group = running().open_bulk_group,
                  .from = from,
                  .bytes = static_cast<uint32_t>(bytes),
                  .reduce = reduce};
  if (cta.grid.options.checks)
    if (const Conflict found = cta.shadow.start_read(running_warp().agent, running().bit(), from, store.bytes))
      fail(found);
  store.pieces = pieces_of(map, at.at, from);
  MC_ASSERT_LE(store.pieces.size() * map.strides[0], bytes);
  for (const BulkStore::Piece& piece : store.pieces) {
    const auto size = static_cast<uint32_t>(piece.bytes.size());
    global_bytes(piece.to, size, reduce ? Access::atomic : Access::write);
    DeviceMemory::Block* block = cta.grid.memory.find(piece.to, size);
    // Sums of several CTAs may meet in one word.
    if (reduce || !cta.grid.options.checks) continue;
    for (size_t word = (piece.to - block->address) / 4; word * 4 < piece.to - block->address + size; ++word)
      block->writer[word].in_flight = true;
  }
  cta.grid.report.counters.async_bytes += bytes;
  running_warp().stores.push_back(std::move(store));
}

void bulk_commit(const Where& where) {
  if (begin(Instruction::bulk_commit, where)) ++running().open_bulk_group;
}

void bulk_wait(uint32_t left, bool read_only, const Where& where) {
  if (!begin(Instruction::bulk_wait, where)) return;
  left = mutated(left);
  const Lane& lane = running();
  std::erase_if(lane.warp->stores, [&](BulkStore& store) {
    if (store.lane != lane.number || store.group + left >= lane.open_bulk_group) return false;
    end_reads(store);
    if (read_only) return false;
    write_pieces(store);
    return true;
  });
}

void finish_stores(Lane& lane) {
  std::erase_if(lane.warp->stores, [&](const BulkStore& store) {
    if (store.lane != lane.number) return false;
    if (!store.read) fail(Rule::exit, "a lane exits with a bulk store whose source it has not waited for");
    write_pieces(store);
    return true;
  });
}

}  // namespace mc::gpu::emu
