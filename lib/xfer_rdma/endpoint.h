// One connection of the rdma transport (internal): an authenticated socket, and several paths of a few lanes each. Over
// the socket both sides exchange ports, keys and queue pairs. The paths carry the bytes. An endpoint that must end is
// marked doomed and removed at the end of the transport's turn, because it may be on the call stack.
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

  /// Marks the endpoint. The connection ends with the transport's turn.
  void doom(Loss why);
  bool doomed() const { return loss.has_value(); }
  /// The handshake is complete, and the endpoint is not doomed.
  bool live() const { return socket.handshake.complete() && !doomed(); }
  /// Whether a path is in one of these states.
  bool any_in(std::initializer_list<PathMachine::State> states) const;
  /// Whether the NIC works on slices of the endpoint.
  bool posted() const;
  /// Listener: whether the dialler waits for answers to offers of paths.
  bool offered() const;
  /// Whether the peer may write into a buffer of this process.
  bool takes_writes(const Descriptor& own) const;
  /// The path that contains a lane of the endpoint, and the lane's index there; null: there is none.
  RdmaRail* rail_of(int lane, size_t& index) const;

  RdmaFrames& frames;
  const EndpointId id;
  PeerSocket socket;
  bool accepted = false;
  bool up = false;  // a path carries slices, or has done so
  TimePoint up_at{};
  InstanceId peer{};
  std::string name;
  std::shared_ptr<const Descriptor> descriptor;  // immutable; shared with the engine
  std::optional<Loss> loss;                      // cause of the end; set when doomed

  RdmaKeyring keyring;
  std::set<uint32_t> told;  // own buffers whose keys the peer has
  std::vector<std::unique_ptr<RdmaRail>> rails;
  size_t lanes_per_path = 0;
  TimePoint dark_since = kNever;  // time since which no path is up
  RdmaMessages messages;

  TimePoint used{};          // when a slice was last posted or done
  struct Rest {              // see resting.h
    bool wanted = false;     // paths are wanted, to be handled in this turn
    bool yielding = false;   // takes no slices, because its queue pairs may be given up
    bool insisting = false;  // this side: tell the peer when nothing is posted here
    bool insisted = false;   // the peer: rest when nothing is posted here
    bool resting = false;    // its paths have failed and drain
    bool again = false;      // work arrived while it was resting
    bool asked = false;      // listener: the dialler was told that paths are wanted
  } rest;
};

}  // namespace mc::xfer
