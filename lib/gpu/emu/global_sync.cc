// Order between CTAs through global memory: atomics, acquire, release and fence.acq_rel.gpu (PTX ISA 9.0, sections 8.9
// and 9.7.13.6). A release publishes at an address what its lane has seen; an acquire that reads there happens after
// it.
#include <algorithm>

#include "base/assert.h"
#include "gpu/emu/machine.h"

namespace mc::gpu::emu {
namespace {

uint32_t* word_at(uint64_t address, Access access) {
  if (address % 4 != 0) fail(Rule::alignment, "the address " + hex(address) + " is no multiple of 4");
  return reinterpret_cast<uint32_t*>(global_bytes(address, 4, access));
}

}  // namespace

void join(Known& into, const Known& from) {
  for (const auto& [cluster, stamps] : from) {
    std::vector<Stamp>& mine = into[cluster];
    MC_ASSERT(mine.empty() || mine.size() == stamps.size());
    mine.resize(stamps.size());
    for (size_t i = 0; i < stamps.size(); ++i) mine[i].join(stamps[i]);
  }
}

Known publish() {
  Cta& cta = running_cta();
  Known out;
  for (const Cluster::Acquired& acquired : cta.cluster.acquired)
    if (cta.order.ordered(running_warp().agent, running().bit(), acquired.at)) join(out, acquired.known);
  View view = cta.order.view();
  cta.order.release(running_warp().agent, running().bit(), view);
  MC_ASSERT_LE(cta.order.warps(), view.seen.size());
  view.seen.resize(cta.order.warps());  // its mbarriers order nothing in global memory
  join(out, {{cta.number / cta.grid.launch.cluster, view.seen}});
  return out;
}

void acquire(const Known& known) {
  if (known.empty()) return;
  Cta& cta = running_cta();
  cta.cluster.acquired.push_back({cta.order.now(running_warp().agent, running().bit()), known});
}

uint32_t atomic_global(AtomicOp op, uint64_t at, uint32_t value, Semantics semantics, const Where& where) {
  if (!begin(Instruction::atom_global, where)) return 0;
  uint32_t* word = word_at(at, Access::atomic);
  Known& released = running_cta().grid.released[at];
  Lane& lane = running();
  if (semantics == Semantics::acq_rel) {
    acquire(released);
    join(released, publish());
  } else {
    join(lane.observed, released);
    join(released, lane.published);
  }
  const uint32_t old = *word;
  *word = apply(op, old, value);
  return old;
}

uint32_t load_acquire(uint64_t from, const Where& where) {
  if (!begin(Instruction::ld_acquire, where)) return 0;
  running_cta().spins = true;
  const uint32_t value = *word_at(from, Access::atomic);
  acquire(running_cta().grid.released[from]);
  return value;
}

void store_release(uint64_t to, uint32_t value, const Where& where) {
  if (!begin(Instruction::st_release, where)) return;
  *word_at(to, Access::atomic) = value;
  running_cta().grid.released[to] = publish();
}

void fence_gpu(const Where& where) {
  if (!begin(Instruction::fence_gpu, where)) return;
  Lane& lane = running();
  acquire(std::exchange(lane.observed, {}));
  lane.published = publish();
}

void pause(const Where& where) {
  if (!begin(Instruction::nanosleep, where)) return;
  running_cta().spins = true;
  running_warp().budget = 0;  // the turn ends at the next instruction
}

}  // namespace mc::gpu::emu
