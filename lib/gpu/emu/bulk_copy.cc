// mbarriers and bulk copies (PTX ISA 9.0, sections 9.7.13.15 and 9.7.9.27). A phase of an mbarrier ends when no arrival
// and no announced byte is missing. Bytes of a bulk copy are in flight from its issue until it ends, and are ordered
// for the threads that wait for the phase it ended in.
#include <algorithm>

#include "base/assert.h"
#include "gpu/emu/machine.h"
#include "gpu/emu/tensor_map.h"

namespace mc::gpu::emu {
namespace {

constexpr uint32_t kCountMax = (1u << 20) - 1;

/// The barrier at an address of a CTA, after its checks.
Mbarrier& find_mbarrier_of(Cta& cta, uint32_t address) {
  for (Mbarrier& barrier : cta.bulk.mbarriers) {
    if (barrier.address != address) continue;
    if (cta.grid.options.checks && !cta.order.ordered(running_warp().agent, running().bit(), barrier.init))
      fail(Rule::barrier, "an mbarrier is used without order after its init");
    return barrier;
  }
  fail(Rule::barrier, "no mbarrier was made at shared " + hex(address));
}

Mbarrier& find_mbarrier(uint32_t address) {
  return find_mbarrier_of(running_cta(), address);
}

void arrive(Cta& cta, Mbarrier& barrier) {
  if (barrier.pending <= barrier.tracking)
    fail(Rule::barrier, "more arrivals at an mbarrier than its count in one phase");
  cta.order.release(running_warp().agent, running().bit(), barrier.open);
  --barrier.pending;
  cta.bulk.try_complete(static_cast<uint32_t>(&barrier - cta.bulk.mbarriers.data()));
}

/// The lane acquires the last complete phase; once all lanes of its warp have, the warp does.
void acquire_phase(Mbarrier& barrier) {
  const Warp& warp = running_warp();
  MC_ASSERT_LT(warp.number, barrier.waited.size());
  Order& order = warp.cta.order;
  if (barrier.phase == 0) return;
  uint32_t& waited = barrier.waited[warp.number];
  waited |= running().bit();
  order.acquire(warp.agent, waited == kAllLanes ? kAllLanes : running().bit(), barrier.done);
}

/// The box of a tensor copy, row by row; elements outside the tensor are zero.
std::vector<std::byte> read_box(const TensorMapBytes& map, const int32_t (&at)[5]) {
  std::vector<std::byte> out;
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
      const std::byte* from =
          global_bytes(address + static_cast<uint64_t>(at[0] + first) * element, bytes, Access::read);
      std::memcpy(out.data() + row + static_cast<uint64_t>(first) * element, from, bytes);
    }
    int d = 1;
    while (d < 5 && ++index[d] == map.box[d]) index[d++] = 0;
    if (d == 5) return out;
  } while (true);
}

}  // namespace

TensorMapBytes read_map(const void* at, uint32_t rank) {
  const Grid& grid = running_cta().grid;
  const auto offset = static_cast<size_t>(static_cast<const std::byte*>(at) - grid.param_start);
  TensorMapBytes map;
  if (offset % 64 != 0 || offset > grid.launch.params.size() || grid.launch.params.size() - offset < sizeof map)
    fail(Rule::tensor_map, "the address is no 64-byte aligned parameter of the kernel");
  std::memcpy(&map, at, sizeof map);
  if (map.magic != TensorMapBytes::kMagic || map.rank != rank)
    fail(Rule::tensor_map, "the parameter is no tensor map of rank " + std::to_string(rank));
  return map;
}

void mbarrier_init(uint32_t address, uint32_t arrivals, const Where& where) {
  if (!begin(Instruction::mbarrier_init, where)) return;
  Cta& cta = running_cta();
  const uint32_t count = mutated(arrivals);
  shared_bytes(address, 8, 8);
  if (count < 1 || count > kCountMax) fail(Rule::barrier, "an mbarrier for " + std::to_string(count) + " arrivals");
  if (cta.bulk.mbarriers.size() == kMbarriersMax)
    fail(Rule::barrier, "more than 32 mbarriers of a CTA: the emulator has no room for them");
  if (const Conflict found = cta.shadow.reserve(running_warp().agent, running().bit(), address)) fail(found);
  Mbarrier barrier;
  barrier.address = address;
  barrier.expected = barrier.pending = count;
  barrier.open = barrier.done = cta.order.view();
  barrier.init = cta.order.now(running_warp().agent, running().bit());
  barrier.waited.assign(cta.warps.size(), 0);
  cta.bulk.mbarriers.push_back(std::move(barrier));
}

