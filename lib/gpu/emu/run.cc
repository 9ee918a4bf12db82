// The scheduler: CTAs one after another in an order that the seed draws, warps of a CTA by the policy, and what a lane
// does when it begins an instruction, waits, breaks a rule or exits.
#include <algorithm>
#include <numeric>

#include "base/assert.h"
#include "gpu/emu/machine.h"

namespace mc::gpu::emu {

thread_local constinit const Place* running_place = nullptr;
thread_local constinit Lane* running_lane = nullptr;

namespace {

constexpr uint32_t kSharedMax = 232448;  // bytes of a CTA, compute capability 9.0
constexpr uint32_t kAlignMax = 1024;     // of dynamic shared memory
constexpr uint32_t kClusterMax = 16;     // CTAs
constexpr uint32_t kResidentMax = 8;     // clusters that run at once, when one waits for another
constexpr uint32_t kRegisters = 65536;   // of a CTA
constexpr std::string_view kNames[] = {"nothing",
                                       "ld.global",
                                       "st.global",
                                       "atom.global",
                                       "ld.shared",
                                       "st.shared",
                                       "atom.shared",
                                       "cp.async",
                                       "cp.async.commit_group",
                                       "cp.async.wait_group",
                                       "bar.sync",
                                       "bar.arrive",
                                       "bar.warp.sync",
                                       "shfl.sync",
                                       "ldmatrix",
                                       "mma.sync",
                                       "mbarrier.init",
                                       "fence.mbarrier_init",
                                       "mbarrier.arrive",
                                       "mbarrier.arrive.expect_tx",
                                       "mbarrier.try_wait",
                                       "fence.proxy.async",
                                       "cp.async.bulk.tensor",
                                       "wgmma.fence",
                                       "wgmma.mma_async",
                                       "wgmma.commit_group",
                                       "wgmma.wait_group",
                                       "cvt",
                                       "max",
                                       "add",
                                       "ld.acquire",
                                       "st.release",
                                       "fence.acq_rel.gpu",
                                       "nanosleep",
                                       "cp.async.bulk.tensor (store)",
                                       "cp.reduce.async.bulk.tensor",
                                       "cp.async.bulk.commit_group",
                                       "cp.async.bulk.wait_group",
                                       "cp.async.mbarrier.arrive.noinc",
                                       "cp.async.mbarrier.arrive",
                                       "stmatrix",
                                       "vote.ballot",
                                       "mapa",
                                       "barrier.cluster.arrive",
                                       "barrier.cluster.wait",
                                       "setmaxnreg.inc",
                                       "setmaxnreg.dec",
                                       "griddepcontrol.launch_dependents",
                                       "griddepcontrol.wait",
                                       "exit"};
static_assert(std::size(kNames) == static_cast<size_t>(Instruction::exit) + 1);

/// Thrown by the lane that broke a rule, so that its own frames are left in order. The other lanes are dropped.
struct Stopped {};

/// The running lane gives the processor to another one of its warp, or to the scheduler.
void leave(bool to_scheduler) {
  Lane& self = *running_lane;
  Warp& warp = *self.warp;
  Grid& grid = warp.cta.grid;
  ++grid.report.counters.switches;
  if (to_scheduler || warp.ready == 0 || grid.report.failure) {
    Fiber::swap(self.fiber, grid.scheduler);
  } else {
    Lane& next = warp.next_lane();
    MC_ASSERT(&next != &self);
    next.prepare();
    running_lane = &next;
    running_place = &next.place;
    Fiber::swap(self.fiber, next.fiber);
  }
  running_lane = &self;
  running_place = &self.place;
}

/// Gives the operands of the lanes to the collective that they wait in.
void run_collective(Warp& warp, uint32_t lanes, Collective collective) {
  MC_ASSERT_EQ(lanes & ~warp.arrived, 0u);
  void* operands[kLanes] = {};
  for_lanes(lanes, [&](uint32_t i) { operands[i] = warp.lanes[i].operand; });
  warp.arrived &= ~lanes;
  if (collective(warp, lanes, operands) == Flow::next)
    warp.ready |= lanes;
  else
    warp.ready &= ~lanes;
  if (lanes == warp.alive) for_lanes(lanes, [&](uint32_t i) { warp.lanes[i].way = 0; });
}

uint64_t lengthen(uint64_t way, Instruction instruction, const Where& where) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio
  return (way ^ (uint64_t{where.line()} << 32 | where.column() << 8 | static_cast<uint64_t>(instruction))) * kOdd + 1;
}

void check_exit(Lane& lane) {
  Warp& warp = *lane.warp;
  if (warp.cta.grid.options.checks)
    for (const AsyncCopy& copy : warp.copies[lane.number])
      if (copy.arrival == 0) fail(Rule::exit, "a lane exits with a cp.async that it has not waited for");
  if (!warp.wgmma.products.empty()) fail(Rule::exit, "a warp exits before the wait of a wgmma");
  finish_stores(lane);
  if (warp.cluster_arrived && warp.cluster_generation == warp.cta.cluster.generation)
    fail(Rule::exit, "a lane exits between its arrival at the cluster's barrier and the wait");
  for (const Event& access : warp.cta.remote)
    if (warp.cta.grid.options.checks && !warp.cta.order.ordered(warp.agent, lane.bit(), access))
      fail(Rule::exit, "the CTA exits, and an access of its cluster to its shared memory is not ordered before");
  warp.alive &= ~lane.bit();
  warp.ready &= ~lane.bit();
  if (warp.alive == 0) {
    count_left_rounds(lane);
    check_register_changes(warp);
    warp.cta.cluster.try_complete();
    const Cta& cta = warp.cta;
    const Dependents& dependents = cta.cluster.dependents[cta.rank];
    if (cta.exited() && dependents.waited && !dependents.early) cta.grid.memory.note_wait();
  }
  if (warp.arrived == 0) return;
  const Lane& waiting = warp.lanes[static_cast<size_t>(std::countr_zero(warp.arrived))];
  if (waiting.of_alive) {
    if (warp.arrived == warp.alive) run_collective(warp, warp.arrived, waiting.collective);
  } else if ((waiting.members & lane.bit()) != 0) {
    fail(Rule::divergence, "the lane exits, and others wait for it in " + place_of(waiting.instruction, waiting.where));
  }
}

/// The life of a lane.
void live(void* argument) {
  Lane& lane = *static_cast<Lane*>(argument);
  Grid& grid = lane.warp->cta.grid;
  try {
    grid.kernel.enter(grid.param_start);
    lane.instruction = Instruction::exit;
    check_exit(lane);
    Stacks::of_thread().leave(std::exchange(lane.stack, nullptr));
  } catch (const Stopped&) {
    lane.warp->ready = 0;
  }
  leave(false);
  MC_ASSERT(false);  // nobody wakes a lane that has exited
}

Site site_of(Instruction instruction, const Where& where) {
  // "void mc::gpu::load_tile(const KvPool&, ...) [with int kDim = 64]" is called load_tile
  std::string_view function = where.function_name();
  function = function.substr(0, function.find('('));
  const size_t name = function.find_last_of(": ");
  if (name != std::string_view::npos) function.remove_prefix(name + 1);
  return {instruction, std::string(file_of(where)), std::string(function), where.line(), where.column()};
}

void note_site(Grid& grid, Instruction instruction, const Where& where) {
  if (grid.options.sites != nullptr &&
      grid.noted.emplace(where.file_name(), where.line(), where.column(), instruction).second)
    grid.options.sites->push_back(site_of(instruction, where));
}

bool matches_mutation(Instruction instruction, const Where& where) {
  const Mutation* mutation = running_cta().grid.options.mutation;
  if (mutation == nullptr || mutation->site.instruction != instruction || mutation->site.line != where.line() ||
      mutation->site.column != where.column())
    return false;
  return mutation->site.file == file_of(where);
}

/// Notes the call, and says whether the mutation leaves it out.
bool watch(const Lane& lane) {
  Grid& grid = lane.warp->cta.grid;
  const Options& options = grid.options;
  note_site(grid, lane.instruction, lane.where);
  if (!matches_mutation(lane.instruction, lane.where)) return true;
  switch (options.mutation->edit) {
    case Mutation::Edit::skip: return false;
    case Mutation::Edit::skip_lane: return lane.number != 3;
    case Mutation::Edit::skip_warp: return lane.warp->number != 0;
    default: return true;
  }
}

}  // namespace

