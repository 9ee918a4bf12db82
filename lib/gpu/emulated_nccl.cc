#include "gpu/emulated_nccl.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/assert.h"

namespace mc::gpu {
namespace {

/// The numbers of one sum, as far as the ranks have read them, and where each rank's stream reads them.
struct Exchange {
  struct Sender {
    std::weak_ptr<EmulatedDriver> driver;
    uint32_t queue = 0;
    uint64_t operation = 0;
    std::optional<std::vector<float>> numbers;
  };
  std::vector<Sender> ranks;
};

std::vector<float> read_numbers(emu::DeviceMemory& memory, uint64_t from, size_t count) {
  std::vector<float> out(count);
  memory.read(from, std::as_writable_bytes(std::span(out)));
  return out;
}

/// In the order of the ranks.
std::vector<float> sum_of(const Exchange& exchange) {
  std::vector<float> out = *exchange.ranks[0].numbers;
  for (size_t rank = 1; rank < exchange.ranks.size(); ++rank)
    for (size_t i = 0; i < out.size(); ++i) out[i] += (*exchange.ranks[rank].numbers)[i];
  return out;
}

}  // namespace

Result<void> EmulatedNccl::load() {
  for (const auto& driver : drivers_)
    if (!driver->host_.has_nccl) return Error{Code::unsupported, "no NCCL was found: the emulated host has none"};
  return {};
}

NcclStatus EmulatedNccl::create(std::span<const int> devices) {
  MC_ASSERT(ranks_.empty());
  std::vector<Rank> made;
  for (const int device : devices) {
    if (device < 0 || static_cast<size_t>(device) >= drivers_.size() ||
        std::ranges::count(devices, device) > 1)  // "each device may be used once in a communicator"
      return NcclStatus::invalid_usage;
    made.push_back({.driver = drivers_[static_cast<size_t>(device)]});
  }
  ranks_ = std::move(made);
  return NcclStatus::ok;
}

NcclStatus EmulatedNccl::refuse(const std::string& text) {
  refused_ = "nccl: " + text;
  for (const Rank& rank : ranks_) rank.driver->gpu_.queues_.stop(emu::Rule::nccl, text);
  return NcclStatus::rule_broken;
}

NcclStatus EmulatedNccl::group_start() {
  if (is_open_) return NcclStatus::invalid_usage;
  is_open_ = true;
  group_.clear();
  return NcclStatus::ok;
}

// A call outside a group is a group of one call, as one thread makes it.
NcclStatus EmulatedNccl::all_reduce(const NcclCall& call) {
  if (ranks_.empty()) return NcclStatus::invalid_usage;  // after an abort
  if (call.rank < 0 || static_cast<size_t>(call.rank) >= ranks_.size()) return NcclStatus::invalid_argument;
  const bool is_alone = !is_open_;
  if (is_alone) group_.clear();
  group_.push_back(call);
  return is_alone ? group_end() : NcclStatus::ok;
}

/// "rank 1 at call 5 (layer 2, attention)", or behind its last call.
std::string EmulatedNccl::place(size_t rank, size_t index) const {
  const Rank& of = ranks_[rank];
  const std::string name = "rank " + std::to_string(rank);
  const bool calls = index < of.calls.size();
  const std::string last = index > 0 ? std::string(of.calls[index - 1].what) : of.last;
  if (calls)
    return name + " at call " + std::to_string(of.ended + index + 1) + " (" + std::string(of.calls[index].what) +
           ", a sum of " + std::to_string(of.calls[index].count) + " numbers)";
  return name + " behind call " + std::to_string(of.ended + of.calls.size()) + (last.empty() ? "" : " (" + last + ")");
}

/// The demand that the calls of the group do not meet; empty: none.
std::string EmulatedNccl::objection() const {
  size_t most = 0;
  for (const Rank& rank : ranks_) most = std::max(most, rank.calls.size());
  for (size_t index = 0; index < most; ++index)
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const size_t other = rank == 0 ? 1 % ranks_.size() : 0;
      const bool is_there = index < ranks_[rank].calls.size(), is_other = index < ranks_[other].calls.size();
      const std::string both = place(rank, index) + " and " + place(other, index);
      if (is_there != is_other) return "deadlock: a group ends with " + both;
      if (!is_there) continue;
      const NcclCall &call = ranks_[rank].calls[index], &first = ranks_[other].calls[index];
      if (call.what != first.what) return "the order of calls differs: " + both;
      if (call.count != first.count) return "the sizes differ: " + both;
      if (call.count == 0) return "a sum of no numbers: " + both;
      const uint64_t bytes = call.count * 4;
      if (call.from != call.to && call.from < call.to + bytes && call.to < call.from + bytes)
        return "the numbers and the sums overlap and are not equal: " + place(rank, index);
      for (const uint64_t address : {call.from, call.to})
        if (address % 4 != 0 || ranks_[rank].driver->gpu_.memory_.find(address, bytes) == nullptr)
          return "the range is not f32 in one allocation: " + place(rank, index);
    }
  return "";
}

