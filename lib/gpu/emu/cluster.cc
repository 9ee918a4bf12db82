// Clusters, registers and programmatic launch (PTX ISA 9.0, sections 9.7.13.3, 9.7.9.24, 9.7.19.5 and 9.7.13.13).
#include <algorithm>

#include "base/assert.h"
#include "gpu/emu/machine.h"

namespace mc::gpu::emu {
namespace {

/// The barrier's generation that the warp waits for is over.
void acquire_generation(Warp& warp) {
  Cluster& cluster = warp.cta.cluster;
  MC_ASSERT_LT(warp.cluster_generation, cluster.generation);
  cluster.order.acquire(warp.agent, kAllLanes, cluster.released);
  cluster.order.sync_warp(warp.agent);
  warp.cluster_arrived = warp.waits_for_cluster = false;
}

/// barrier.cluster is .aligned and need not wait for the lanes of the warp: they have to come by one way.
void check_converged(const Warp& w) {
  if (!w.cta.grid.options.checks) return;
  const Lane& first = w.lanes[static_cast<size_t>(std::countr_zero(w.alive))];
  for_lanes(w.alive, [&](uint32_t i) {
    if (w.lanes[i].way == first.way) return;
    fail(Rule::divergence,
         "lanes " + std::to_string(first.number) + " and " + std::to_string(i) +
             " have come by different instructions to one that is .aligned, and no bar.warp.sync is between",
         static_cast<int>(i));
  });
}

Flow arrive_at_cluster(Warp& w, uint32_t, void* const*) {
  check_converged(w);
  Cluster& cluster = w.cta.cluster;
  if (w.cluster_arrived) fail(Rule::barrier, "a second arrival at the cluster's barrier without a wait between");
  w.cluster_arrived = true;
  w.cluster_generation = cluster.generation;
  cluster.order.sync_warp(w.agent);
  cluster.order.release(w.agent, kAllLanes, cluster.open);
  ++cluster.arrived;
  ++w.cta.grid.report.counters.barriers;
  cluster.try_complete();
  return Flow::next;
}

Flow wait_for_cluster(Warp& w, uint32_t, void* const*) {
  check_converged(w);
  if (!w.cluster_arrived) fail(Rule::barrier, "a wait at the cluster's barrier without an arrival before");
  if (w.cta.cluster.generation == w.cluster_generation) {
    w.waits_for_cluster = true;
    return Flow::sleep;
  }
  acquire_generation(w);
  return Flow::next;
}

struct RegisterOperand {
  uint32_t registers;
  bool increase;
};

constexpr uint32_t kGroupWarps = 4;  // of a warpgroup

/// setmaxnreg is an instruction of a warpgroup: its warps run the same ones, and meet between two (9.7.19.5).
void note_change(Warp& w, uint32_t registers) {
  Cta& cta = w.cta;
  const uint32_t first = w.number / kGroupWarps * kGroupWarps;
  if (first + kGroupWarps > cta.warps.size()) fail(Rule::registers, "the warp is in no full warpgroup");
  const size_t nth = w.registers.changes.size();
  const Where& where = running().where;
  for (uint32_t i = first; i < first + kGroupWarps; ++i) {
    if (i == w.number) continue;
    const Warp& other = cta.warps[i];
    const std::string name = "warp " + std::to_string(i) + " of the warpgroup";
    if (nth < other.registers.changes.size()) {
      const WarpRegisters::Change& theirs = other.registers.changes[nth];
      if (theirs.count != registers || theirs.where.line() != where.line() || theirs.where.column() != where.column())
        fail(Rule::registers, name + " ran another one, of " + std::to_string(theirs.count) + " registers");
    } else if (other.alive == 0) {
      fail(Rule::registers, name + " has exited without it");
    }
    if (!cta.grid.options.checks || nth == 0) continue;
    if (other.registers.changes.size() < nth ||
        !cta.order.ordered(w.agent, kAllLanes, other.registers.changes[nth - 1].at))
      fail(Rule::registers, name + " was not met since the last one");
  }
  w.registers.changes.push_back({where, registers, cta.order.now(w.agent, kAllLanes)});
}

Flow change_registers(Warp& w, uint32_t, void* const* operands) {
  const auto& o = *static_cast<const RegisterOperand*>(operands[0]);
  if (o.registers < 24 || o.registers > 256 || o.registers % 8 != 0)
    fail(Rule::registers, std::to_string(o.registers) + " registers are not 24 to 256, by 8");
  if (o.increase ? o.registers < w.registers.count : o.registers > w.registers.count)
    fail(Rule::registers, std::string(o.increase ? "inc" : "dec") + " to " + std::to_string(o.registers) +
                              " registers, the warp has " + std::to_string(w.registers.count));
  note_change(w, o.registers);
  if (!o.increase) {
    w.cta.free_registers.count += w.registers.count - o.registers;
    w.registers.count = o.registers;
    w.cta.free_registers.hand_out(w.cta.warps);
    return Flow::next;
  }
  w.registers.wanted = o.registers;
  w.cta.free_registers.hand_out(w.cta.warps);
  return w.registers.wanted == 0 ? Flow::next : Flow::sleep;
}

}  // namespace

Cluster::Cluster(Grid& grid, uint32_t first_cta)
    : grid(grid),
      order(grid.launch.cluster * (grid.launch.block / kLanes), grid.launch.cluster * kMbarriersMax),
      reads(grid.launch.cluster),
      dependents(grid.launch.cluster),
      open(order.view()),
      released(order.view()) {
  for (uint32_t rank = 0; rank < grid.launch.cluster; ++rank) ctas.emplace_back(*this, rank, first_cta + rank);
}

uint32_t Cluster::alive() const {
  uint32_t out = 0;
  for (const Cta& cta : ctas)
    out += static_cast<uint32_t>(
        std::count_if(cta.warps.begin(), cta.warps.end(), [](const Warp& w) { return w.alive != 0; }));
  return out;
}

void Cluster::try_complete() {
  if (arrived == 0 || arrived < alive()) return;
  MC_ASSERT_LE(arrived, order.warps());
  released = open;
  open = order.view();
  arrived = 0;
  ++generation;
  for (Cta& cta : ctas)
    for (Warp& warp : cta.warps) {
      if (!warp.waits_for_cluster) continue;
      acquire_generation(warp);
      warp.ready |= warp.alive;
    }
}

void check_register_changes(const Warp& warp) {
  const uint32_t first = warp.number / kGroupWarps * kGroupWarps;
  for (uint32_t i = first; i < std::min<size_t>(first + kGroupWarps, warp.cta.warps.size()); ++i) {
    const Warp& other = warp.cta.warps[i];
    if (other.registers.changes.size() <= warp.registers.changes.size()) continue;
    const WarpRegisters::Change& more = other.registers.changes[warp.registers.changes.size()];
    fail(Rule::registers, "the warp exits without the setmaxnreg at " + std::string(file_of(more.where)) + ":" +
                              std::to_string(more.where.line()) + " of warp " + std::to_string(i) +
                              " of its warpgroup");
  }
}

void FreeRegisters::hand_out(std::deque<Warp>& warps) {
  for (Warp& warp : warps) {
    MC_ASSERT(warp.registers.wanted == 0 || warp.registers.wanted >= warp.registers.count);
    if (warp.registers.wanted == 0 || warp.registers.wanted - warp.registers.count > count) continue;
    count -= warp.registers.wanted - warp.registers.count;
    warp.registers.count = warp.registers.wanted;
    warp.registers.wanted = 0;
    warp.ready |= warp.alive;
  }
}

void check_peer(Cta& cta) {
  if (cta.cluster.generation == 0)
    fail(Rule::cluster, "the first barrier of the cluster is not over, so the other CTA may not have started");
  if (cta.exited()) fail(Rule::cluster, "the other CTA has exited");
  cta.remote.push_back(cta.order.now(running_warp().agent, running().bit()));
}

/// The rank of another CTA, plus 1, stands in the highest byte; an address without one is the CTA's own.
Target resolve(uint32_t address) {
  Cta& own = running_cta();
  const uint32_t rank = address >> 24;
  if (rank == 0) return {own, address};
  if (rank > own.cluster.ctas.size())
    fail(Rule::cluster, "the address " + hex(address) + " names no CTA of the cluster");
  Cta& cta = own.cluster.ctas[rank - 1];
  if (&cta != &own) check_peer(cta);
  return {cta, address & 0xffffff};
}

uint32_t mapa(uint32_t address, uint32_t rank, const Where& where) {
  if (!begin(Instruction::mapa, where)) return address;
  rank = mutated(rank);
  if (rank >= running_cta().cluster.ctas.size()) fail(Rule::cluster, "the cluster has no CTA " + std::to_string(rank));
  return (rank + 1) << 24 | address;
}

void cluster_arrive(const Where& where) {
  if (begin(Instruction::cluster_arrive, where)) gather(0, true, nullptr, arrive_at_cluster);
}

void cluster_wait(const Where& where) {
  if (begin(Instruction::cluster_wait, where)) gather(0, true, nullptr, wait_for_cluster);
}

uint32_t load_cluster(uint32_t from, const Where& where) {
  if (!begin(Instruction::ld_shared, where)) return 0;
  const Target target = resolve(from);
  const std::byte* at = shared_bytes_of(target.cta, target.address, 4, 4);
  if (target.cta.grid.options.checks)
    if (const Conflict found = target.cta.shadow.touch(running_warp().agent, running().bit(), target.address, 4,
                                                       Access::read, Proxy::generic))
      fail(found);
  uint32_t value;
  std::memcpy(&value, at, 4);
  return value;
}

void store_cluster(uint32_t to, uint32_t value, const Where& where) {
  if (!begin(Instruction::st_shared, where)) return;
  const Target target = resolve(to);
  std::byte* at = shared_bytes_of(target.cta, target.address, 4, 4);
  if (target.cta.grid.options.checks)
    if (const Conflict found = target.cta.shadow.touch(running_warp().agent, running().bit(), target.address, 4,
                                                       Access::write, Proxy::generic))
      fail(found);
  std::memcpy(at, &value, 4);
}

void set_max_registers(uint32_t registers, bool increase, const Where& where) {
  if (!begin(increase ? Instruction::setmaxnreg_inc : Instruction::setmaxnreg_dec, where)) return;
  RegisterOperand o{mutated(registers), increase};
  gather(kAllLanes, false, &o, change_registers);
}

bool has_waited_for_grids() {
  const Cta& cta = running_cta();
  return std::any_of(cta.cluster.grid_waits.begin(), cta.cluster.grid_waits.end(),
                     [&](const Event& wait) { return cta.order.ordered(running_warp().agent, running().bit(), wait); });
}

/// The grid behind it may start; the emulator starts that one later in any case.
void grid_launch_dependents(const Where& where) {
  const Cta& cta = running_cta();
  if (begin(Instruction::griddep_launch, where) && !has_waited_for_grids())
    cta.cluster.dependents[cta.rank].early = true;
}

void grid_wait(const Where& where) {
  if (!begin(Instruction::griddep_wait, where)) return;
  const Cta& cta = running_cta();
  cta.cluster.dependents[cta.rank].waited = true;
  cta.cluster.grid_waits.push_back(cta.order.now(running_warp().agent, running().bit()));
}

}  // namespace mc::gpu::emu
