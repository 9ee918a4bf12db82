// The scheduler: CTAs one after another in an order that the seed draws, warps of a CTA by the policy.
#include <algorithm>
#include <numeric>

#include "base/assert.h"
#include "gpu/emu/machine.h"

namespace mc::gpu::emu {
namespace {

constexpr uint32_t kSharedMax = 232448;  // bytes of a CTA, compute capability 9.0

uint32_t special_value(const Cta& cta, const Launch& launch, uint32_t number, uint32_t thread) {
  const uint32_t values[] = {thread,
                             0,
                             0,
                             launch.block,
                             1,
                             1,
                             cta.id[0],
                             cta.id[1],
                             cta.id[2],
                             launch.grid[0],
                             launch.grid[1],
                             launch.grid[2],
                             thread % kLanes,
                             thread / kLanes};
  static_assert(std::size(values) == std::size(kSpecials));
  return values[number - 1];
}

}  // namespace

std::string_view to_string(Policy policy) {
  constexpr std::string_view kNames[] = {"in-order", "random", "sticky"};
  return kNames[static_cast<int>(policy)];
}

void Counters::add(const Counters& other) {
  instructions += other.instructions;
  matrix_products += other.matrix_products;
  async_bytes += other.async_bytes;
  barriers += other.barriers;
  bank_conflicts += other.bank_conflicts;
}

Warp::Warp(Cta& cta, uint32_t number) : cta(cta), number(number) {
  const Decoded& code = cta.grid.code;
  registers.assign(code.words, 0xffbadbadu);  // a NaN that no kernel computes
  predicates.assign(code.predicates, 0);
  strands.push_back({kAllLanes, 0});
  if (code.uses_wgmma) {
    written_at.assign(code.words / kLanes, 0);
    in_flight.assign(code.words / kLanes, 0);
  }
  for (const FixedRow& fixed : code.fixed)
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const uint64_t value =
          fixed.special == 0 ? fixed.value : special_value(cta, cta.grid.launch, fixed.special, number * kLanes + lane);
      if (fixed.wide)
        std::memcpy(&registers[fixed.row + 2 * lane], &value, 8);
      else
        registers[fixed.row + lane] = static_cast<uint32_t>(value);
    }
}

Flow Warp::fail(std::string_view rule, const std::string& text, uint32_t lanes) {
  Grid& grid = cta.grid;
  if (grid.report.failure) return Flow::block;
  const uint32_t pc = strands.empty() ? 0 : strands[std::min(current, strands.size() - 1)].pc;
  std::string said(rule);
  said += ": " + grid.code.place(pc) + ": " + text + "\n  kernel " + grid.code.kernel->name + ", CTA (" +
          std::to_string(cta.id[0]) + ", " + std::to_string(cta.id[1]) + ", " + std::to_string(cta.id[2]) + "), warp " +
          std::to_string(number) + ", lane " + std::to_string(lanes == 0 ? 0 : std::countr_zero(lanes)) + ", seed " +
          std::to_string(grid.options.seed) + ", policy " + std::string(to_string(grid.options.policy));
  grid.report.failure = Failure{std::string(rule), std::move(said)};
  return Flow::block;
}

Flow Warp::fail(const Conflict& conflict, uint32_t lanes) {
  std::string text(conflict.text);
  if (conflict.rule == "race" || conflict.rule == "proxy")
    text += conflict.agent < cta.warps.size() ? " by warp " + std::to_string(conflict.agent)
                                              : " by a bulk copy (its phase was not waited for)";
  return fail(conflict.rule, text + ", shared byte " + std::to_string(conflict.address), lanes);
}

bool Warp::runnable() const {
  return std::any_of(strands.begin(), strands.end(), [](const Strand& s) { return s.state == Strand::State::ready; });
}

void Warp::wake_blocked() {
  for (Strand& strand : strands)
    if (strand.state == Strand::State::blocked) strand.state = Strand::State::ready;
}

