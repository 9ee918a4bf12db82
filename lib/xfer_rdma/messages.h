// Notifies and immediates of one rdma connection, both ways (internal): notifies are SENDs on one of its paths, or
// frames on its socket when there is none. notify.h decides which, and puts in order what arrives. Immediates of WRITEs
// come by the same receives as SENDs.
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
  /// Sends a notify on that path. errno, 0 = sent; ENOMEM: no room now; else the path has failed.
  int send(RdmaRail& carrier, std::span<const std::byte> bytes);
  /// Queues a notify on the socket. False: not now.
  bool send_on_socket(std::span<const std::byte> bytes);
  /// The path takes no SEND any more. Whether the peer got the last ones is unknown: it gets them again on the socket,
  /// and drops those that it has.
  void path_lost(const RdmaRail& rail) {
    if (carrier_ == &rail) repeat();
  }
  /// As path_lost(), for whatever path carries SENDs: our queue pairs go before the NIC may have sent everything.
  void repeat();
  /// The final count of immediates of the path's attempt, or that it is not known.
  void end_landed(RdmaRail& rail);

  /// SENDs and immediates came on a path. A peer that breaks the rules dooms the connection.
  void take(RdmaRail& rail, std::span<const RdmaAttempt::Polled::Message> messages, Reports& out);
  /// Frames of the socket. Not ok, and `why`: the peer breaks the rules.
  Code on_notify(const wire::FrameHeader& header, std::span<const std::byte> payload, Reports& out, const char*& why);
  Code on_heard(uint64_t count, const char*& why);
  Code on_landed(const wire::FrameHeader& header, Reports& out, const char*& why);

  /// Hands over what is in order, once the connection is up.
  void deliver(Reports& out);
  /// Gives the peer credit when it runs short of it. Otherwise our next notify does.
  void give_credit();

 private:
  static constexpr size_t kQueueMax = 1024;  // notifies wait while fewer frames do

  void send_on_socket(uint64_t sequence, std::vector<std::byte> bytes);
  const char* take_send(std::span<const std::byte> message);
  const char* take_immediate(RdmaRail& rail, uint32_t immediate);
  void send_landed(RdmaRail& rail, wire::LandedState state);

  RdmaParts& parts_;
  RdmaEndpoint& endpoint_;
  NotifySender sender_;
  NotifyReceiver receiver_;
  RdmaRail* carrier_ = nullptr;       // stays the same as long as it is up, because one path keeps order
  std::vector<uint32_t> immediates_;  // came before the connection was up
};

}  // namespace mc::xfer
