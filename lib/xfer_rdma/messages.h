// Notifies and immediates of one rdma connection, in both directions (internal). Notifies are SENDs on one of its
// paths, or frames on its socket when no path is up. notify.h chooses between them and restores the order. Immediates
// of WRITEs arrive by the receives that SENDs use.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "xfer_rdma/attempt.h"
#include "xfer_rdma/notify.h"

namespace mc::xfer {

struct RdmaEndpoint;
struct RdmaParts;

class RdmaMessages {
 public:
  RdmaMessages(RdmaParts& parts, RdmaEndpoint& endpoint) : parts_(parts), endpoint_(endpoint) {}

  /// The path that the next notify may be sent on; null: none.
  RdmaRail* carrier();
  /// Sends a notify on that path. Returns an errno: 0 = sent, ENOMEM = no room now, else the path has failed.
  int send(RdmaRail& carrier, std::span<const std::byte> bytes);
  /// Queues a notify on the socket. False: there is no room now.
  bool send_on_socket(std::span<const std::byte> bytes);
  /// The path takes no SEND any more. The peer may lack the last ones, so they are repeated on the socket. The peer
  /// drops those that it has.
  void path_lost(const RdmaRail& rail) {
    if (carrier_ == &rail) repeat();
  }
  /// Does what path_lost() does for the present carrier, because the queue pairs are destroyed before the NIC may have
  /// sent everything.
  void repeat();
  /// Reports the final number of immediates of the path's attempt, or that the number is unknown.
  void end_landed(RdmaRail& rail);

  /// Handles SENDs and immediates from a path. A peer that breaks the protocol dooms the connection.
  void take(RdmaRail& rail, std::span<const RdmaAttempt::Polled::Message> messages, Reports& out);
  /// Handles frames of the socket. Not ok: the peer breaks the protocol, as `why` says.
  Code on_notify(const wire::FrameHeader& header, std::span<const std::byte> payload, Reports& out, const char*& why);
  Code on_heard(uint64_t count, const char*& why);
  Code on_landed(const wire::FrameHeader& header, Reports& out, const char*& why);

  /// Delivers the notifies that are in order, once the connection is up.
  void deliver(Reports& out);
  /// Gives the peer credit when it has little left. Otherwise the next notify to the peer carries the credit.
  void give_credit();

 private:
  static constexpr size_t kQueueMax = 1024;  // notifies wait while the queue has this many frames

  void send_on_socket(uint64_t sequence, std::vector<std::byte> bytes);
  const char* take_send(std::span<const std::byte> message);
  const char* take_immediate(RdmaRail& rail, uint32_t immediate);
  void send_landed(RdmaRail& rail, wire::LandedState state);

  RdmaParts& parts_;
  RdmaEndpoint& endpoint_;
  NotifySender sender_;
  NotifyReceiver receiver_;
  RdmaRail* carrier_ = nullptr;       // stays the carrier as long as it is up, because one path keeps the order
  std::vector<uint32_t> immediates_;  // immediates that arrived before the connection was up
};

}  // namespace mc::xfer
