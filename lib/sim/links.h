// The network of a simulated cluster. Every node sends and receives through a link of its own. The transfers on a link
// share it evenly, as slices of many transfers in one queue do.
//
//   rate of a transfer = min(cap, share of the out link, share of the in link)
//   share of a link    = the x with which the sum of min(cap, x) over its transfers fills it
//
// A stream that is produced slowly leaves the rest of its share to the others. A share that a transfer cannot use
// because of the link at its other end stays unused. Rates change only when a transfer starts or ends, so a transfer is
// two events however large it is. The ends of all transfers are in one heap, in which a changed rate moves an end, so
// links that thousands of transfers share take seconds to simulate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace mc::sim {

class Links {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  Links(size_t ends, double bytes_per_s);
  /// Starts a transfer of at most `cap` bytes/s and returns its number. Numbers are used again after a transfer is
  /// over.
  uint32_t start(double now_s, uint32_t from, uint32_t to, double bytes, double cap);
  /// When the next transfer is over; kNever = none is under way.
  double next_s() const { return heap_.empty() ? kNever : transfers_[heap_.front()].end_s; }
  /// Ends the transfer that is over next and returns its number.
  uint32_t finish_next();
  /// Ends all transfers from and to this end without their remaining bytes.
  void stop(double now_s, uint32_t end);
  uint32_t leaving(uint32_t end) const { return static_cast<uint32_t>(out_[end].size()); }
  double leaving_bytes(uint32_t end, double now_s) const;
  double moved_bytes() const { return moved_bytes_; }

 private:
  struct Transfer {
    uint32_t from = 0, to = 0;
    size_t place = 0;  // in heap_
    double left = 0, rate = 0, cap = 0, since_s = 0, end_s = 0;
  };
  void update(double now_s, uint32_t from, uint32_t to);
  double share_of(const std::vector<uint32_t>& link) const;
  bool before(uint32_t a, uint32_t b) const;
  void put(size_t place, uint32_t id);
  void remove(double now_s, uint32_t id);
  void sift(size_t place);

  double bytes_per_s_;
  std::vector<double> out_share_, in_share_;  // of each end
  double moved_bytes_ = 0;
  std::vector<Transfer> transfers_;
  std::vector<uint32_t> free_, heap_;            // heap_: transfers under way, the first ends first
  std::vector<std::vector<uint32_t>> out_, in_;  // transfers of each end
};

}  // namespace mc::sim
