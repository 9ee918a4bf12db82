// Offers whose sender is not listed yet. The conductor sends a change of membership to the members one by one, so an
// offer may arrive before the list that names its sender. It waits a moment for that list.
#pragma once

#include <deque>
#include <vector>

#include "node/peers.h"

namespace mc::node {

class UnlistedOffers {
 public:
  static constexpr size_t kMax = 256;  // offers that wait; more do not

  /// `peers` must outlive the object. `wait`: the longest wait of an offer.
  UnlistedOffers(const Peers& peers, Duration wait) : peers_(peers), wait_(wait) {}

  /// True: the KvOffer is kept until its sender is listed, or its wait is over.
  bool keep(const Received& offer, TimePoint now);
  /// Removes and returns the offers whose wait is over, in order of arrival.
  std::vector<Received> take_ready(TimePoint now);
  /// Drops this attempt of the request, and every older one.
  void cancel(const wire::Cancel& cancel);
  void clear() { offers_.clear(); }
  bool empty() const { return offers_.empty(); }
  TimePoint next_wakeup() const;

 private:
  struct Offer {
    Received event;
    TimePoint until;
  };

  const Peers& peers_;
  Duration wait_;
  std::deque<Offer> offers_;  // in order of arrival
};

}  // namespace mc::node
