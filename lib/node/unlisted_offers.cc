#include "node/unlisted_offers.h"

#include <algorithm>

namespace mc::node {

bool UnlistedOffers::keep(const Received& offer, TimePoint now) {
  if (peers_.has(offer.from, offer.instance) || offers_.size() >= kMax) return false;
  offers_.push_back({offer, after(now, wait_)});
  return true;
}

std::vector<Received> UnlistedOffers::take_ready(TimePoint now) {
  std::vector<Received> ready;
  std::deque<Offer> waiting;
  for (Offer& offer : offers_) {
    if (peers_.has(offer.event.from, offer.event.instance) || now >= offer.until)
      ready.push_back(std::move(offer.event));
    else
      waiting.push_back(std::move(offer));
  }
  offers_.swap(waiting);
  return ready;
}

void UnlistedOffers::cancel(const wire::Cancel& cancel) {
  std::erase_if(offers_, [&](const Offer& offer) {
    const wire::RequestSpec& spec = std::get<wire::KvOffer>(offer.event.message).spec;
    return spec.req == cancel.req && spec.attempt <= cancel.attempt;
  });
}

TimePoint UnlistedOffers::next_wakeup() const {
  TimePoint at = kNever;
  for (const Offer& offer : offers_) at = std::min(at, offer.until);
  return at;
}

}  // namespace mc::node
