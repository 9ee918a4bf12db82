#include "xfer/core.h"

namespace mc::xfer {

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

}  // namespace mc::xfer