/// Strands at one instruction become one, which may be what a blocked one waits for.
void Warp::merge() {
  std::erase_if(strands, [](const Strand& s) { return s.mask == 0; });
  for (size_t i = 0; i < strands.size(); ++i)
    for (size_t k = strands.size(); k-- > i + 1;) {
      if (strands[k].pc != strands[i].pc || strands[i].state == Strand::State::waiting ||
          strands[k].state == Strand::State::waiting)
        continue;
      strands[i].mask |= strands[k].mask;
      strands[i].state = Strand::State::ready;
      strands.erase(strands.begin() + static_cast<std::ptrdiff_t>(k));
    }
}

/// Sets `current`: by the seed, or the strand that is furthest behind, so that strands meet again soon.
bool Warp::pick(bool shuffle) {
  size_t ready = 0, chosen = 0;
  for (size_t i = 0; i < strands.size(); ++i) {
    if (strands[i].state != Strand::State::ready) continue;
    ++ready;
    const bool better = shuffle ? cta.grid.rng.below(ready) == 0 : strands[i].pc < strands[chosen].pc;
    if (ready == 1 || better) chosen = i;
  }
  current = chosen;
  return ready > 0;
}

Flow Warp::step(const Op& op, Strand& strand) {
  uint32_t mask = strand.mask;
  if (op.guard >= 0) {
    const uint32_t bits = predicates[static_cast<size_t>(op.guard)];
    mask &= op.guard_negated ? ~bits : bits;
  }
  if (mask == 0) return Flow::next;
  // A collective of the whole warp waits for strands that are elsewhere.
  if (op.aligned && mask != alive) {
    if (mask != strand.mask) return fail("divergence", "the guard of a collective differs between lanes", mask);
    return Flow::block;
  }
  if (!grid().code.uses_wgmma) return op.run(*this, op, mask);
  for (uint32_t i = 0; i < op.row_count && !products.empty(); ++i)
    if (in_flight[op.rows[i]] != 0 && !op.is_product)
      return fail("accumulator", "a register of an unfinished wgmma is read or written before its wait", mask);
  const Flow flow = op.run(*this, op, mask);
  for (uint32_t i = 0; i < op.written_count && !op.is_product; ++i)
    written_at[op.rows[i]] = grid().report.counters.instructions;
  return flow;
}

Grid& Warp::grid() const {
  return cta.grid;
}

void Warp::run(uint32_t budget, bool shuffle) {
  Grid& grid = cta.grid;
  if (!pick(shuffle)) return;
  for (; budget > 0; --budget) {
    Strand& strand = strands[current];
    if (strand.pc >= grid.code.ops.size()) {
      fail("bounds", "runs past the end of the kernel", strand.mask);
      return;
    }
    if (++grid.report.counters.instructions > grid.options.steps_max) {
      fail("endless", "more than " + std::to_string(grid.options.steps_max) + " instructions", strand.mask);
      return;
    }
    const Flow flow = step(grid.code.ops[strand.pc], strand);
    if (grid.report.failure) return;
    Strand& after = strands[current];  // a branch may have moved the strands
    if (flow == Flow::next || flow == Flow::wait) ++after.pc;
    if (flow == Flow::block) after.state = Strand::State::blocked;
    if (flow == Flow::wait) after.state = Strand::State::waiting;
    if (strands.size() > 1 || after.mask == 0) merge();
    const bool moved = strands.size() != 1 || flow == Flow::block || flow == Flow::wait;
    if (moved && (exited() || !pick(shuffle))) return;
    if (!moved) current = 0;
  }
}

Cta::Cta(Grid& grid, uint32_t number)
    : grid(grid),
      number(number),
      shared(grid.shared_bytes, std::byte{0xff}),
      shadow(grid.shared_bytes, grid.launch.block / kLanes, grid.options.strict) {
  id[0] = number % grid.launch.grid[0];
  id[1] = number / grid.launch.grid[0] % grid.launch.grid[1];
  id[2] = number / grid.launch.grid[0] / grid.launch.grid[1];
  warps.reserve(grid.launch.block / kLanes);
  for (uint32_t i = 0; i < grid.launch.block / kLanes; ++i) warps.emplace_back(*this, i);
  for (size_t i = 0; i < warps.size(); ++i) priorities_.push_back(grid.rng.next());
  mood_ = static_cast<int>(grid.rng.below(3));
}