std::string_view to_string(Policy policy) {
  constexpr std::string_view kPolicyNames[] = {"in-order", "random", "sticky"};
  return kPolicyNames[static_cast<int>(policy)];
}

std::string_view to_string(Instruction instruction) {
  return kNames[static_cast<size_t>(instruction)];
}

void Counters::add(const Counters& other) {
  instructions += other.instructions;
  switches += other.switches;
  matrix_products += other.matrix_products;
  multiply_adds += other.multiply_adds;
  async_bytes += other.async_bytes;
  stored_bytes += other.stored_bytes;
  barriers += other.barriers;
  bank_conflicts += other.bank_conflicts;
}

std::string_view file_of(const Where& where) {
  const std::string_view path = where.file_name();
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

std::string place_of(Instruction instruction, const Where& where) {
  std::string out(to_string(instruction));
  if (instruction == Instruction::exit) return out;
  return out + " at " + std::string(file_of(where)) + ":" + std::to_string(where.line());
}

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

void fail(Rule rule, const std::string& text, int lane) {
  const Lane& self = running();
  Cta& cta = running_cta();
  Grid& grid = cta.grid;
  MC_ASSERT(!grid.report.failure);
  std::string said(to_string(rule));
  said += ": " + place_of(self.instruction, self.where) + ": " + text + "\n  kernel " + std::string(grid.kernel.name) +
          ", CTA (" + std::to_string(cta.id[0]) + ", " + std::to_string(cta.id[1]) + ", " + std::to_string(cta.id[2]) +
          "), warp " + std::to_string(self.warp->number) + ", lane " +
          std::to_string(lane < 0 ? self.number : static_cast<uint32_t>(lane)) + ", seed " +
          std::to_string(grid.options.seed) + ", policy " + std::string(to_string(grid.options.policy));
  grid.report.failure = Failure{rule, std::move(said)};
  throw Stopped{};
}

/// The agent of an earlier access, in words.
std::string writer_of(uint32_t agent) {
  const Cta& cta = running_cta();
  if (agent < cta.order.warps()) return " by warp " + std::to_string(agent % cta.warps.size());
  const bool is_tracked = agent >= cta.order.copy_agent(0);
  return std::string(" by a ") + (is_tracked ? "cp.async" : "bulk copy") + " (its phase was not waited for)";
}

void fail(const Conflict& conflict, int lane) {
  std::string text(conflict.text);
  if (conflict.agent != Conflict::kNobody) text += writer_of(conflict.agent);
  MC_ASSERT(conflict.rule.has_value());
  fail(*conflict.rule, text + ", shared byte " + std::to_string(conflict.address), lane);
}

namespace {

// Texts are made apart from the functions that every instruction passes, which need no frame then.
[[noreturn, gnu::cold, gnu::noinline]] void fail_endless(uint64_t most) {
  fail(Rule::endless, "more than " + std::to_string(most) + " instructions");
}

[[noreturn, gnu::cold, gnu::noinline]] void fail_members(uint32_t members) {
  const Lane& lane = running();
  if ((members & lane.bit()) == 0) fail(Rule::divergence, "a lane runs a collective whose mask does not name it");
  fail(Rule::divergence, "the collective needs a lane that has exited", std::countr_zero(members & ~lane.warp->alive));
}

[[noreturn, gnu::cold, gnu::noinline]] void fail_other(const Lane& other) {
  fail(Rule::divergence,
       "lane " + std::to_string(other.number) + " of the warp is in " + place_of(other.instruction, other.where));
}

}  // namespace

bool begin(Instruction instruction, const Where& where) {
  Lane& lane = *running_lane;
  Warp& warp = *lane.warp;
  Grid& grid = warp.cta.grid;
  lane.instruction = instruction;
  lane.where = where;
  lane.way = lengthen(lane.way, instruction, where);
  if (++grid.report.counters.instructions > grid.options.steps_max) [[unlikely]]
    fail_endless(grid.options.steps_max);
  if (warp.budget == 0) {
    leave(true);
  } else {
    --warp.budget;
  }
  return !lane.watched || watch(lane);
}

bool watch_arithmetic(Instruction instruction, const Where& where) {
  note_site(running_cta().grid, instruction, where);
  return !matches_mutation(instruction, where);
}

uint32_t mutated(uint32_t argument) {
  const Lane& lane = running();
  if (!lane.place.watched || !matches_mutation(lane.instruction, lane.where)) return argument;
  const Mutation& mutation = *lane.warp->cta.grid.options.mutation;
  switch (mutation.edit) {
    case Mutation::Edit::argument: return mutation.argument;
    case Mutation::Edit::doubled: return argument * 2;
    case Mutation::Edit::halved: return argument / 2;
    default: return argument;
  }
}

bool mutation_transposes() {
  const Lane& lane = running();
  return lane.place.watched && matches_mutation(lane.instruction, lane.where) &&
         lane.warp->cta.grid.options.mutation->edit == Mutation::Edit::transposed;
}

void block() {
  Warp& warp = running_warp();
  MC_ASSERT((warp.ready & running().bit()) != 0);
  warp.ready &= ~running().bit();
  leave(false);
}

void gather(uint32_t members, bool of_alive, void* operand, Collective collective) {
  Lane& lane = running();
  Warp& warp = *lane.warp;
  MC_ASSERT_EQ(warp.arrived & lane.bit(), 0u);
  if (of_alive) members = warp.alive;
  if ((members & lane.bit()) == 0 || (members & ~warp.alive) != 0) [[unlikely]]
    fail_members(members);
  lane.members = members;
  lane.of_alive = of_alive;
  lane.operand = operand;
  lane.collective = collective;
  if (const uint32_t others = warp.arrived & members; others != 0) {
    const Lane& other = warp.lanes[static_cast<size_t>(std::countr_zero(others))];
    if (other.instruction != lane.instruction || other.where.line() != lane.where.line() ||
        other.where.column() != lane.where.column() || (!of_alive && other.members != members)) [[unlikely]]
      fail_other(other);
  }
  warp.arrived |= lane.bit();
  if ((warp.arrived & members) == members) {
    run_collective(warp, members, collective);
    if ((warp.ready & lane.bit()) == 0) leave(false);
    return;
  }
  block();
}

/// A lane that exits at once gives its stack to the next one but one, which finds it in the cache.
void Lane::take_stack() {
  stack = Stacks::of_thread().take();
  fiber.start(stack, Stacks::bytes(), place.thread, live, this);
}

Warp::Warp(Cta& cta, uint32_t number)
    : cta(cta), number(number), agent(cta.rank * (cta.grid.launch.block / kLanes) + number) {
  for (uint32_t i = 0; i < kLanes; ++i) {
    Lane& lane = lanes[i];
    lane.warp = this;
    lane.number = i;
    lane.place.thread = number * kLanes + i;
    std::copy(std::begin(cta.id), std::end(cta.id), lane.place.cta);
    lane.place.rank = cta.rank;
    lane.place.fault = cta.grid.options.fault;
    lane.watched = lane.place.watched = cta.grid.options.mutation != nullptr || cta.grid.options.sites != nullptr;
  }
}

Warp::~Warp() {
  for (const Lane& lane : lanes)
    if (lane.stack != nullptr) Stacks::of_thread().give(lane.stack);
}

Cta::Cta(Cluster& cluster, uint32_t rank, uint32_t number)
    : cluster(cluster),
      grid(cluster.grid),
      rank(rank),
      number(number),
      id{number % grid.launch.grid[0], number / grid.launch.grid[0] % grid.launch.grid[1],
         number / grid.launch.grid[0] / grid.launch.grid[1]},
      shared(grid.launch.dynamic_shared + kAlignMax, std::byte{0xff}),
      order(cluster.order),
      shadow(order, static_cast<uint32_t>(shared.size()), grid.options.strict) {
  const uint32_t count = grid.launch.block / kLanes;
  MC_ASSERT_LT(rank, grid.launch.cluster);
  // The registers that the launch gives each thread: what fits, by 8, and at most 255 of them usable. The pool of
  // setmaxnreg is what the launch gave to the CTA (9.7.19.5): none of it is free before a warp gives some back.
  const uint32_t each = std::min(kRegisters / grid.launch.block / 8 * 8, 256u);
  for (uint32_t i = 0; i < count; ++i) {
    warps.emplace_back(*this, i);
    warps.back().registers.count = each;
    priorities_.push_back(grid.rng.next());
  }
  mood_ = static_cast<int>(grid.rng.below(3));
}

bool Cta::exited() const {
  return std::all_of(warps.begin(), warps.end(), [](const Warp& w) { return w.alive == 0; });
}

/// The warp that runs next, or null.
Warp* Cta::pick() {
  Warp* chosen = nullptr;
  uint64_t ready = 0;
  if (grid.options.policy == Policy::sticky && grid.rng.below(16) == 0)
    priorities_[grid.rng.below(priorities_.size())] = grid.rng.next();
  for (uint32_t i = 0; i < warps.size(); ++i) {
    Warp& warp = warps[(turn_ + i) % warps.size()];
    if (warp.ready == 0) continue;
    ++ready;
    bool better = chosen == nullptr;
    if (grid.options.policy == Policy::random) better = grid.rng.below(ready) == 0;
    if (grid.options.policy == Policy::sticky)
      better = better || priorities_[warp.number] > priorities_[chosen->number];
    if (better) chosen = &warp;
  }
  if (chosen != nullptr) turn_ = chosen->number + 1;
  return chosen;
}

void Cta::run_warp(Warp& warp) {
  const Policy policy = grid.options.policy;
  warp.budget = policy == Policy::random   ? static_cast<uint32_t>(1 + grid.rng.below(8 * kLanes))
                : policy == Policy::sticky ? static_cast<uint32_t>(1 + grid.rng.below(64 * kLanes))
                                           : UINT32_MAX;
  warp.first_lane = policy == Policy::in_order ? 0 : static_cast<uint32_t>(grid.rng.below(kLanes));
  MC_ASSERT(running_lane == nullptr && warp.ready != 0);
  Lane& lane = warp.next_lane();
  lane.prepare();
  running_lane = &lane;
  running_place = &lane.place;
  ++grid.report.counters.switches;
  Fiber::swap(grid.scheduler, lane.fiber);
  running_lane = nullptr;
  running_place = nullptr;
}

Cta::Step Cta::step() {
  const bool all_exited = exited();
  if (all_exited && bulk.open() == 0) return Step::over;
  if (all_exited) return Step::stuck;
  // Bulk copies and tracked ones end as early or as late as the seed wants, or when nothing else can run.
  if (bulk.open() > 0 && (mood_ == 0 || (mood_ == 1 && grid.rng.below(4) == 0)))
    bulk.complete(grid.rng.below(bulk.open()));
  if (Warp* warp = pick(); warp != nullptr) {
    run_warp(*warp);
    return Step::moved;
  }
  if (bulk.open() == 0) return Step::stuck;
  bulk.complete(grid.rng.below(bulk.open()));
  return Step::moved;
}

/// Nothing can run: a deadlock, or a copy that nobody waited for.
void Cta::report_deadlock() {
  const bool over = exited();
  const auto first = std::find_if(warps.begin(), warps.end(), [](const Warp& w) { return w.alive != 0; });
  std::string text = "nothing can run;";
  for (const Warp& warp : warps) {
    std::vector<std::string> places;
    for_lanes(warp.alive, [&](uint32_t i) {
      std::string place = place_of(warp.lanes[i].instruction, warp.lanes[i].where);
      if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(std::move(place));
    });
    for (const std::string& place : places) text += " warp " + std::to_string(warp.number) + " waits in " + place + ";";
  }
  Warp& of = over ? warps.front() : *first;
  running_lane = &of.lanes[static_cast<size_t>(over ? 0 : std::countr_zero(of.alive))];
  try {
    if (over) fail(Rule::exit, "the CTA exits before a copy into it has ended that an mbarrier tracks");
    fail(Rule::deadlock, text);
  } catch (const Stopped&) {
    running_lane = nullptr;
  }
}

namespace {

/// Clusters one after another in an order that the seed draws. When one waits for another by a flag in global memory,
/// the next one starts beside it.
void run_clusters(Grid& grid) {
  const Launch& launch = grid.launch;
  std::vector<uint32_t> order(static_cast<size_t>(launch.grid[0]) * launch.grid[1] * launch.grid[2] / launch.cluster);
  std::iota(order.begin(), order.end(), 0u);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[grid.rng.below(i)]);
  std::deque<std::unique_ptr<Cluster>> resident;
  const auto start = [&] {
    resident.push_back(std::make_unique<Cluster>(grid, order.back() * launch.cluster));
    order.pop_back();
  };
  while (!grid.report.failure && (!resident.empty() || !order.empty())) {
    if (resident.empty()) start();
    Cta* stuck = nullptr;
    bool moved = false, spins = false;
    for (size_t c = 0; c < resident.size() && !grid.report.failure; ++c) {
      bool over = true;
      for (Cta& cta : resident[c]->ctas) {
        if (grid.report.failure) break;
        const Cta::Step step = cta.step();
        over = over && step == Cta::Step::over;
        moved = moved || step == Cta::Step::moved;
        if (step == Cta::Step::stuck) stuck = &cta;
        spins = spins || std::exchange(cta.spins, false);
      }
      if (!over || grid.report.failure) continue;
      resident.erase(resident.begin() + static_cast<std::ptrdiff_t>(c--));
      moved = true;
    }
    if (spins && resident.size() < kResidentMax && !order.empty()) start();
    if (!moved && stuck != nullptr && !grid.report.failure) stuck->report_deadlock();
  }
}

}  // namespace