void mbarrier_init_fence(const Where& where) {
  if (!begin(Instruction::mbarrier_init_fence, where)) return;
  for (Mbarrier& barrier : running_cta().bulk.mbarriers)
    if (barrier.init.agent == running_warp().agent && (barrier.init.lanes & running().bit()) != 0)
      barrier.fenced = true;
}

void mbarrier_arrive(uint32_t address, const Where& where) {
  if (!begin(Instruction::mbarrier_arrive, where)) return;
  const Target target = resolve(address);
  arrive(target.cta, find_mbarrier_of(target.cta, target.address));
}

void mbarrier_arrive_expect(uint32_t address, uint32_t bytes, const Where& where) {
  if (!begin(Instruction::mbarrier_arrive_expect, where)) return;
  Mbarrier& barrier = find_mbarrier(address);
  barrier.bytes += mutated(bytes);
  arrive(running_cta(), barrier);
}

/// cp.async.mbarrier.arrive: the barrier tracks the lane's copies so far, and gets one arrival when they have ended, at
/// a moment that the seed draws (9.7.13.15.17). The lane does not wait for them, and the arrival releases nothing else
/// that it did. Without .noinc the count of the phase grows by that arrival.
void cp_async_arrive(uint32_t address, bool increments, const Where& where) {
  if (!begin(increments ? Instruction::cp_async_arrive_inc : Instruction::cp_async_arrive, where)) return;
  Mbarrier& barrier = find_mbarrier(address);
  if (increments) ++barrier.pending;
  if (barrier.pending > kCountMax) fail(Rule::barrier, "more than 2^20 - 1 arrivals of one phase are pending");
  if (barrier.pending <= barrier.tracking)
    fail(Rule::barrier, "more arrivals at an mbarrier than its count in one phase");
  ++barrier.tracking;
  Lane& lane = running();
  BulkEngine& bulk = running_cta().bulk;
  for (AsyncCopy& copy : lane.warp->copies[lane.number])
    if (copy.arrival == 0) copy.arrival = bulk.last_arrival + 1;
  bulk.arrivals.push_back({.id = ++bulk.last_arrival,
                           .barrier = static_cast<uint32_t>(&barrier - bulk.mbarriers.data()),
                           .warp = lane.warp,
                           .lane = lane.number});
}

/// Returns when the phase of that parity is over: the wrapper's loop around try_wait.
void mbarrier_wait(uint32_t address, uint32_t parity, const Where& where) {
  if (!begin(Instruction::mbarrier_wait, where)) return;
  parity = mutated(parity);
  Warp& warp = running_warp();
  for (;;) {
    Mbarrier& barrier = find_mbarrier(address);
    if ((barrier.phase & 1) != (parity & 1)) {
      acquire_phase(barrier);
      ++warp.cta.grid.report.counters.barriers;
      return;
    }
    warp.at_mbarrier |= running().bit();
    block();
  }
}

void fence_async(const Where& where) {
  if (begin(Instruction::fence_async, where)) running_cta().order.fence_async(running_warp().agent, running().bit());
}