uint16_t Cta::tag() {
  const uint16_t out = next_tag;
  next_tag = next_tag + 1 == kBarrierTag ? 1 : static_cast<uint16_t>(next_tag + 1);
  return out;
}

/// The warp that runs next, or null.
Warp* Cta::pick() {
  Warp* chosen = nullptr;
  uint64_t ready = 0;
  if (grid.options.policy == Policy::sticky && grid.rng.below(16) == 0)
    priorities_[grid.rng.below(priorities_.size())] = grid.rng.next();
  for (uint32_t i = 0; i < warps.size(); ++i) {
    Warp& warp = warps[(turn_ + i) % warps.size()];
    if (!warp.runnable()) continue;
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

void Cta::run() {
  const Policy policy = grid.options.policy;
  while (!grid.report.failure) {
    if (std::all_of(warps.begin(), warps.end(), [](const Warp& w) { return w.exited(); })) {
      if (!bulk.empty()) warps[0].fail("exit", "the CTA exits before a bulk copy into it has ended", kAllLanes);
      return;
    }
    // Bulk copies end as early or as late as the seed wants, or when nothing else can run.
    if (!bulk.empty() && (mood_ == 0 || (mood_ == 1 && grid.rng.below(4) == 0)))
      complete_bulk(grid.rng.below(bulk.size()));
    Warp* warp = pick();
    if (warp == nullptr && !bulk.empty()) {
      complete_bulk(grid.rng.below(bulk.size()));
      continue;
    }
    if (warp == nullptr) return report_deadlock();
    const uint64_t budget = policy == Policy::random   ? 1 + grid.rng.below(8)
                            : policy == Policy::sticky ? 1 + grid.rng.below(64)
                                                       : UINT32_MAX;
    warp->run(static_cast<uint32_t>(budget), policy != Policy::in_order);
  }
}

void Cta::report_deadlock() {
  std::string text = "nothing can run;";
  for (Warp& warp : warps)
    for (const Strand& strand : warp.strands) {
      // A strand that waits in a barrier stands behind it.
      const uint32_t at = strand.state == Strand::State::waiting && strand.pc > 0 ? strand.pc - 1 : strand.pc;
      text += " warp " + std::to_string(warp.number) + " waits in " + grid.code.place(at) + ";";
    }
  for (Warp& warp : warps)
    if (!warp.exited()) {
      warp.fail("deadlock", text, warp.alive);
      return;
    }
}

Report run(const Program& program, DeviceMemory& memory, const Launch& launch, const Options& options) {
  const Decoded& code = program.code();
  Grid grid{.code = code, .memory = memory, .launch = launch, .options = options, .rng = Rng(options.seed)};
  grid.shared_bytes = code.dynamic_offset + launch.dynamic_shared;
  const auto refuse = [&](const std::string& text) {
    grid.report.failure = Failure{"launch", "launch: " + text + "\n  kernel " + code.kernel->name};
    return std::move(grid.report);
  };
  if (launch.block == 0 || launch.block % kLanes != 0 || launch.block > 1024)
    return refuse(std::to_string(launch.block) + " threads are not 32 to 1024, by 32");
  if (code.kernel->threads_max > 0 && launch.block > code.kernel->threads_max)
    return refuse(std::to_string(launch.block) + " threads, compiled for " + std::to_string(code.kernel->threads_max));
  if (grid.shared_bytes > kSharedMax) return refuse(std::to_string(grid.shared_bytes) + " bytes of shared memory");
  if (launch.params.size() != code.kernel->param_bytes)
    return refuse(std::to_string(launch.params.size()) + " bytes of parameters, the kernel takes " +
                  std::to_string(code.kernel->param_bytes));
  grid.params.assign(launch.params.begin(), launch.params.end());
  memory.start_grid();
  std::vector<uint32_t> order(static_cast<size_t>(launch.grid[0]) * launch.grid[1] * launch.grid[2]);
  std::iota(order.begin(), order.end(), 0u);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[grid.rng.below(i)]);
  for (const uint32_t number : order) {
    Cta cta(grid, number);
    cta.run();
    if (grid.report.failure) break;
  }
  return std::move(grid.report);
}

}  // namespace mc::gpu::emu
