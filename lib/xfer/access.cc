#include "xfer/access.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace mc::xfer {
namespace {

/// Texts for the peer, static because they name no buffer.
const char* text_of(Denial denial) {
  switch (denial) {
    case Denial::none: return "";
    case Denial::no_buffer: return "no such buffer (unregistered, or never offered)";
    case Denial::read_only: return "write to a buffer that peers may only read";
    case Denial::write_only: return "read of a buffer that peers may only write";
    case Denial::other_writer: return "write to another peer's landing buffer";
    case Denial::range: return "range beyond the end of the buffer";
  }
  return "";
}

}  // namespace

bool reachable(const BufferInfo& buffer, const InstanceId& peer) {
  switch (buffer.access) {
    case AccessClass::private_memory: return false;
    case AccessClass::blocks: return true;
    case AccessClass::landing: return buffer.writer.is_zero() || buffer.writer == peer;
  }
  return false;
}

Denial judge(const BufferInfo* buffer, Op op, uint64_t offset, uint64_t length, const InstanceId& peer) {
  if (buffer == nullptr || buffer->access == AccessClass::private_memory) return Denial::no_buffer;
  if (op == Op::write && buffer->access != AccessClass::landing) return Denial::read_only;
  if (op == Op::read && buffer->access != AccessClass::blocks) return Denial::write_only;
  if (!reachable(*buffer, peer)) return Denial::other_writer;
  return inside(offset, length, buffer->length) ? Denial::none : Denial::range;
}

Result<BufferId> Access::add(std::span<std::byte> memory, const Buffer& buffer, int fd, bool hidden) {
  const std::string who = "xfer: register buffer '" + buffer.name + "'";
  if (memory.empty()) return Error{Code::invalid, who + ": empty range"};
  if (buffer.name.empty() || buffer.name.size() > wire::kXferNameBytesMax)
    return Error{Code::invalid, who + ": the name needs 1 to " + std::to_string(wire::kXferNameBytesMax) + " bytes"};
  const auto* begin = memory.data();
  const auto* end = begin + memory.size();
  std::lock_guard lock(mutex_);
  size_t live = 0;
  for (const auto& [id, entry] : entries_) {
    if (begin < entry->memory.data() + entry->memory.size() && entry->memory.data() < end)
      return Error{Code::invalid, who + ": overlaps buffer " + std::to_string(id) + " '" + entry->info.name + "'"};
    if (entry->revoked && !entry->hidden) continue;
    ++live;
    if (entry->info.name == buffer.name) return Error{Code::invalid, who + ": the name is taken by a live buffer"};
  }
  if (live >= wire::kXferBuffersMax)
    return Error{Code::no_space, who + ": " + std::to_string(live) + " buffers are registered, the most a process may"};
  auto entry = std::make_shared<Entry>();
  entry->info.id = ++last_id_;
  entry->info.access = buffer.access;
  entry->info.shared = fd >= 0;
  entry->info.length = memory.size();
  entry->info.writer = buffer.writer;
  entry->info.name = buffer.name;
  entry->memory = memory;
  entry->fd = fd;
  entry->hidden = entry->revoked = hidden;
  const uint32_t id = entry->info.id;
  entries_.emplace(id, std::move(entry));
  if (!hidden) ++version_;
  return BufferId{id};
}

void Access::show(BufferId id) {
  std::lock_guard lock(mutex_);
  const auto at = entries_.find(static_cast<uint32_t>(id));
  MC_ASSERT(at != entries_.end());
  if (!std::exchange(at->second->hidden, false)) return;
  at->second->revoked = false;
  ++version_;
}

void Access::revoke(BufferId id) {
  std::lock_guard lock(mutex_);
  const auto at = entries_.find(static_cast<uint32_t>(id));
  if (at == entries_.end() || at->second->revoked) return;
  at->second->revoked = true;
  ++version_;
}

Result<void> Access::remove(BufferId id, TimePoint deadline, const std::function<void()>& freed) {
  const auto key = static_cast<uint32_t>(id);
  revoke(id);
  std::unique_lock lock(mutex_);
  const auto at = entries_.find(key);
  if (at == entries_.end())
    return Error{Code::not_found, "xfer: unregister: there is no buffer " + std::to_string(key)};
  const auto free_now = [&] { return at->second->pins == 0; };
  if (deadline == kNever)
    unpinned_.wait(lock, free_now);
  else if (!unpinned_.wait_until(lock, deadline, free_now))
    return Error{Code::timeout, "xfer: buffer " + std::to_string(key) + " '" + at->second->info.name + "' is used by " +
                                    std::to_string(at->second->pins) + " transfers; close their batches and try again"};
  if (freed) {  // detach takes long, and the entry can get no new pin
    lock.unlock();
    freed();
    lock.lock();
  }
  entries_.erase(key);
  return {};
}

