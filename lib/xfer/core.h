// The parts of the engine: those that callers use, the loop, and the turns that run it.
//
//   caller:  submit() --> copied here, when the peer's memory is mapped
//                     --> LoopTurns::submit() --> EngineLoop, in this thread's turn or by a CommandQueue
//   loop:    Peering (connections) . Router (routes) . Dispatcher (slices to lanes) . RunningBatches (ends)
//   caller:  poll() <-- EventQueue;  results(), close() <-- BatchTable;  descriptor(), map() <-- PeerDirectory
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "xfer/local_copy.h"
#include "xfer/services.h"
#include "xfer/turns.h"

namespace mc::xfer {

class Engine::Core {
 public:
  Core(const Options& with, std::span<const TransportEntry* const> rows)
      : secured(!with.secret.empty()),
        options(with),
        table(rows),
        services(make_services(options, access, tally, poller)),
        batches(with.batches_max, tally),
        directory(with.peers_max),
        events(with.events_max),
        loop(options, services, transports, batches, directory, events, commands),
        turns(loop, commands, events, poller, with.spin) {}

  Result<void> start();
  Result<BufferId> add_buffer(std::span<std::byte> memory, const Buffer& buffer, int fd);
  /// The addresses at which the batch's remote bytes are mapped, and the table row of the transport that mapped them.
  /// None: the loop must run the batch.
  std::optional<size_t> places_of(const OpenBatch& batch, std::vector<PeerDirectory::Place>& places) const;

  const bool secured;
  Options options;  // the loop changes the secret
  const std::span<const TransportEntry* const> table;
  Access access;
  Tally tally;
  Poller poller;
  Services services;
  TransportSet transports;
  BatchTable batches;
  PeerDirectory directory;
  EventQueue events;
  CommandQueue commands;
  EngineLoop loop;
  LoopTurns turns;
};

}  // namespace mc::xfer
