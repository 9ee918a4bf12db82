// cp.async: copies that the issuing lane waits for by groups (PTX ISA 9.0, section 9.7.9.25.3). Bytes are in flight
// from the issue to the wait of the lane that issued the copy, whenever the copy itself ran.
#include <algorithm>

#include "base/assert.h"
#include "gpu/emu/machine.h"

namespace mc::gpu::emu {

/// The copy runs here, the earliest legal moment; the rules keep everybody away from its bytes until the wait.
void cp_async(uint32_t to, uint64_t from, uint32_t bytes, uint32_t source_bytes, const Where& where) {
  if (!begin(Instruction::cp_async, where)) return;
  MC_ASSERT(bytes == 4 || bytes == 8 || bytes == 16);
  source_bytes = mutated(source_bytes);
  Cta& cta = running_cta();
  Lane& lane = running();
  if (from % bytes != 0)
    fail(Rule::alignment, "the global address " + hex(from) + " is no multiple of " + std::to_string(bytes));
  if (source_bytes > bytes) fail(Rule::bounds, "more source bytes than it copies");
  std::byte* at = shared_bytes(to, bytes, bytes);
  const std::byte* source = source_bytes > 0 ? global_bytes(from, source_bytes, Access::read) : nullptr;
  if (cta.grid.options.checks)
    if (const Conflict found = cta.shadow.start_copy(lane.warp->agent, lane.bit(), to, bytes, Proxy::generic))
      fail(found);
  if (source_bytes > 0) std::memcpy(at, source, source_bytes);
  std::memset(at + source_bytes, 0, bytes - source_bytes);
  lane.warp->copies[lane.number].push_back({lane.open_group, to, bytes});
  cta.grid.report.counters.async_bytes += source_bytes;
}

void cp_async_commit(const Where& where) {
  if (begin(Instruction::cp_async_commit, where)) ++running().open_group;
}

/// Ends the lane's copies of all but the newest `left` groups.
void cp_async_wait(uint32_t left, const Where& where) {
  if (!begin(Instruction::cp_async_wait, where)) return;
  left = mutated(left);
  Lane& lane = running();
  Cta& cta = running_cta();
  Warp& warp = *lane.warp;
  bool has_tracked = false;
  const Event tracked{cta.order.copy_agent(warp.agent), warp.copies_clock + 1, lane.bit()};
  std::erase_if(warp.copies[lane.number], [&](const AsyncCopy& copy) {
    if (copy.group + left >= lane.open_group) return false;
    has_tracked = has_tracked || copy.arrival != 0;
    if (!cta.grid.options.checks) return true;
    if (copy.arrival == 0)
      cta.shadow.end_copy(warp.agent, lane.bit(), copy.to, copy.bytes);
    else
      cta.shadow.end_tracked(tracked, copy.to, copy.bytes);
    return true;
  });
  if (!has_tracked) return;
  View ended = cta.order.view();
  cta.order.copied(warp.agent, lane.bit(), ++warp.copies_clock, ended);
  cta.order.acquire(warp.agent, lane.bit(), ended);
}

}  // namespace mc::gpu::emu
