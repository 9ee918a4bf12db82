// mbarriers and bulk copies (PTX ISA 9.0, sections 9.7.13.15 and 9.7.9.27). A phase of an mbarrier ends when no arrival
// and no announced byte is missing. Bytes of a bulk copy are in flight from its issue until it ends, and are ordered
// for the threads that wait for the phase it ended in.
#include <algorithm>

#include "gpu/emu/machine.h"
#include "gpu/emu/tensor_map.h"

namespace mc::gpu::emu {
namespace {

constexpr uint32_t kCountMax = (1u << 20) - 1;
constexpr uint32_t kMbarriersMax = 32;  // agents that the shadow has room for

uint32_t shared_address(const Warp& w, const Op& op, uint32_t lane) {
  return w.word(op.base, lane) + static_cast<uint32_t>(op.offset);
}

/// The barrier at an address after its checks, or null after a failure.
Mbarrier* find_mbarrier(Warp& w, uint32_t address, uint32_t lane) {
  for (Mbarrier& barrier : w.cta.mbarriers) {
    if (barrier.address != address) continue;
    if (!w.cta.grid.options.checks || w.cta.shadow.ordered(w.number, 1u << lane, barrier.init)) return &barrier;
    w.fail("barrier", "an mbarrier is used without order after its init", 1u << lane);
    return nullptr;
  }
  w.fail("barrier", "no mbarrier was made at shared " + std::to_string(address), 1u << lane);
  return nullptr;
}

Flow mbarrier_init(Warp& w, const Op& op, uint32_t mask) {
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    const uint32_t address = shared_address(w, op, lane), count = w.word(op.a[0], lane);
    if (address % 8 != 0 || address + 8 > w.cta.shared.size() || count < 1 || count > kCountMax)
      return w.fail(
          "barrier",
          "mbarrier.init at shared " + std::to_string(address) + " for " + std::to_string(count) + " arrivals",
          1u << lane);
    if (w.cta.mbarriers.size() == kMbarriersMax)
      return w.fail("barrier", "more than 32 mbarriers of a CTA: the emulator has no room for them", 1u << lane);
    if (const Conflict found = w.cta.shadow.reserve(w.number, 1u << lane, address)) return w.fail(found, 1u << lane);
    Mbarrier barrier;
    barrier.address = address;
    barrier.expected = barrier.pending = count;
    barrier.open = barrier.done = View(w.cta.shadow.warps() + 32);
    barrier.init = w.cta.shadow.now(w.number, 1u << lane);
    w.cta.mbarriers.push_back(std::move(barrier));
  }
  return Flow::next;
}

Flow mbarrier_fence(Warp& w, const Op&, uint32_t mask) {
  for (Mbarrier& barrier : w.cta.mbarriers)
    if (barrier.init.warp == w.number && (barrier.init.lanes & mask) != 0) barrier.fenced = true;
  return Flow::next;
}

/// arrive, or arrive.expect_tx when the operand behind the sink is there.
Flow mbarrier_arrive(Warp& w, const Op& op, uint32_t mask) {
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    Mbarrier* barrier = find_mbarrier(w, shared_address(w, op, lane), lane);
    if (barrier == nullptr) return Flow::block;
    if (op.variant == 1) barrier->bytes += w.word(op.a[1], lane);
    if (barrier->pending == 0)
      return w.fail("barrier", "more arrivals at an mbarrier than its count in one phase", 1u << lane);
    w.cta.shadow.release(w.number, 1u << lane, barrier->open);
    --barrier->pending;
    w.cta.try_complete(static_cast<uint32_t>(barrier - w.cta.mbarriers.data()));
  }
  return Flow::next;
}
bool decode_expect(Op& op, std::string_view modifiers, std::string&) {
  op.variant = 1;
  return modifiers.empty();
}

