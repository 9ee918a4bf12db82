// The parts of the engine: those that callers use, the loop, and the turns that run it.
//
//   caller:  submit() --> SmallPath in this thread's turn, when it polls and the request is small (small_path.h)
//                     --> copied here, when the peer's memory is mapped
//                     --> LoopTurns::submit() --> EngineLoop, in this thread's turn or by a CommandQueue
//   loop:    Peering (connections) . Router (routes) . Dispatcher (slices to lanes) . RunningBatches (ends)
//   caller:  poll() <-- EventQueue;  results(), close() <-- SmallTable, BatchTable
//            descriptor(), map() <-- PeerDirectory
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
        loop(options, services, transports, batches, small, directory, events, commands),
        turns(loop, commands, events, poller, with.spin) {}

  Result<void> start();
  Result<BufferId> add_buffer(std::span<std::byte> memory, const Buffer& buffer, int fd);
  /// The addresses at which the batch's remote bytes are mapped, and the table row of the transport that mapped them.
  /// None: the loop must run the batch.
  std::optional<size_t> places_of(const OpenBatch& batch, std::vector<PeerDirectory::Place>& places) const;

  /// Submits an ordinary batch; see Engine::submit().
  Result<BatchId> submit(std::span<const Request> requests, TimePoint deadline, uint64_t cookie);
  /// See Engine::close().
  Result<void> close(BatchId batch, TimePoint deadline);

  const bool secured;
  Options options;  // the loop changes the secret
  const std::span<const TransportEntry* const> table;
  Access access;
  Tally tally;
  Poller poller;
  Services services;
  TransportSet transports;
  BatchTable batches;
  SmallTable small;
  PeerDirectory directory;
  EventQueue events;
  CommandQueue commands;
  EngineLoop loop;
  LoopTurns turns;
};

}  // namespace mc::xfer
