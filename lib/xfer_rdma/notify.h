// Notifies of an rdma connection, decided without a device (internal, pure). A notify travels as a SEND on
// a path or as a frame on the socket; together they are delivered once and in order, by sequence number.
//
//   - A SEND stays within kRdmaNotifiesAhead of what the peer says it has delivered (`heard`): that many
//     receives are posted on every path, each posted again before its notify is counted as heard. So no
//     SEND ever finds the peer without a receive.
//   - A SEND is kept until it is heard. When its path dies it is repeated on the socket, heard or not.
//   - The socket is used when no kept SEND is under way: a notify on it follows all earlier ones,
//     and the receiver never has to keep more than the SENDs that may come too early.
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
  /// How the next notify goes; `path`: one is up. wait: until heard() or path_lost().
  Way way(bool path) const {
    if (path && next_ - heard_ < kAhead) return Way::path;
    return kept_.empty() ? Way::socket : Way::wait;
  }
  uint64_t next() const { return next_; }  // sequence number
  void sent_on_socket() { ++next_; }
  void sent_on_path(std::span<const std::byte> bytes);
  /// The peer has delivered this many. False: that is a lie.
  bool heard(uint64_t count);
  /// The path that carried all SENDs takes none any more: what must be repeated on the socket, in order.
  struct Kept {
    uint64_t sequence = 0;
    std::vector<std::byte> bytes;
  };
  std::deque<Kept> path_lost() { return std::exchange(kept_, {}); }

 private:
  uint64_t next_ = 0;
  uint64_t heard_ = 0;
  std::deque<Kept> kept_;  // SENDs that are not heard, in order
};

class NotifyReceiver {
 public:
  static constexpr uint64_t kAhead = wire::kRdmaNotifiesAhead;

  /// A notify came. False: no peer that keeps the rules sends it now.
  bool from_path(uint64_t sequence, std::span<const std::byte> bytes);
  bool from_socket(uint64_t sequence, std::span<const std::byte> bytes);
  /// The next in order, if it is here: it counts as delivered.
  bool take(std::vector<std::byte>& out);
  /// To tell the peer. While `paused` it learns nothing new, so that it stops when its credit is used up.
  uint64_t heard(bool paused) const { return paused ? told_ : next_; }
  void told(uint64_t heard) { told_ = heard; }
  /// Has the peer so little credit left that it should hear at once, not with our next notify?
  bool owes() const { return next_ - told_ >= kAhead / 2; }

 private:
  void keep(uint64_t sequence, std::span<const std::byte> bytes);

  uint64_t next_ = 0;  // to be delivered
  uint64_t told_ = 0;
  std::map<uint64_t, std::vector<std::byte>> kept_;  // not delivered yet
};

}  // namespace mc::xfer
