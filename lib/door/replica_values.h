// These functions convert a value with replicas between its form in calls of cache nodes (wire/replica_messages.h) and
// its form in the store of one node.
#pragma once

#include <algorithm>

#include "node/value_store.h"
#include "wire/replica_messages.h"

namespace mc::door {

/// A value as calls between cache nodes describe it.
inline wire::ReplicaValue value_of(const node::ValueInfo& info) {
  wire::ReplicaValue out{.bytes = info.bytes, .crc = info.crc, .durable = info.copy.has_value(), .set = info.replicas};
  if (info.ttl) out.ttl_ms = static_cast<uint64_t>(std::max<int64_t>(*info.ttl / 1ms, 1));
  out.pin_ms = static_cast<uint64_t>(info.pin / 1ms);
  return out;
}

/// A time from a call of another node, bounded to what this node takes.
inline Duration time_of(uint64_t ms) {
  constexpr uint64_t kMost = uint64_t{1000} * 366 * 86'400 * 2;
  return std::chrono::milliseconds(std::min(ms, kMost));
}

inline node::ValueTerms terms_of(const wire::ReplicaValue& value, bool replaces) {
  return {.ttl = value.ttl_ms == 0 ? Duration::max() : time_of(value.ttl_ms),
          .pin = time_of(value.pin_ms),
          .replaces = replaces,
          .durability = !value.durable                 ? node::Durability::d0
                        : value.set.holders.size() > 1 ? node::Durability::d3
                                                       : node::Durability::d2,
          .copies = value.set.copies,
          .replicas = value.set};
}

inline node::ValueInfo info_of(const node::ValueKey& key, const wire::ReplicaValue& value) {
  node::ValueInfo info{.name = key.name, .bytes = value.bytes, .crc = value.crc, .pin = time_of(value.pin_ms)};
  if (value.ttl_ms > 0) info.ttl = time_of(value.ttl_ms);
  info.replicas = value.set;
  return info;
}

inline wire::ReplicaCall call_of(wire::ReplicaOp op, const node::ValueKey& key) {
  wire::ReplicaCall call;
  call.op = static_cast<uint32_t>(op);
  call.tenant = key.tenant;
  call.name = key.name;
  return call;
}

}  // namespace mc::door