Report run(const Kernel& kernel, DeviceMemory& memory, const Launch& launch, const Options& options) {
  Grid grid{.kernel = kernel, .memory = memory, .launch = launch, .options = options, .rng = Rng(options.seed)};
  const auto refuse = [&](const std::string& text) {
    grid.report.failure = Failure{Rule::launch, "launch: " + text + "\n  kernel " + std::string(kernel.name)};
    return std::move(grid.report);
  };
  if (launch.block == 0 || launch.block % kLanes != 0 || launch.block > 1024)
    return refuse(std::to_string(launch.block) + " threads are not 32 to 1024, by 32");
  if (launch.block > kernel.threads_max)
    return refuse(std::to_string(launch.block) + " threads, compiled for " + std::to_string(kernel.threads_max));
  if (launch.dynamic_shared > kSharedMax)
    return refuse(std::to_string(launch.dynamic_shared) + " bytes of shared memory, a CTA has " +
                  std::to_string(kSharedMax));
  if (launch.cluster < 1 || launch.cluster > kClusterMax || launch.grid[0] % launch.cluster != 0 ||
      launch.cluster * (launch.block / kLanes) > kWarpsMax)
    return refuse("clusters of " + std::to_string(launch.cluster) + " CTAs of " + std::to_string(launch.block) +
                  " threads: the grid is a multiple of a cluster, of at most 16 CTAs and 64 warps");
  if (launch.params.size() != kernel.param_bytes)
    return refuse(std::to_string(launch.params.size()) + " bytes of parameters, the kernel takes " +
                  std::to_string(kernel.param_bytes));
  constexpr size_t kParamAlign = 128;
  grid.params.resize(launch.params.size() + kParamAlign);
  const size_t skew = kParamAlign - reinterpret_cast<uintptr_t>(grid.params.data()) % kParamAlign;
  std::copy(launch.params.begin(), launch.params.end(), grid.params.begin() + static_cast<std::ptrdiff_t>(skew));
  grid.param_start = grid.params.data() + skew;
  memory.start_grid(launch.programmatic);
  run_clusters(grid);
  return std::move(grid.report);
}

}  // namespace mc::gpu::emu
