#include "text/stop.h"

#include <algorithm>

#include "base/errors.h"
#include "unicode/utf8.h"

namespace mc::text {
namespace {

Error bad_stop(std::string what) {
  return user_error(err::kInvalidField, std::move(what), "stop");
}

}  // namespace

StopMatcher::StopMatcher() : nodes_(1) {}

Result<StopMatcher> StopMatcher::build(std::vector<std::string> stops, bool include) {
  if (stops.size() > kStopsMax)
    return bad_stop("text: " + std::to_string(stops.size()) + " stop strings given; the most is " +
                    std::to_string(kStopsMax));
  StopMatcher out;
  out.include_ = include;
  out.stops_ = std::move(stops);
  for (uint32_t i = 0; i < out.stops_.size(); ++i) {
    const std::string& stop = out.stops_[i];
    const std::string name = "text: stop string " + std::to_string(i);
    if (stop.empty()) return bad_stop(name + " is empty");
    if (stop.size() > kStopBytesMax)
      return bad_stop(name + " has " + std::to_string(stop.size()) + " bytes; the most is " +
                      std::to_string(kStopBytesMax));
    if (const auto offset = find_invalid_utf8(stop))
      return bad_stop(name + " is not valid UTF-8 at byte " + std::to_string(*offset));
    out.add(i);
  }
  out.link();
  return out;
}

uint32_t StopMatcher::child(uint32_t node, uint8_t byte) const {
  const auto& next = nodes_[node].next;
  const auto edge = std::lower_bound(next.begin(), next.end(), std::pair<uint8_t, uint32_t>(byte, 0));
  return edge != next.end() && edge->first == byte ? edge->second : kNone;
}

uint32_t StopMatcher::step(uint32_t node, uint8_t byte) const {
  while (true) {
    if (const uint32_t found = child(node, byte); found != kNone) return found;
    if (node == 0) return 0;
    node = nodes_[node].fail;
  }
}

void StopMatcher::add(uint32_t stop_index) {
  uint32_t node = 0;
  for (char c : stops_[stop_index]) {
    const auto byte = static_cast<uint8_t>(c);
    uint32_t next = child(node, byte);
    if (next == kNone) {
      next = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
      nodes_[next].depth = nodes_[node].depth + 1;
      auto& edges = nodes_[node].next;
      edges.insert(std::lower_bound(edges.begin(), edges.end(), std::pair<uint8_t, uint32_t>(byte, 0)), {byte, next});
    }
    node = next;
  }
  if (nodes_[node].stop == kNone) nodes_[node].stop = stop_index;
}

void StopMatcher::link() {
  std::vector<uint32_t> queue{0};  // breadth first: a node's fail link is shallower, so it is settled
  for (size_t i = 0; i < queue.size(); ++i) {
    const uint32_t node = queue[i];
    for (const auto& [byte, next] : nodes_[node].next) {
      nodes_[next].fail = node == 0 ? 0 : step(nodes_[node].fail, byte);
      if (nodes_[next].stop == kNone) nodes_[next].stop = nodes_[nodes_[next].fail].stop;
      queue.push_back(next);
    }
  }
}

std::string StopMatcher::push(std::string_view text) {
  if (stopped()) return {};
  const size_t old = held_.size();
  held_ += text;
  for (size_t i = old; i < held_.size(); ++i) {
    node_ = step(node_, static_cast<uint8_t>(held_[i]));
    if (nodes_[node_].stop == kNone) continue;
    stop_ = nodes_[node_].stop;
    const size_t shown = include_ ? i + 1 : i + 1 - stops_[stop_].size();
    std::string out = held_.substr(0, shown);
    held_.clear();
    return out;
  }
  const size_t shown = held_.size() - nodes_[node_].depth;
  std::string out = held_.substr(0, shown);
  held_.erase(0, shown);
  return out;
}

std::string StopMatcher::pass(std::string_view text) {
  if (stopped()) return {};
  std::string out = std::move(held_);
  out += text;
  held_.clear();
  node_ = 0;
  return out;
}

std::string StopMatcher::flush() {
  std::string out = std::move(held_);
  held_.clear();
  node_ = 0;
  stop_ = kNone;
  return out;
}

}  // namespace mc::text
