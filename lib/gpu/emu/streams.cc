#include "gpu/emu/streams.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"

namespace mc::gpu::emu {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

std::string_view name_of(const StreamWork& work) {
  return std::visit(
      Overloaded{[](const CopyIn&) { return std::string_view("copy to the device"); },
                 [](const CopyOut&) { return std::string_view("copy from the device"); },
                 [](const CopyWithin&) { return std::string_view("copy on the device"); },
                 [](const FillBytes&) { return std::string_view("fill"); },
                 [](const KernelLaunch& l) { return l.kernel->name; }, [](const LibraryCall& c) { return c.name; }},
      work);
}

size_t bytes_of_work(const StreamWork& work) {
  return std::visit(
      Overloaded{[](const KernelLaunch&) { return size_t{0}; }, [](const LibraryCall&) { return size_t{0}; },
                 [](const auto& copy) { return copy.bytes; }},
      work);
}

}  // namespace

bool StreamQueues::covers(const Known& known, uint32_t stream, uint64_t number) {
  return stream < known.size() && known[stream] >= number;
}

void StreamQueues::join(Known& into, const Known& from) {
  into.resize(std::max(into.size(), from.size()));
  for (size_t s = 0; s < from.size(); ++s) into[s] = std::max(into[s], from[s]);
}

void StreamQueues::learn(Known& known, uint32_t stream, uint64_t number) {
  known.resize(std::max<size_t>(known.size(), stream + size_t{1}));
  MC_ASSERT_LE(known[stream], number);
  known[stream] = number;
}

void StreamQueues::reset(const Options& options) {
  options_ = options;
  rng_ = Rng(options.seed).fork("streams");
  failure_.reset();
  running_ = nullptr;
  host_ranges_.clear();
  for (EventState& event : events_) event.reached = event.recorded;
  for (uint32_t s = 0; s < queues_.size(); ++s) {
    queues_[s].waiting.clear();
    queues_[s].priority = rng_.next();
    learn(host_, s, queues_[s].count);
  }
}

uint32_t StreamQueues::make_stream() {
  queues_.push_back({.priority = rng_.next()});
  return static_cast<uint32_t>(queues_.size() - 1);
}

uint32_t StreamQueues::make_event() {
  events_.emplace_back();
  return static_cast<uint32_t>(events_.size() - 1);
}

// ---- the host's calls ----

void StreamQueues::push(uint32_t stream, Operation operation) {
  MC_ASSERT_LT(stream, queues_.size());
  Queue& queue = queues_[stream];
  join(queue.known, host_);
  operation.number = ++queue.count;
  operation.queued = ++queued_;
  operation.before = queue.known;
  learn(queue.known, stream, queue.count);
  queue.waiting.push_back(std::move(operation));
}

void StreamQueues::submit(uint32_t stream, StreamWork work) {
  if (failure_) return;
  const std::string_view what = name_of(work);
  push(stream, {.work = std::move(work)});
  const Operation& queued = queues_[stream].waiting.back();
  const Stamp by{stream, queued.number, what};
  const StreamWork& of = std::get<StreamWork>(queued.work);
  if (const auto* in = std::get_if<CopyIn>(&of)) own_host(in->from, in->bytes, false, queued.before, by);
  if (const auto* out = std::get_if<CopyOut>(&of)) own_host(out->to, out->bytes, true, queued.before, by);
  go_on();
}

void StreamQueues::record(uint32_t stream, uint32_t event) {
  if (failure_) return;
  EventState& state = events_.at(event);
  push(stream, {.work = Signal{event, ++state.recorded}});
  state.known = queues_[stream].known;
  go_on();
}

/// An event that was never recorded holds nothing back (cuStreamWaitEvent).
void StreamQueues::wait(uint32_t stream, uint32_t event) {
  if (failure_) return;
  const EventState& state = events_.at(event);
  if (state.recorded == 0) return;
  push(stream, {.work = Signal{event, state.recorded}, .waits = true});
  join(queues_[stream].known, state.known);
  go_on();
}

void StreamQueues::finish(uint32_t stream) {
  Queue& queue = queues_.at(stream);
  while (!failure_ && !queue.waiting.empty()) MC_ASSERT(step());
  if (failure_) return;
  join(host_, queue.known);
  std::erase_if(host_ranges_, [&](const HostRange& r) { return covers(host_, r.by.stream, r.by.number); });
}

void StreamQueues::finish_event(uint32_t event) {
  const EventState& state = events_.at(event);
  while (!failure_ && state.reached < state.recorded) MC_ASSERT(step());
  if (failure_) return;
  join(host_, state.known);
  std::erase_if(host_ranges_, [&](const HostRange& r) { return covers(host_, r.by.stream, r.by.number); });
}

