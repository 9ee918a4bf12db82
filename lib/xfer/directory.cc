#include "xfer/directory.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "xfer/access.h"

namespace mc::xfer {

/// PeerId::none: the directory is full.
PeerId PeerDirectory::add_locked(const InstanceId& instance) {
  const auto known = instance.is_zero() ? known_.end() : known_.find(instance);
  if (known != known_.end()) return known->second;
  if (entries_.size() >= most_) return PeerId::none;
  const PeerId id{++last_};
  entries_[id];
  if (!instance.is_zero()) known_.emplace(instance, id);
  return id;
}

const PeerDirectory::Entry* PeerDirectory::find_locked(PeerId id) const {
  const auto at = entries_.find(id);
  return at == entries_.end() ? nullptr : &at->second;
}

Result<PeerId> PeerDirectory::add(const InstanceId& instance) {
  const PeerId id = admit(instance);
  if (id != PeerId::none) return id;
  return Error{Code::busy,
               "xfer: connect: " + std::to_string(most_) + " peers are known, the most there may be (peers_max)"};
}

PeerId PeerDirectory::admit(const InstanceId& instance) {
  std::lock_guard lock(mutex_);
  return add_locked(instance);
}

void PeerDirectory::leave(PeerId id) {
  std::lock_guard lock(mutex_);
  const auto at = entries_.find(id);
  if (at != entries_.end()) at->second.leaving = true;
  std::erase_if(known_, [&](const auto& entry) { return entry.second == id; });
}

void PeerDirectory::forget(PeerId id) {
  std::lock_guard lock(mutex_);
  entries_.erase(id);
  std::erase_if(known_, [&](const auto& entry) { return entry.second == id; });
}

std::shared_ptr<const Descriptor> PeerDirectory::descriptor(PeerId id) const {
  std::lock_guard lock(mutex_);
  const Entry* entry = find_locked(id);
  return entry == nullptr ? nullptr : entry->status.descriptor;
}

std::optional<size_t> PeerDirectory::route(PeerId id) const {
  std::lock_guard lock(mutex_);
  const Entry* entry = find_locked(id);
  if (entry == nullptr || !entry->status.up) return std::nullopt;
  return entry->status.route;
}

Code PeerDirectory::add_notify(PeerId id) {
  std::lock_guard lock(mutex_);
  const auto at = entries_.find(id);
  if (at == entries_.end() || !at->second.status.up) return Code::peer_lost;
  if (at->second.notifies >= kNotifiesMax) return Code::busy;
  ++at->second.notifies;
  MC_ASSERT_LE(at->second.notifies, kNotifiesMax);
  return Code::ok;
}

Result<View> PeerDirectory::map(PeerId id, uint32_t buffer, uint64_t offset, uint64_t length) const {
  std::lock_guard lock(mutex_);
  const Entry* entry = find_locked(id);
  if (entry == nullptr) return Error{Code::not_found, "xfer: map: unknown peer"};
  const auto at = entry->mappings.find(buffer);
  if (at == entry->mappings.end())
    return Error{Code::unsupported,
                 "xfer: map: buffer " + std::to_string(buffer) + " is not a shared arena of a peer reached over shm"};
  const BufferInfo* info = entry->status.descriptor ? entry->status.descriptor->find(buffer) : nullptr;
  const Denial denial = judge(info, Op::read, offset, length, {});
  if (denial != Denial::none && denial != Denial::range)
    return Error{Code::invalid, "xfer: map: buffer " + std::to_string(buffer) + " may not be read"};
  if (denial == Denial::range || !inside(offset, length, at->second.memory->size()))
    return Error{Code::invalid, "xfer: map: [" + std::to_string(offset) + ", +" + std::to_string(length) +
                                    ") is beyond the end of '" + info->name + "', " + std::to_string(info->length) +
                                    " bytes"};
  return View(std::as_const(*at->second.memory).bytes().subspan(offset, length), at->second.memory);
}

std::optional<size_t> PeerDirectory::places(std::span<const Request> requests, const InstanceId& self,
                                            std::vector<Place>& places) const {
  MC_ASSERT(!requests.empty());
  std::lock_guard lock(mutex_);
  std::optional<size_t> route;
  const Request* previous = nullptr;
  const BufferInfo* info = nullptr;
  const Mapping* mapping = nullptr;
  for (const Request& request : requests) {
    const bool same = previous != nullptr && previous->peer == request.peer && previous->buffer == request.buffer;
    if (!same) {
      const Entry* entry = find_locked(request.peer);
      if (entry == nullptr || !entry->status.up || entry->leaving || !entry->status.descriptor) return std::nullopt;
      if (route.value_or(entry->status.route) != entry->status.route) return std::nullopt;
      route = entry->status.route;
      info = entry->status.descriptor->find(request.buffer);
      const auto at = entry->mappings.find(request.buffer);
      if (info == nullptr || at == entry->mappings.end()) return std::nullopt;
      mapping = &at->second;
    }
    previous = &request;
    const uint64_t length = request.local.size();
    if (judge(info, request.op, request.offset, length, self) != Denial::none || request.immediate) return std::nullopt;
    mem::SharedBuffer& memory = *mapping->memory;
    if (!inside(request.offset, length, memory.size())) return std::nullopt;
    if (request.op == Op::write && !memory.writable()) return std::nullopt;
    // A mapping without PROT_WRITE has no writable address. Only reads use this one, and they only read through it.
    std::byte* base = const_cast<std::byte*>(std::as_const(memory).data());
    places.push_back({base + request.offset, same ? nullptr : mapping->memory});
  }
  MC_ASSERT_EQ(places.size(), requests.size());
  return route;
}

void PeerDirectory::publish(PeerId id, Status status) {
  std::lock_guard lock(mutex_);
  Entry& entry = entries_[id];
  if (!status.proven.is_zero() && !entry.leaving) known_.emplace(status.proven, id);
  entry.status = std::move(status);
}

void PeerDirectory::keep_mappings(PeerId id, EndpointId from, std::vector<MappedBuffer>&& mappings) {
  std::lock_guard lock(mutex_);
  auto& kept = entries_[id].mappings;
  for (MappedBuffer& mapped : mappings) {
    MC_ASSERT(mapped.mapping != nullptr);
    kept[mapped.buffer] = {from, std::move(mapped.mapping)};
  }
}

void PeerDirectory::drop_mappings(PeerId id, EndpointId from) {
  std::lock_guard lock(mutex_);
  const auto at = entries_.find(id);
  if (at == entries_.end()) return;
  std::erase_if(at->second.mappings, [&](const auto& mapping) { return mapping.second.endpoint == from; });
}

void PeerDirectory::keep_offered(PeerId id, const Descriptor& descriptor) {
  std::lock_guard lock(mutex_);
  std::erase_if(entries_[id].mappings, [&](const auto& mapping) { return descriptor.find(mapping.first) == nullptr; });
}

void PeerDirectory::notifies_gone(PeerId id, size_t count) {
  std::lock_guard lock(mutex_);
  const auto at = entries_.find(id);
  if (at == entries_.end()) return;
  MC_ASSERT_LE(count, at->second.notifies);
  at->second.notifies -= count;
}

}  // namespace mc::xfer
