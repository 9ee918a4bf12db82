#include "sim/links.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::sim {

Links::Links(size_t ends, double bytes_per_s)
    : bytes_per_s_(bytes_per_s), out_share_(ends), in_share_(ends), out_(ends), in_(ends) {
  MC_ASSERT(bytes_per_s > 0);
}

// At equal times the lower number is first, so that the order does not depend on the history of the heap.
bool Links::before(uint32_t a, uint32_t b) const {
  const double x = transfers_[a].end_s, y = transfers_[b].end_s;
  return x != y ? x < y : a < b;
}

void Links::put(size_t place, uint32_t id) {
  heap_[place] = id;
  transfers_[id].place = place;
}

void Links::sift(size_t place) {
  const uint32_t id = heap_[place];
  for (; place > 0 && before(id, heap_[(place - 1) / 2]); place = (place - 1) / 2) put(place, heap_[(place - 1) / 2]);
  for (;;) {
    size_t child = 2 * place + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && before(heap_[child + 1], heap_[child])) ++child;
    if (!before(heap_[child], id)) break;
    put(place, heap_[child]);
    place = child;
  }
  put(place, id);
}

uint32_t Links::start(double now_s, uint32_t from, uint32_t to, double bytes, double cap) {
  uint32_t id = static_cast<uint32_t>(transfers_.size());
  if (free_.empty()) {
    transfers_.push_back({});
  } else {
    id = free_.back();
    free_.pop_back();
  }
  transfers_[id] = {from, to, heap_.size(), bytes, 0, cap, now_s, kNever};
  heap_.push_back(id);
  moved_bytes_ += bytes;
  out_[from].push_back(id);
  in_[to].push_back(id);
  update(now_s, from, to);
  return id;
}

double Links::share_of(const std::vector<uint32_t>& link) const {
  double share = bytes_per_s_ / static_cast<double>(link.size());
  for (size_t below = 0;;) {  // each round finds more streams below the share, or ends
    double slow = 0;
    size_t count = 0;
    for (const uint32_t id : link)
      if (transfers_[id].cap <= share) slow += transfers_[id].cap, ++count;
    if (count == below || count == link.size()) return share;
    below = count;
    share = (bytes_per_s_ - slow) / static_cast<double>(link.size() - count);
  }
}

void Links::update(double now_s, uint32_t from, uint32_t to) {
  out_share_[from] = share_of(out_[from]), in_share_[to] = share_of(in_[to]);
  const auto refresh = [&](uint32_t id) {
    Transfer& t = transfers_[id];
    const double rate = std::min({out_share_[t.from], in_share_[t.to], t.cap});
    if (rate == t.rate) return;
    t.left = std::max(0.0, t.left - t.rate * (now_s - t.since_s));
    t.since_s = now_s;
    t.rate = rate;
    t.end_s = now_s + t.left / rate;
    sift(t.place);
  };
  for (const uint32_t id : out_[from]) refresh(id);
  for (const uint32_t id : in_[to]) refresh(id);
}

void Links::remove(double now_s, uint32_t id) {
  const Transfer t = transfers_[id];
  const uint32_t last = heap_.back();
  heap_.pop_back();
  if (last != id) {
    put(t.place, last);
    sift(t.place);
  }
  std::erase(out_[t.from], id);
  std::erase(in_[t.to], id);
  free_.push_back(id);
  update(now_s, t.from, t.to);
}

uint32_t Links::finish_next() {
  MC_ASSERT(!heap_.empty());
  const uint32_t id = heap_.front();
  remove(transfers_[id].end_s, id);
  return id;
}

void Links::stop(double now_s, uint32_t end) {
  for (std::vector<uint32_t>* link : {&out_[end], &in_[end]})
    while (!link->empty()) {
      const Transfer& t = transfers_[link->back()];
      moved_bytes_ -= std::max(0.0, t.left - t.rate * (now_s - t.since_s));
      remove(now_s, link->back());
    }
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