void StreamQueues::finish_all() {
  for (uint32_t s = 0; s < queues_.size(); ++s) finish(s);
}

bool StreamQueues::run_to(uint32_t stream, uint64_t number) {
  const Queue& queue = queues_.at(stream);
  while (!failure_ && queue.count - queue.waiting.size() < number)
    if (queue.count < number || !step()) return false;
  return !failure_;
}

void StreamQueues::touch_host(const std::byte* at, size_t bytes) {
  for (const HostRange& range : host_ranges_)
    if (!failure_ && at < range.end && range.begin < at + bytes)
      fail("the host touches page-locked bytes that the " + std::string(range.by.what) + " (operation " +
           std::to_string(range.by.number) + " of stream " + std::to_string(range.by.stream) +
           ") owns until the host has waited for it");
}

/// A copy has its page-locked bytes from its submission on.
void StreamQueues::own_host(const std::byte* at, size_t bytes, bool writes, const Known& before, const Stamp& by) {
  for (const HostRange& range : host_ranges_) {
    const bool overlaps = at < range.end && range.begin < at + bytes;
    if (!overlaps || failure_ || !(writes || range.writes) || covers(before, range.by.stream, range.by.number))
      continue;
    fail("the " + std::string(by.what) + " (operation " + std::to_string(by.number) + " of stream " +
         std::to_string(by.stream) + ") and the " + std::string(range.by.what) + " (operation " +
         std::to_string(range.by.number) + " of stream " + std::to_string(range.by.stream) +
         ") touch the same page-locked bytes, and no event orders the two");
  }
  if (bytes > 0) host_ranges_.push_back({at, at + bytes, writes, by});
}

// ---- what runs ----

void StreamQueues::go_on() {
  if (options_.policy == Policy::sticky) return;
  const uint64_t steps = options_.policy == Policy::in_order ? UINT64_MAX : rng_.below(4);
  for (uint64_t i = 0; i < steps && !failure_; ++i)
    if (!step()) return;
}

bool StreamQueues::can_run(const Queue& queue) const {
  if (queue.waiting.empty()) return false;
  const Operation& first = queue.waiting.front();
  const auto* signal = std::get_if<Signal>(&first.work);
  return signal == nullptr || !first.waits || events_[signal->event].reached >= signal->time;
}

bool StreamQueues::step() {
  if (options_.policy == Policy::sticky && !queues_.empty() && rng_.below(16) == 0)
    queues_[rng_.below(queues_.size())].priority = rng_.next();
  std::optional<uint32_t> chosen;
  uint64_t ready = 0;
  for (uint32_t s = 0; s < queues_.size(); ++s) {
    if (!can_run(queues_[s])) continue;
    ++ready;
    bool better = !chosen;
    if (!better && options_.policy == Policy::in_order)
      better = queues_[s].waiting.front().queued < queues_[*chosen].waiting.front().queued;
    if (options_.policy == Policy::random) better = rng_.below(ready) == 0;
    if (!better && options_.policy == Policy::sticky) better = queues_[s].priority > queues_[*chosen].priority;
    if (better) chosen = s;
  }
  if (!chosen) return false;
  run(*chosen);
  return true;
}

void StreamQueues::run(uint32_t stream) {
  Queue& queue = queues_[stream];
  Operation& first = queue.waiting.front();
  if (const auto* signal = std::get_if<Signal>(&first.work)) {
    EventState& event = events_[signal->event];
    if (!first.waits) event.reached = std::max(event.reached, signal->time);
    queue.waiting.pop_front();
    return;
  }
  const StreamWork& work = std::get<StreamWork>(first.work);
  running_ = &first;
  run_work(stream, first, work);
  running_ = nullptr;
  if (!failure_ && first.done >= bytes_of_work(work)) queue.waiting.pop_front();
}

/// All of a launch, or a piece of a copy.
void StreamQueues::run_work(uint32_t stream, Operation& operation, const StreamWork& work) {
  const auto* launch = std::get_if<KernelLaunch>(&work);
  if (operation.grid == 0) {
    ++begun_;
    operation.grid = launch != nullptr ? memory_.grid() + 1 : memory_.start_copy();
    stamps_.resize(std::max<size_t>(stamps_.size(), operation.grid + size_t{1}));
    stamps_[operation.grid] = {stream, operation.number, name_of(work)};
  }
  if (launch != nullptr) {
    failure_ = run_kernel_(*launch);
    return;
  }
  if (const auto* call = std::get_if<LibraryCall>(&work)) return run_library(*call, operation.grid);
  const size_t left = bytes_of_work(work) - operation.done;
  const size_t piece = options_.policy == Policy::in_order || left < 2 || rng_.chance(0.5)
                           ? left
                           : static_cast<size_t>(1 + rng_.below(left));
  if (piece > 0) move_bytes(work, operation.done, piece, operation.grid);
  operation.done += piece;
}

