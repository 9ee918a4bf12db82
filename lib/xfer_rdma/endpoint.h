// One connection of the rdma transport (internal): an authenticated socket, over which both sides tell ports, keys and
// queue pairs, and several paths, each of a few lanes, that carry the bytes. An endpoint that must end is marked doomed
// and removed at the end of the transport's turn, because it may be on the stack.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "xfer/peer_socket.h"
#include "xfer_rdma/keyring.h"
#include "xfer_rdma/messages.h"
#include "xfer_rdma/rail.h"

namespace mc::xfer {

class RdmaFrames;
struct RdmaParts;

struct RdmaEndpoint final : public FrameConsumer {
  RdmaEndpoint(RdmaParts& parts, RdmaFrames& with, Fd fd, Handshake handshake);

  Code begin(const wire::FrameHeader& header, Sink& sink, const char*& why) override;
  Code end(const wire::FrameHeader& header, std::span<const std::byte> payload, uint32_t crc,
           const char*& why) override;

  /// The connection ends with the transport's turn.
  void doom(Loss why);
  bool doomed() const { return loss.has_value(); }
  /// The handshake is complete, and it is not doomed.
  bool live() const { return socket.handshake.complete() && !doomed(); }
  /// A path is in one of these states.
  bool any_in(std::initializer_list<PathMachine::State> states) const;
  /// The NIC works on slices of it.
  bool posted() const;
  /// Listener: the dialler waits for answers to offers of paths.
  bool offered() const;
  /// The peer may write into a buffer of this process.
  bool takes_writes(const Descriptor& own) const;
  /// The path and the lane of it that a lane of the endpoint is; null: there is none.
  RdmaRail* rail_of(int lane, size_t& index) const;

  RdmaFrames& frames;
  const EndpointId id;
  PeerSocket socket;
  bool accepted = false;
  bool up = false;  // a path carries, or has carried
  TimePoint up_at{};
  InstanceId peer{};
  std::string name;
  std::shared_ptr<const Descriptor> descriptor;  // immutable, handed on to the engine
  std::optional<Loss> loss;                      // why it is doomed

  RdmaKeyring keyring;
  std::set<uint32_t> told;  // buffers of ours whose keys it has
  std::vector<std::unique_ptr<RdmaRail>> rails;
  size_t lanes_per_path = 0;
  TimePoint dark_since = kNever;  // no path is up since then
  RdmaMessages messages;

  TimePoint used{};          // when a slice was last posted or done
  struct Rest {              // see resting.h
    bool wanted = false;     // paths are wanted: to be looked at in this turn
    bool yielding = false;   // takes no slices: its queue pairs may have to go
    bool insisting = false;  // ours: tell the peer when nothing is posted here
    bool insisted = false;   // the peer's: rest when nothing is posted here
    bool resting = false;    // its paths have failed and drain
    bool again = false;      // work came while it was resting
    bool asked = false;      // listener: the dialler knows that we want paths
  } rest;
};

}  // namespace mc::xfer