Status EmulatedNccl::check(EmulatedDriver& driver, Handle stream) {
  uint32_t queue = 0;
  for (const Status status : {driver.context_.enter(), driver.handles_.stream(stream, &queue), driver.state()})
    if (status != Status::ok) return status;
  return driver.handles_.captures(stream) ? Status::capture_unsupported : Status::ok;
}

uint32_t EmulatedNccl::queue_of(EmulatedDriver& driver, Handle stream) {
  uint32_t queue = 0;
  MC_ASSERT(driver.handles_.stream(stream, &queue) == Status::ok);
  return queue;
}

/// All ranks' numbers are queued to be read before a sum is queued to be written.
NcclStatus EmulatedNccl::queue_sum(size_t index) {
  const auto exchange = std::make_shared<Exchange>();
  exchange->ranks.resize(ranks_.size());
  const auto submit = [](EmulatedDriver& driver, const NcclCall& call, emu::LibraryCall work) {
    const Status refused = check(driver, call.stream);
    return refused == Status::ok ? driver.submit(call.stream, std::move(work)) : refused;
  };
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const NcclCall& call = ranks_[rank].calls[index];
    EmulatedDriver& driver = *ranks_[rank].driver;
    const uint32_t queue = queue_of(driver, call.stream);
    exchange->ranks[rank] = {ranks_[rank].driver, queue, driver.gpu_.queues_.last(queue) + 1, std::nullopt};
    const auto read = [exchange, rank, from = call.from, count = call.count](emu::DeviceMemory& memory) {
      exchange->ranks[rank].numbers = read_numbers(memory, from, count);
    };
    const size_t bytes = call.count * 4;
    const Status status =
        submit(driver, call, {"ncclAllReduce", {{"the numbers of the sum", call.from, bytes, bytes}}, read});
    if (status != Status::ok) return NcclStatus::unhandled_cuda_error;
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const NcclCall& call = ranks_[rank].calls[index];
    EmulatedDriver& driver = *ranks_[rank].driver;
    const auto write = [exchange, rank, to = call.to, what = std::string(call.what),
                        &queues = driver.gpu_.queues_](emu::DeviceMemory& memory) {
      for (size_t other = 0; other < exchange->ranks.size(); ++other) {
        Exchange::Sender& sender = exchange->ranks[other];
        const auto peer = sender.driver.lock();
        if (peer != nullptr && !sender.numbers) (void)peer->gpu_.queues_.run_to(sender.queue, sender.operation);
        if (sender.numbers) continue;
        return queues.stop(emu::Rule::nccl, "deadlock: rank " + std::to_string(rank) + " at " + what +
                                                " waits for rank " + std::to_string(other) +
                                                ", which does not come to it");
      }
      const std::vector<float> sums = sum_of(*exchange);
      memory.write(to, std::as_bytes(std::span(sums)));
    };
    const size_t bytes = call.count * 4;
    const Status status =
        submit(driver, call, {"ncclAllReduce", {{"the sums", call.to, bytes, bytes, 1, true}}, write});
    if (status != Status::ok) return NcclStatus::unhandled_cuda_error;
  }
  ++sums_;
  return NcclStatus::ok;
}

NcclStatus EmulatedNccl::group_end() {
  is_open_ = false;
  if (ranks_.empty()) return NcclStatus::invalid_usage;
  if (edit_) edit_(group_);
  for (Rank& rank : ranks_) rank.calls.clear();
  for (const NcclCall& call : group_) ranks_.at(static_cast<size_t>(call.rank)).calls.push_back(call);
  if (const std::string text = objection(); !text.empty()) return refuse(text);
  for (const Rank& rank : ranks_)
    for (const NcclCall& call : rank.calls)
      if (check(*rank.driver, call.stream) != Status::ok) return NcclStatus::unhandled_cuda_error;
  for (size_t index = 0; index < ranks_[0].calls.size(); ++index)
    if (const NcclStatus status = queue_sum(index); status != NcclStatus::ok) return status;
  for (Rank& rank : ranks_) {
    rank.ended += rank.calls.size();
    if (!rank.calls.empty()) rank.last = rank.calls.back().what;
  }
  return NcclStatus::ok;
}

std::string EmulatedNccl::error_text(NcclStatus status) {
  return status == NcclStatus::rule_broken ? refused_ : std::string(name_of(status));
}

}  // namespace mc::gpu
