// Copies that the caller's own thread makes. Where a peer's memory is mapped into this process, a small read or write
// is one memcpy; waking the engine's thread for it, and waiting for it, costs more than the copy (64 KiB: some 10 us
// against 5). A batch that is not plain (a peer that is not up, a range that is wrong) goes to the loop, which says
// why. Any thread may call it.
#pragma once

#include <span>
#include <vector>

#include "xfer/batch.h"
#include "xfer/directory.h"
#include "xfer/tally.h"

namespace mc::xfer {

/// Copies the requests of a batch and fills its results. `row`: the transport in the table, by which flows are counted.
void copy_locally(OpenBatch& batch, std::span<const PeerDirectory::Place> places, size_t row, Tally& tally);

}  // namespace mc::xfer
