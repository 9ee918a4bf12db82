// Lease messages (wire/lease_messages.h) as calls of a remote-fetch channel (wire/rfp_slot.h). The payload of a request
// and of a response is the body that the control message would have, so both ways decode by the same rules. Lookups
// and touches have no control message (wire/block_index.h).
//
//   method     payload of the request   response of status `done`
//   lease      LeaseRequest             LeaseGrant
//   release    LeaseRelease             empty
//   renew      LeaseRenew               LeaseRenewed
//   lookup     block ids                where the holder has each block; it keeps none of them
//   touch      block ids                empty; the holder counts a use of each block that it has in memory
//
// A node that keeps leases accepts one channel from each peer. A holder refuses a method that it does not have. Numbers
// are part of the format: they never change.
#pragma once

#include <cstdint>

#include "wire/rfp_slot.h"

namespace mc::wire {

enum class LeaseMethod : uint16_t { lease = 1, release = 2, lookup = 3, touch = 4, renew = 5 };

enum class LeaseStatus : uint16_t {
  done = 0,
  by_message = 1,  // the grant comes as a control message: it is too long for a slot, or the request was repeated
  refused = 2,     // the request is none that the holder understands
};

/// Slots of every lease channel: a request of 800 blocks fits, and a grant of 100 to 300, by the number of layers. A
/// lookup of kLookupBlocksMax blocks fits.
inline constexpr RfpGeometry kLeaseGeometry{.slots = 4, .request_bytes = 16 << 10, .response_bytes = 32 << 10};

}  // namespace mc::wire
