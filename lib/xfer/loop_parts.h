// The state that the parts of the loop share. It belongs to the thread that has the loop's turn. The classes behind the
// references say which threads may call them.
#pragma once

#include "xfer/access.h"
#include "xfer/batch_table.h"
#include "xfer/directory.h"
#include "xfer/events.h"
#include "xfer/lanes.h"
#include "xfer/peers.h"
#include "xfer/tally.h"
#include "xfer/transport_set.h"

namespace mc::xfer {

struct LoopParts {
  LoopParts(const Options& with, Services& at, TransportSet& set, BatchTable& table, PeerDirectory& known,
            EventQueue& queue)
      : options(with),
        services(at),
        access(*at.access),
        tally(*at.tally),
        transports(set),
        batches(table),
        directory(known),
        events(queue),
        slices(tally),
        peers(slices, {.least = with.slice_bytes_min, .most = with.slice_bytes_max}) {}

  const Options& options;
  Services& services;
  Access& access;
  Tally& tally;
  TransportSet& transports;
  BatchTable& batches;
  PeerDirectory& directory;
  EventQueue& events;

  SliceTable slices;
  PeerMap peers;
  Lanes lanes;
  Reports reports;  // reports of transports that are not handled yet
};

}  // namespace mc::xfer
