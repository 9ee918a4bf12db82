// Requests that wait for their reply, with the link and the deadline of each. Owned by the loop's thread.
#pragma once

#include <map>
#include <vector>

#include "ctl/hub_shared.h"

namespace mc::ctl {

class Requests {
 public:
  struct Request {
    uint64_t id = 0;
    LinkId link = 0;
    TimePoint expires{};
  };

  size_t size() const { return requests_.size(); }
  void add(uint64_t id, LinkId link, TimePoint expires) { requests_[id] = {id, link, expires}; }
  void erase(uint64_t id) { requests_.erase(id); }
  /// Ends request `id` if it was sent on `link`. False: it was sent on another link, has failed, or was never made.
  bool answered(uint64_t id, LinkId link);
  /// Takes out every request of `link`, in the order in which they were made.
  std::vector<Request> take(LinkId link);
  /// Takes out every request whose deadline has come.
  std::vector<Request> take_expired(TimePoint now);
  TimePoint next_expiry() const;

 private:
  std::map<uint64_t, Request> requests_;  // ids grow, so this is also the order in which they were made
};

}  // namespace mc::ctl