/// The ranges that are read come first: a product may write where it reads.
void StreamQueues::run_library(const LibraryCall& call, uint32_t grid) {
  for (const bool writes : {false, true})
    for (const LibraryCall::Range& range : call.ranges) {
      if (range.writes != writes || range.end() == 0) continue;
      const DeviceMemory::Block* block = memory_.find(range.address, range.end());
      if (block == nullptr)  // a graph may outlive the memory that it uses
        return stop(Rule::bounds,
                    std::string(call.name) + ": " + std::string(range.what) + " is not in one allocation");
      for (size_t i = 0; i < range.count; ++i) {
        const size_t at = range.address - block->address + i * range.stride;
        const size_t first = writes ? at + range.bytes : DeviceMemory::first_undefined(*block, at, range.bytes);
        if (first < at + range.bytes && options_.checks)
          return stop(Rule::uninitialised, std::string(call.name) + ": byte " + std::to_string(first) + " of '" +
                                               block->name + "', which is " + std::string(range.what) +
                                               ", was never written");
        if (touch(range.address + i * range.stride, range.bytes, writes, grid) == nullptr) return;
      }
    }
  call.compute(memory_);
}

void StreamQueues::move_bytes(const StreamWork& work, size_t from, size_t bytes, uint32_t grid) {
  if (const auto* in = std::get_if<CopyIn>(&work)) {
    if (std::byte* to = touch(in->to + from, bytes, true, grid); to != nullptr) std::memcpy(to, in->from + from, bytes);
  } else if (const auto* out = std::get_if<CopyOut>(&work)) {
    const std::byte* at = touch(out->from + from, bytes, false, grid);
    if (at != nullptr) std::memcpy(out->to + from, at, bytes);
  } else if (const auto* fill = std::get_if<FillBytes>(&work)) {
    std::byte* to = touch(fill->to + from, bytes, true, grid);
    if (to != nullptr) std::memset(to, static_cast<int>(fill->value), bytes);
  } else if (const auto* within = std::get_if<CopyWithin>(&work)) {
    const std::byte* at = touch(within->from + from, bytes, false, grid);
    std::byte* to = at != nullptr ? touch(within->to + from, bytes, true, grid) : nullptr;
    if (to != nullptr) std::memmove(to, at, bytes);
  }
}

std::byte* StreamQueues::touch(uint64_t address, size_t bytes, bool writes, uint32_t grid) {
  DeviceMemory::Block* block = memory_.find(address, bytes);
  MC_ASSERT(block != nullptr);  // checked when it was queued; freeing waits for the queues
  const size_t at = address - block->address;
  // The grids of the last word that was checked: its neighbours have mostly the same ones.
  uint32_t checked_write = UINT32_MAX, checked_read = UINT32_MAX;
  for (size_t word = at / 4; word * 4 < at + bytes; ++word) {
    const uint32_t written = block->last_write[word], read = block->reader[word].grid;
    if (written == checked_write && read == checked_read) {
      if (writes)
        block->last_write[word] = grid;
      else
        block->reader[word] = {grid, DeviceMemory::kManyReaders};
      continue;
    }
    bool is_beside = writes && !block->beside.empty();
    if (const uint32_t other = memory_.unordered(*block, word, grid, writes); other != 0 && options_.checks) {
      fail(describe(grid) + " and " + describe(other) + " touch '" + block->name + "' at byte " +
           std::to_string(word * 4) + ", and no event orders the two");
      return nullptr;
    }
    if (writes) {
      block->last_write[word] = grid;
    } else {
      is_beside = memory_.note_read(*block, word, grid);
      block->reader[word] = {grid, DeviceMemory::kManyReaders};
    }
    if (!is_beside) checked_write = written, checked_read = read;
  }
  if (writes) memory_.define(*block, at, bytes);
  return block->bytes.at(at, bytes);
}

bool StreamQueues::ends_before(uint32_t earlier) const {
  if (running_ == nullptr || earlier >= stamps_.size()) return true;
  return covers(running_->before, stamps_[earlier].stream, stamps_[earlier].number);
}

std::string StreamQueues::describe(uint32_t grid) const {
  const Stamp& stamp = stamps_.at(grid);
  return std::string(stamp.what) + " (operation " + std::to_string(stamp.number) + " of stream " +
         std::to_string(stamp.stream) + ")";
}

void StreamQueues::stop(Rule rule, const std::string& text) {
  if (failure_) return;
  failure_ = Failure{rule, std::string(to_string(rule)) + ": " + text + "\n  seed " + std::to_string(options_.seed) +
                               ", policy " + std::string(to_string(options_.policy))};
}

}  // namespace mc::gpu::emu
