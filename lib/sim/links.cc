#include "sim/links.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::sim {

Links::Links(size_t ends, double bytes_per_s) : bytes_per_s_(bytes_per_s), out_(ends), in_(ends) {
  MC_ASSERT(bytes_per_s > 0);
}

uint32_t Links::start(double now_s, uint32_t from, uint32_t to, double bytes, double cap, std::vector<End>& moved) {
  uint32_t id = static_cast<uint32_t>(transfers_.size());
  if (free_.empty()) {
    transfers_.push_back({});
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Transfer& t = transfers_[id];
  t.from = from, t.to = to, t.left = bytes, t.rate = 0, t.cap = cap, t.since_s = now_s, t.active = true;
  moved_bytes_ += bytes;
  out_[from].push_back(id);
  in_[to].push_back(id);
  update(now_s, from, to, moved);
  return id;
}

void Links::update(double now_s, uint32_t from, uint32_t to, std::vector<End>& moved) {
  const auto refresh = [&](uint32_t id) {
    Transfer& t = transfers_[id];
    const double rate = std::min({bytes_per_s_ / static_cast<double>(out_[t.from].size()),
                                  bytes_per_s_ / static_cast<double>(in_[t.to].size()), t.cap});
    if (rate == t.rate) return;
    t.left = std::max(0.0, t.left - t.rate * (now_s - t.since_s));
    t.since_s = now_s;
    t.rate = rate;
    moved.push_back({id, ++t.version, now_s + t.left / rate});
  };
  for (const uint32_t id : out_[from]) refresh(id);
  for (const uint32_t id : in_[to]) refresh(id);
}

bool Links::finish(const End& end, std::vector<End>& moved) {
  Transfer& t = transfers_[end.transfer];
  if (!t.active || t.version != end.version) return false;
  t.active = false;
  ++t.version;
  std::erase(out_[t.from], end.transfer);
  std::erase(in_[t.to], end.transfer);
  free_.push_back(end.transfer);
  update(end.at_s, t.from, t.to, moved);
  return true;
}

double Links::leaving_bytes(uint32_t end, double now_s) const {
  double sum = 0;
  for (const uint32_t id : out_[end]) {
    const Transfer& t = transfers_[id];
    sum += std::max(0.0, t.left - t.rate * (now_s - t.since_s));
  }
  return sum;
}

}  // namespace mc::sim
