// Notifies of an rdma connection, decided without a device (internal, pure). A notify travels as a SEND on a path or as
// a frame on the socket. Both together are delivered once and in order, by sequence number.
//
//   - A SEND stays within kRdmaNotifiesAhead of the number that the peer reports as delivered (`heard`). Every
//     path has that many receives posted, and each one is posted again before its notify counts as delivered.
//     So every SEND finds a receive at the peer.
//   - A SEND is kept until it is reported as delivered. When its path fails, it is repeated on the socket.
//   - The socket is used when no kept SEND is under way: a notify on it follows all earlier ones,
//     and the receiver keeps at most the SENDs that may arrive too early.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "wire/rdma_frame.h"

namespace mc::xfer {

class NotifySender {
 public:
  static constexpr uint64_t kAhead = wire::kRdmaNotifiesAhead;

  enum class Way : uint8_t { path, socket, wait };
  /// The way of the next notify. `path`: a path is up. wait: until heard() or path_lost() is called.
  Way way(bool path) const {
    if (path && next_ - heard_ < kAhead) return Way::path;
    return kept_.empty() ? Way::socket : Way::wait;
  }
  uint64_t next() const { return next_; }  // next sequence number
  void sent_on_socket() { ++next_; }
  void sent_on_path(std::span<const std::byte> bytes);
  /// The peer has delivered `count` notifies. False: the count is impossible.
  bool heard(uint64_t count);
  /// The carrier of all SENDs takes none any more. Returns the SENDs that must be repeated on the socket, in order.
  struct Kept {
    uint64_t sequence = 0;
    std::vector<std::byte> bytes;
  };
  std::deque<Kept> path_lost() { return std::exchange(kept_, {}); }

 private:
  uint64_t next_ = 0;
  uint64_t heard_ = 0;
  std::deque<Kept> kept_;  // SENDs that are not reported as delivered, in order
};

class NotifyReceiver {
 public:
  static constexpr uint64_t kAhead = wire::kRdmaNotifiesAhead;

  /// Takes a notify from a path. False: a peer that follows the protocol does not send it now.
  bool from_path(uint64_t sequence, std::span<const std::byte> bytes);
  bool from_socket(uint64_t sequence, std::span<const std::byte> bytes);
  /// The next notify in order, if it has arrived. It then counts as delivered.
  bool take(std::vector<std::byte>& out);
  /// The number to report to the peer. While `paused` the number does not grow, so the peer stops when its credit is
  /// used up.
  uint64_t heard(bool paused) const { return paused ? told_ : next_; }
  void told(uint64_t heard) { told_ = heard; }
  /// Whether the peer has so little credit left that it needs a report at once instead of with the next notify.
  bool owes() const { return next_ - told_ >= kAhead / 2; }

 private:
  void keep(uint64_t sequence, std::span<const std::byte> bytes);

  uint64_t next_ = 0;  // number of the next notify to deliver
  uint64_t told_ = 0;
  std::map<uint64_t, std::vector<std::byte>> kept_;  // notifies that are not delivered yet
};

}  // namespace mc::xfer
