// Batches of shm that the caller's own thread copies. The peer's arenas are mapped here, so a small
// read or write is one memcpy; waking the engine's thread for it, and waiting to be woken by it, costs
// more than the copy (64 KiB: some 10 us against 5). Everything that is not plain sailing (a peer that
// is not up, a range that is wrong, an injected fault) goes the usual way, which knows how to say so.
#include <algorithm>
#include <utility>

#include "base/copy_crc.h"
#include "xfer/core.h"

namespace mc::xfer {

/// Where each request's remote bytes are mapped; false when the engine's thread must see to the batch.
/// Under mutex_.
bool Engine::Core::places_of(const Batch& batch, std::vector<Place>& places) const {
  if (options_.faults.any()) return false;
  uint64_t total = 0;
  for (const Request& request : batch.requests) total += request.local.size();
  if (total > options_.here_bytes_max) return false;
  places.reserve(batch.requests.size());
  const Request* previous = nullptr;
  const BufferInfo* info = nullptr;
  const PeerFace::Mapped* mapped = nullptr;
  for (const Request& request : batch.requests) {
    const bool same = previous != nullptr && previous->peer == request.peer && previous->buffer == request.buffer;
    if (!same) {
      const auto face = faces_.find(request.peer);
      if (face == faces_.end() || !face->second.up || face->second.leaving || !face->second.descriptor) return false;
      if (!active_[face->second.transport].entry->maps_memory) return false;
      info = face->second.descriptor->find(request.buffer);
      const auto arena = face->second.arenas.find(request.buffer);
      if (info == nullptr || arena == face->second.arenas.end()) return false;
      mapped = &arena->second;
    }
    previous = &request;
    mem::SharedBuffer& arena = *mapped->mapping;
    if (!inside(request.offset, request.local.size(), std::min<uint64_t>(info->length, arena.size()))) return false;
    if (request.op == Op::read) {
      if (info->access != AccessClass::blocks) return false;
    } else {
      if (request.immediate) return false;
      const bool ours = info->writer.is_zero() || info->writer == home_.instance;
      if (info->access != AccessClass::landing || !ours || !arena.writable()) return false;
    }
    // a mapping without PROT_WRITE has no writable address; reads only read through this one
    std::byte* base = const_cast<std::byte*>(std::as_const(arena).data());
    places.push_back({base + request.offset, same ? nullptr : mapped->mapping});
  }
  return batch.deadline > SystemClock::instance().now();
}

/// Copies, checks, and reports the batch as done and released.
void Engine::Core::copy_here(Batch& batch, std::span<const Place> places) {
  const auto mapping = std::find_if(active_.begin(), active_.end(), [](const auto& a) { return a.entry->maps_memory; });
  const size_t flow_row = mapping->row;
  uint64_t read = 0, written = 0, whole = 0, urgent = 0, bulk = 0;
  for (const Request& request : batch.requests) whole += request.local.size();
  for (size_t i = 0; i < places.size(); ++i) {
    const Request& request = batch.requests[i];
    RequestResult& result = batch.results[i];
    const size_t bytes = request.local.size();
    result.bytes = bytes;
    (request.transfer_class == TransferClass::urgent ? urgent : bulk) += bytes;
    if (request.op == Op::write) {
      copy_bytes(places[i].at, request.local.data(), bytes, whole);
      written += bytes;
      continue;
    }
    read += bytes;
    if (!request.crc32c) {
      copy_bytes(request.local.data(), places[i].at, bytes, whole);
      continue;
    }
    result.crc32c = copy_crc32c(request.local.data(), places[i].at, bytes, 0, whole);
    if (result.crc32c == *request.crc32c) continue;
    result.code = Code::corrupt;
    tally_.add(Count::checksum_failures);
    tally_.add(Count::requests_failed);
    if (batch.code != Code::ok) continue;
    batch.code = Code::corrupt;
    batch.text = "request " + std::to_string(i) + ": read of buffer " + std::to_string(request.buffer) + " [" +
                 std::to_string(request.offset) + ", +" + std::to_string(bytes) +
                 "): the bytes sum to another CRC32C than expected";
  }
  tally_.add(Count::batches_submitted);
  tally_.add(Count::batches_done);
  if (batch.code != Code::ok) tally_.add(Count::batches_failed);
  tally_.add(Count::slices_posted, places.size());
  tally_.add(flow_row, Flow::slices, places.size());
  if (urgent > 0) tally_.add(Count::urgent_bytes, urgent);
  if (bulk > 0) tally_.add(Count::bulk_bytes, bulk);
  if (read > 0) tally_.add(flow_row, Flow::read_bytes, read);
  if (written > 0) tally_.add(flow_row, Flow::written_bytes, written);
  access_.unpin(batch.pins);
  batch.pins.clear();
  Event event{.kind = Event::Kind::batch_done,
              .batch = batch.id,
              .cookie = batch.cookie,
              .code = batch.code,
              .text = batch.text};
  {
    std::lock_guard lock(mutex_);
    batch.done = true;
    batch.released = true;
  }
  report(std::move(event));
  changed_.notify_all();
}

/// Hands an event to whoever polls. The descriptor is signalled only when someone watches it: the
/// system call costs more than the rest. It comes after the lock, since it wakes a thread that wants
/// the lock; one that comes too late to mean anything is cleared by the next poll() that finds nothing.
void Engine::Core::report(Event&& event) {
  bool signal;
  {
    std::lock_guard lock(events_mutex_);
    events_.push_back(std::move(event));
    event_count_.store(events_.size(), std::memory_order_relaxed);  // a hint for pollers that spin
    signal = (events_watched_ || events_polled_) && !std::exchange(events_signalled_, true);
  }
  if (signal) events_fd_.signal();
}

/// Moves up to `max` events to `out`. `drained`: the caller has just cleared the descriptor.
size_t Engine::Core::take_events(std::vector<Event>& out, size_t max, bool drained) {
  bool resume;
  size_t count;
  {
    std::lock_guard lock(events_mutex_);
    count = std::min(max, events_.size());
    const bool was_full = events_.size() >= options_.events_max;
    for (size_t i = 0; i < count; ++i) {
      out.push_back(std::move(events_.front()));
      events_.drop_front();
    }
    if (events_.empty()) {
      if (std::exchange(events_signalled_, false)) events_fd_.drain();
    } else if (drained) {
      events_fd_.signal();  // it stays readable while events wait
    }
    events_polled_ = count == 0;                                    // about to sleep: a signal is wanted
    event_count_.store(events_.size(), std::memory_order_relaxed);  // a hint
    resume = was_full && events_.size() < options_.events_max;
  }
  if (resume) push({.kind = Command::Kind::resume});
  return count;
}

}  // namespace mc::xfer