/// try_wait.parity: the strand sleeps until the phase of that parity is over for some of its lanes.
Flow mbarrier_wait(Warp& w, const Op& op, uint32_t mask) {
  uint32_t passed = 0;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    const Mbarrier* barrier = find_mbarrier(w, shared_address(w, op, lane), lane);
    if (barrier == nullptr) return Flow::block;
    if ((barrier->phase & 1) != (w.word(op.a[1], lane) & 1)) passed |= 1u << lane;
  }
  if (passed == 0) return Flow::block;
  const auto leader = static_cast<uint32_t>(std::countr_zero(passed));
  const Mbarrier* first = find_mbarrier(w, shared_address(w, op, leader), leader);
  if (passed == w.alive && first->phase > 0) w.cta.shadow.acquire(w.number, kAllLanes, first->done);
  for (uint32_t rest = passed == w.alive ? 0 : passed; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    const Mbarrier* barrier = find_mbarrier(w, shared_address(w, op, lane), lane);
    if (barrier->phase > 0) w.cta.shadow.acquire(w.number, 1u << lane, barrier->done);
  }
  uint32_t& p = w.predicates[op.a[0]];
  p = (p & ~mask) | passed;
  ++w.cta.grid.report.counters.barriers;
  return Flow::next;
}

/// The box of a tensor copy, row by row; elements outside the tensor are zero. False after a failure.
bool read_box(Warp& w, const TensorMapBytes& map, const int32_t (&at)[5], uint32_t lane, std::vector<std::byte>& out) {
  const uint64_t element = map.strides[0], inner = map.box[0] * element;
  uint32_t index[5] = {};
  do {
    bool inside = true;
    uint64_t address = map.base;
    for (int d = 1; d < 5; ++d) {
      const int64_t c = int64_t{at[d]} + index[d];
      inside = inside && c >= 0 && c < static_cast<int64_t>(map.dims[d]);
      if (inside) address += static_cast<uint64_t>(c) * map.strides[d];
    }
    const int64_t first = std::clamp<int64_t>(-int64_t{at[0]}, 0, map.box[0]);
    const int64_t end = std::clamp<int64_t>(static_cast<int64_t>(map.dims[0]) - at[0], first, map.box[0]);
    const size_t row = out.size();
    out.resize(row + inner);
    if (inside && end > first) {
      const auto bytes = static_cast<uint32_t>(static_cast<uint64_t>(end - first) * element);
      const std::byte* from = read_global(w, address + static_cast<uint64_t>(at[0] + first) * element, bytes, lane);
      if (from == nullptr) return false;
      std::memcpy(out.data() + row + static_cast<uint64_t>(first) * element, from, bytes);
    }
    int d = 1;
    while (d < 5 && ++index[d] == map.box[d]) index[d++] = 0;
    if (d == 5) return true;
  } while (true);
}