Access::Grant Access::grant(Op op, uint32_t id, uint64_t offset, uint64_t length, const InstanceId& peer) {
  std::lock_guard lock(mutex_);
  const auto at = entries_.find(id);
  const bool live = at != entries_.end() && !at->second->revoked;
  const Denial denial = judge(live ? &at->second->info : nullptr, op, offset, length, peer);
  if (denial != Denial::none) {
    const bool was_there = denial == Denial::no_buffer && id <= last_id_ && id != 0;
    return {was_there ? Code::not_found : Code::invalid, text_of(denial)};
  }
  Entry& entry = *at->second;
  MC_ASSERT_EQ(entry.memory.size(), entry.info.length);
  ++entry.pins;
  return {Code::ok, "", entry.memory.subspan(offset, length), entry.memory.first(entry.info.length)};
}

void Access::unpin_locked(uint32_t id) {
  const auto at = entries_.find(id);
  MC_ASSERT(at != entries_.end() && at->second->pins > 0);
  if (--at->second->pins == 0) unpinned_.notify_all();
}

void Access::unpin(uint32_t id) {
  std::lock_guard lock(mutex_);
  unpin_locked(id);
}

void Access::unpin(std::span<const BufferId> pins) {
  std::lock_guard lock(mutex_);
  for (const BufferId pin : pins) unpin_locked(static_cast<uint32_t>(pin));
}

/// The live buffer that contains the memory.
Access::Entries::iterator Access::find_locked(std::span<const std::byte> memory) {
  return std::find_if(entries_.begin(), entries_.end(),
                      [&](const auto& each) { return !each.second->revoked && each.second->holds(memory); });
}

bool Access::find_and_pin(std::span<const std::byte> memory, Known& known) {
  std::lock_guard lock(mutex_);
  const auto at = find_locked(memory);
  if (at == entries_.end()) {
    known.entry.reset();
    return false;
  }
  known.entry = at->second;
  ++known.entry->pins;
  return true;
}

/// A revoked buffer has lost a pin.
void Access::tell_unpinned() {
  // remove() holds the mutex from its look at the pins until it waits.
  std::lock_guard lock(mutex_);
  unpinned_.notify_all();
}

size_t Access::pin_local(std::span<const Request> requests, std::vector<BufferId>& pins) {
  std::lock_guard lock(mutex_);
  auto at = entries_.end();
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::span<const std::byte> memory = requests[i].local;
    if (memory.empty()) continue;
    // most often the request uses the buffer of the request before
    if (at == entries_.end() || at->second->revoked || !at->second->holds(memory)) at = find_locked(memory);
    if (at == entries_.end()) {
      for (const BufferId taken : pins) unpin_locked(static_cast<uint32_t>(taken));
      pins.clear();
      return i;
    }
    ++at->second->pins;
    pins.push_back(BufferId{at->first});
  }
  return requests.size();
}

std::vector<Access::Shared> Access::shared_with(const InstanceId& peer) const {
  std::lock_guard lock(mutex_);
  std::vector<Shared> out;
  for (const auto& [id, entry] : entries_) {
    if (!entry->revoked && entry->fd >= 0 && reachable(entry->info, peer)) out.push_back({entry->info, entry->fd});
  }
  return out;
}

std::vector<BufferInfo> Access::offered(uint32_t& version) const {
  std::lock_guard lock(mutex_);
  version = version_;
  std::vector<BufferInfo> out;
  for (const auto& [id, entry] : entries_)
    if (!entry->revoked && entry->info.access != AccessClass::private_memory) out.push_back(entry->info);
  return out;
}

void Access::renew() {
  std::lock_guard lock(mutex_);
  ++version_;
}

uint32_t Access::version() const {
  std::lock_guard lock(mutex_);
  return version_;
}

uint64_t Access::pin_count() const {
  std::lock_guard lock(mutex_);
  uint64_t pins = 0;
  for (const auto& [id, entry] : entries_) pins += entry->pins;
  return pins;
}

}  // namespace mc::xfer
