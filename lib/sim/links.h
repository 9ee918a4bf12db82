// The network of a simulated cluster: every node sends and receives through a link of its own, and a link is
// shared evenly by the transfers on it (which is what slices of many transfers in one queue come to).
//
//   rate of a transfer = min(out link / transfers leaving its source, in link / transfers entering its target, cap)
//
// Shares that a slower transfer leaves unused are not given to others. Rates change when a transfer starts or
// ends; between such moments they are constant, so a transfer costs a few events however large it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mc::sim {

class Links {
 public:
  struct End {
    uint32_t transfer, version;
    double at_s;
  };

  Links(size_t ends, double bytes_per_s);
  /// `cap` bytes/s at most (a stream that is produced no faster). Appends to `moved` the transfers that now end at
  /// another time than was said before, this one included.
  uint32_t start(double now_s, uint32_t from, uint32_t to, double bytes, double cap, std::vector<End>& moved);
  /// False: `end` is not valid any more. Otherwise the transfer is over.
  bool finish(const End& end, std::vector<End>& moved);
  uint32_t leaving(uint32_t end) const { return static_cast<uint32_t>(out_[end].size()); }
  double leaving_bytes(uint32_t end, double now_s) const;
  double moved_bytes() const { return moved_bytes_; }

 private:
  struct Transfer {
    uint32_t from = 0, to = 0, version = 0;
    double left = 0, rate = 0, cap = 0, since_s = 0;
    bool active = false;
  };
  void update(double now_s, uint32_t from, uint32_t to, std::vector<End>& moved);

  double bytes_per_s_;
  double moved_bytes_ = 0;
  std::vector<Transfer> transfers_;
  std::vector<uint32_t> free_;
  std::vector<std::vector<uint32_t>> out_, in_;  // transfers of each end
};

}  // namespace mc::sim