/// cp.async.bulk.tensor: a = {map, c0 .., barrier}.
Flow load_tensor(Warp& w, const Op& op, uint32_t mask) {
  Cta& cta = w.cta;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    const uint64_t where = w.wide(op.a[0], lane) - kParamWindow;
    TensorMapBytes map;
    if (where % 64 != 0 || where > cta.grid.params.size() || cta.grid.params.size() - where < sizeof map)
      return w.fail("tensor map", "the address is no 64-byte aligned parameter of the kernel", 1u << lane);
    std::memcpy(&map, cta.grid.params.data() + where, sizeof map);
    if (map.magic != TensorMapBytes::kMagic || map.rank != op.variant)
      return w.fail("tensor map", "the parameter is no tensor map of rank " + std::to_string(op.variant), 1u << lane);
    int32_t at[5] = {};
    for (uint32_t d = 0; d < op.variant; ++d) at[d] = static_cast<int32_t>(w.word(op.a[1 + d], lane));
    BulkCopy copy{.to = shared_address(w, op, lane), .swizzled = map.swizzled != 0};
    Mbarrier* barrier = find_mbarrier(w, w.word(op.a[1 + op.variant], lane) + static_cast<uint32_t>(op.second), lane);
    if (barrier == nullptr) return Flow::block;
    if (cta.grid.options.checks && !barrier->fenced)
      return w.fail("barrier", "a bulk copy uses an mbarrier whose init was not fenced", 1u << lane);
    copy.barrier = static_cast<uint32_t>(barrier - cta.mbarriers.data());
    if (!read_box(w, map, at, lane, copy.bytes)) return Flow::block;
    const auto bytes = static_cast<uint32_t>(copy.bytes.size());
    if (copy.to % (copy.swizzled ? 1024 : 128) != 0)
      return w.fail("alignment", "a tensor copy to shared " + std::to_string(copy.to), 1u << lane);
    if (copy.to > cta.shared.size() || bytes > cta.shared.size() - copy.to)
      return w.fail("bounds", "a tensor copy to shared " + std::to_string(copy.to), 1u << lane);
    if (cta.grid.options.checks)
      if (const Conflict found = cta.shadow.start_copy(w.number, 1u << lane, copy.to, bytes, cta.tag(), Proxy::async))
        return w.fail(found, 1u << lane);
    cta.grid.report.counters.async_bytes += bytes;
    cta.bulk.push_back(std::move(copy));
  }
  return Flow::next;
}
bool decode_tensor(Op& op, std::string_view modifiers, std::string& shape) {
  if (modifiers.size() < 3 || modifiers[0] != '.' || modifiers[1] < '1' || modifiers[1] > '5' || modifiers[2] != 'd')
    return false;
  op.variant = static_cast<uint8_t>(modifiers[1] - '0');
  shape = "mtb";
  modifiers.remove_prefix(3);
  return modifiers == ".shared::cluster.global.tile.mbarrier::complete_tx::bytes" ||
         modifiers == ".shared::cta.global.tile.mbarrier::complete_tx::bytes";
}

constexpr Row kBulkRows[] = {
    {"mbarrier.init.shared::cta.b64", "mr", mbarrier_init},
    {"mbarrier.arrive.shared::cta.b64", "Rm", mbarrier_arrive},
    {"mbarrier.arrive.expect_tx.shared::cta.b64", "Rmr", mbarrier_arrive, decode_expect},
    {"mbarrier.try_wait.parity.shared::cta.b64", "Pmr", mbarrier_wait},
    {"fence.mbarrier_init.release.cluster", "", mbarrier_fence},
    {"cp.async.bulk.tensor", "", load_tensor, decode_tensor},
};

}  // namespace

void Cta::try_complete(uint32_t number) {
  Mbarrier& barrier = mbarriers[number];
  if (barrier.pending > 0 || barrier.bytes != 0) return;
  shadow.complete(number, barrier.phase, barrier.open);
  barrier.done = barrier.open;
  barrier.open = View(shadow.warps() + 32);
  ++barrier.phase;
  barrier.pending = barrier.expected;
  for (Warp& warp : warps) warp.wake_blocked();
}

void Cta::complete_bulk(size_t number) {
  const BulkCopy copy = std::move(bulk[number]);
  bulk.erase(bulk.begin() + static_cast<std::ptrdiff_t>(number));
  const auto bytes = static_cast<uint32_t>(copy.bytes.size());
  for (uint32_t at = 0; at < bytes; at += 16) {
    uint32_t to = copy.to + at;
    if (copy.swizzled) to ^= to >> 3 & 0x70;
    std::memcpy(shared.data() + to, copy.bytes.data() + at, std::min(16u, bytes - at));
  }
  Mbarrier& barrier = mbarriers[copy.barrier];
  if (grid.options.checks) shadow.end_bulk(copy.barrier, barrier.phase, copy.to, bytes);
  barrier.bytes -= bytes;
  try_complete(copy.barrier);
}

std::span<const Row> bulk_rows() {
  return kBulkRows;
}

}  // namespace mc::gpu::emu
