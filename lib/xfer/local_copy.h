// Copies that the caller's own thread makes. When the memory of a peer is mapped into this process, a small read or
// write is one memcpy. Waking the engine's thread and waiting for it costs more than the copy (64 KiB: some 10 us
// against 5). A batch that needs anything else (a peer that is not up, a wrong range) goes to the loop, which reports
// the cause. Any thread may call this function.
#pragma once

#include <span>
#include <vector>

#include "xfer/batch.h"
#include "xfer/directory.h"
#include "xfer/tally.h"

namespace mc::xfer {

/// Copies the requests of a batch and fills its results. `row`: table row of the transport that the flows are counted
/// for.
void copy_locally(OpenBatch& batch, std::span<const PeerDirectory::Place> places, size_t row, Tally& tally);

}  // namespace mc::xfer
