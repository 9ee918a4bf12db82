#include "ctl/hub_requests.h"

#include <algorithm>

namespace mc::ctl {
namespace {

template <class Condition>
std::vector<Requests::Request> take_if(std::map<uint64_t, Requests::Request>& requests, Condition condition) {
  std::vector<Requests::Request> taken;
  std::erase_if(requests, [&](const auto& entry) {
    if (!condition(entry.second)) return false;
    taken.push_back(entry.second);
    return true;
  });
  return taken;
}

}  // namespace

bool Requests::answered(uint64_t id, LinkId link) {
  const auto request = requests_.find(id);
  if (request == requests_.end() || request->second.link != link) return false;
  requests_.erase(request);
  return true;
}

std::vector<Requests::Request> Requests::take(LinkId link) {
  return take_if(requests_, [&](const Request& r) { return r.link == link; });
}

std::vector<Requests::Request> Requests::take_expired(TimePoint now) {
  return take_if(requests_, [&](const Request& r) { return r.expires <= now; });
}

TimePoint Requests::next_expiry() const {
  TimePoint at = kNever;
  for (const auto& [id, request] : requests_) at = std::min(at, request.expires);
  return at;
}

}  // namespace mc::ctl
