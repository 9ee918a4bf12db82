// A batch inside the engine, from submit() to close().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "xfer/xfer.h"

namespace mc::xfer {

struct RequestState {
  uint64_t cut = 0;     // bytes given to slices so far
  uint64_t done = 0;    // bytes of finished slices
  uint32_t crc = 0;     // CRC of finished slices, each shifted to its offset, so that their order does not matter
  uint32_t slices = 0;  // number of existing slices
  bool finished = false;
};

/// The BatchTable owns the batch. The submitting thread uses it until the loop has taken it in, then the thread with
/// the loop's turn. The mutex of the BatchTable protects the three flags at the end.
struct OpenBatch {
  BatchId id = BatchId::none;
  uint64_t cookie = 0;
  TimePoint deadline = kNever;
  std::vector<Request> requests;
  std::vector<BufferId> pins;  // local buffers, one for each request
  std::vector<RequestState> states;
  std::vector<RequestResult> results;
  size_t unfinished = 0;   // number of requests without a result
  size_t slices = 0;       // number of existing slices
  size_t quarantined = 0;  // bytes that a transport may still touch after the batch was reported
  Code code = Code::ok;    // code of the first request that failed
  std::string text;
  bool done = false;      // every request has its result, and batch_done was reported
  bool released = false;  // no slice exists, so the caller may reuse the memory
  bool cancelled = false;

  /// Empties the batch. Its vectors keep their memory.
  void clear();
};

/// A request that waits for a lane.
struct QueuedRequest {
  OpenBatch* batch = nullptr;
  uint32_t request = 0;
  const Request& asked() const { return batch->requests[request]; }
  RequestState& state() const { return batch->states[request]; }
};

}  // namespace mc::xfer