void load_tensor(uint32_t to, const void* map_at, const Coordinates& at, uint32_t rank, uint32_t barrier_at,
                 uint32_t multicast, const Where& where) {
  if (!begin(Instruction::load_tensor, where)) return;
  Cta& cta = running_cta();
  const TensorMapBytes map = read_map(map_at, rank);
  Coordinates from = at;
  from.at[1] = static_cast<int32_t>(mutated(static_cast<uint32_t>(at.at[1])));
  const std::vector<std::byte> bytes = read_box(map, from.at);
  Cluster& cluster = cta.cluster;
  if (multicast >> cluster.ctas.size() != 0) fail(Rule::cluster, "the multicast names a CTA that the cluster lacks");
  for (Cta& target : cluster.ctas) {
    if (multicast == 0 ? &target != &cta : (multicast >> target.rank & 1) == 0) continue;
    if (&target != &cta) check_peer(target);
    const Mbarrier& barrier = find_mbarrier_of(target, barrier_at);
    if (cta.grid.options.checks && !barrier.fenced)
      fail(Rule::barrier, "a bulk copy uses an mbarrier whose init was not fenced");
    shared_bytes_of(target, to, static_cast<uint32_t>(bytes.size()), map.swizzled != 0 ? 1024 : 128);
    if (cta.grid.options.checks)
      if (const Conflict found = target.shadow.start_copy(running_warp().agent, running().bit(), to,
                                                          static_cast<uint32_t>(bytes.size()), Proxy::async))
        fail(found);
    cta.grid.report.counters.async_bytes += bytes.size();
    target.bulk.pending.push_back({.to = to,
                                   .barrier = static_cast<uint32_t>(&barrier - target.bulk.mbarriers.data()),
                                   .swizzled = map.swizzled != 0,
                                   .bytes = bytes});
  }
}

void BulkEngine::try_complete(uint32_t index) {
  MC_ASSERT_LT(index, mbarriers.size());
  Mbarrier& barrier = mbarriers[index];
  if (barrier.pending > 0 || barrier.bytes != 0) return;
  cta.order.complete(cta.barrier_agent(index), barrier.phase, barrier.open);
  barrier.done = barrier.open;
  barrier.open = cta.order.view();
  ++barrier.phase;
  barrier.pending = barrier.expected;
  std::fill(barrier.waited.begin(), barrier.waited.end(), 0u);
  for (Warp& warp : cta.warps) {
    warp.ready |= warp.at_mbarrier;
    warp.at_mbarrier = 0;
  }
}

void BulkEngine::complete(size_t index) {
  MC_ASSERT_LT(index, open());
  if (index < pending.size()) return complete_copy(index);
  // The copies of a lane end in their order, and so do its arrivals.
  const AsyncArrival& drawn = arrivals[index - pending.size()];
  const auto first = std::find_if(arrivals.begin(), arrivals.end(),
                                  [&](const AsyncArrival& a) { return a.warp == drawn.warp && a.lane == drawn.lane; });
  complete_arrival(static_cast<size_t>(first - arrivals.begin()));
}

void BulkEngine::complete_arrival(size_t index) {
  const AsyncArrival arrival = arrivals[index];
  arrivals.erase(arrivals.begin() + static_cast<std::ptrdiff_t>(index));
  Warp& warp = *arrival.warp;
  const uint32_t bit = 1u << arrival.lane, clock = ++warp.copies_clock;
  std::erase_if(warp.copies[arrival.lane], [&](const AsyncCopy& copy) {
    if (copy.arrival != arrival.id) return false;
    if (cta.grid.options.checks)
      cta.shadow.end_tracked({cta.order.copy_agent(warp.agent), clock, bit}, copy.to, copy.bytes);
    return true;
  });
  Mbarrier& barrier = mbarriers[arrival.barrier];
  MC_ASSERT(barrier.pending > 0 && barrier.tracking > 0);
  cta.order.copied(warp.agent, bit, clock, barrier.open);
  --barrier.pending;
  --barrier.tracking;
  try_complete(arrival.barrier);
}

void BulkEngine::complete_copy(size_t index) {
  MC_ASSERT_LT(index, pending.size());
  const BulkCopy copy = std::move(pending[index]);
  pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(index));
  const auto bytes = static_cast<uint32_t>(copy.bytes.size());
  for (uint32_t at = 0; at < bytes; at += 16) {
    uint32_t to = copy.to + at;
    if (copy.swizzled) to ^= to >> 3 & 0x70;
    std::memcpy(cta.shared.data() + to, copy.bytes.data() + at, std::min(16u, bytes - at));
  }
  Mbarrier& barrier = mbarriers[copy.barrier];
  if (cta.grid.options.checks) cta.shadow.end_bulk(cta.barrier_agent(copy.barrier), barrier.phase, copy.to, bytes);
  barrier.bytes -= bytes;
  try_complete(copy.barrier);
}

}  // namespace mc::gpu::emu
