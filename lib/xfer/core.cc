#include "xfer/core.h"

namespace mc::xfer {
namespace {

Result<void> check_requests(std::span<const Request> requests, TimePoint deadline) {
  if (requests.empty() || requests.size() > kBatchRequestsMax)
    return Error{Code::invalid, "xfer: a batch has 1 to " + std::to_string(kBatchRequestsMax) + " requests, not " +
                                    std::to_string(requests.size())};
  if (deadline == kNever) return Error{Code::invalid, "xfer: a batch needs a deadline"};
  for (size_t i = 0; i < requests.size(); ++i)
    if (requests[i].immediate && (requests[i].op != Op::write || requests[i].local.empty()))
      return Error{Code::invalid, "xfer: request " + std::to_string(i) +
                                      ": an immediate travels with a write of at least one byte; notify() needs none"};
  return {};
}

}  // namespace

Result<void> Engine::Core::start() {
  MC_TRY(opened, Poller::open());
  poller = std::move(opened);
  MC_CHECK(commands.open());
  MC_CHECK(events.open());
  MC_CHECK(poller.add_wake(commands.fd()));
  MC_CHECK(transports.open(services, table));
  turns.start();
  return {};
}

/// Adds a buffer, which stays hidden until every transport can use it.
Result<BufferId> Engine::Core::add_buffer(std::span<std::byte> memory, const Buffer& buffer, int fd) {
  MC_TRY(id, access.add(memory, buffer, fd, true));
  if (auto attached = transports.attach(id, memory, buffer.access); !attached) {
    (void)access.remove(id, kNever);
    return within("xfer: register buffer '" + buffer.name + "'", attached.error());
  }
  access.show(id);
  if (buffer.access != AccessClass::private_memory) commands.push({.kind = Command::Kind::publish});
  return id;
}

std::optional<size_t> Engine::Core::places_of(const OpenBatch& batch, std::vector<PeerDirectory::Place>& places) const {
  if (options.faults.any()) return std::nullopt;  // faults are injected into transports
  uint64_t total = 0;
  for (const Request& request : batch.requests) total += request.local.size();
  if (total > options.here_bytes_max) return std::nullopt;
  places.reserve(batch.requests.size());
  const auto route = directory.places(batch.requests, services.instance, places);
  if (!route || !transports.entry(*route).maps_memory) return std::nullopt;
  if (batch.deadline <= SystemClock::instance().now()) return std::nullopt;
  return transports.row(*route);
}

Result<BatchId> Engine::Core::submit(std::span<const Request> requests, TimePoint deadline, uint64_t cookie) {
  MC_CHECK(check_requests(requests, deadline));
  auto batch = batches.make();
  batch->cookie = cookie;
  batch->deadline = deadline;
  batch->requests.assign(requests.begin(), requests.end());
  batch->states.resize(requests.size());
  batch->results.resize(requests.size());
  batch->unfinished = requests.size();
  batch->pins.reserve(requests.size());
  if (const size_t i = access.pin_local(requests, batch->pins); i < requests.size())
    return Error{Code::invalid, "xfer: request " + std::to_string(i) + ": its " +
                                    std::to_string(requests[i].local.size()) +
                                    " local bytes are not inside one registered buffer"};
  const BatchId id = batches.reserve();
  if (id == BatchId::none) {
    access.unpin(batch->pins);
    return Error{Code::busy,
                 "xfer: " + std::to_string(options.batches_max) + " batches are open (batches_max): close some"};
  }
  batch->id = id;
  OpenBatch& open = *batch;
  std::vector<PeerDirectory::Place> places;
  const auto row = places_of(open, places);
  if (!row) {
    batches.keep(std::move(batch));
    turns.submit(open);
    return id;
  }
  copy_locally(open, places, *row, tally);
  access.unpin(open.pins);
  open.pins.clear();
  events.push(batches.keep_done(std::move(batch)));
  return id;
}

Result<void> Engine::Core::close(BatchId batch, TimePoint deadline) {
  if (SmallTable::is_small(batch)) {
    bool closed = small.close(batch);
    if (!closed) {  // it flies: as an ordinary batch it can be waited for
      turns.join_small();
      closed = small.close(batch);  // it was done in the meantime
    }
    if (closed) {
      batches.leave();
      return {};
    }
  }
  return batches.close(batch, deadline);
}

}  // namespace mc::xfer
