// Calls between cache nodes about values with replicas (door/replicas.h). They travel beside the messages of the
// machines on the same control links: the types of their envelopes are kReplicaCall and kReplicaAnswer. Bodies are
// msgpack maps (wire/codec.h).
//
//   offer    put this value: the receiver reads its bytes from the caller and answers when they are stored
//   read     a part of the bytes that the receiver has lent under `transfer`
//   find     whether the receiver has the value; with `lend` it also lends the bytes
//   release  the bytes of `transfer` are not needed any more
//   remove   remove the value, unless it is newer than `set.version`
//   pin      pin the value for `pin_ms`; 0 = let it go
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "wire/messages.h"
#include "wire/replica_set.h"

namespace mc::wire {

inline constexpr std::string_view kReplicaCall = "replica_call", kReplicaAnswer = "replica_answer";
/// Bytes of a value that one answer carries: heartbeats of the same link wait for no more.
inline constexpr size_t kReplicaPartBytes = size_t{1} << 20;

enum class ReplicaOp : uint32_t { offer, read, find, release, remove, pin };
inline constexpr uint32_t kReplicaOps = 6;

/// A value without its bytes. Times are those that are left.
struct ReplicaValue {
  uint64_t bytes = 0;
  uint32_t crc = 0;
  uint64_t ttl_ms = 0;  // 0 = it does not end
  uint64_t pin_ms = 0;
  bool durable = false;
  ReplicaSet set;

  bool operator==(const ReplicaValue&) const = default;
  template <class V>
  void fields(V& v) {
    v("bytes", bytes), v("crc", crc), v("ttl_ms", ttl_ms), v("pin_ms", pin_ms), v("durable", durable), v("set", set);
  }
};

struct ReplicaCall {
  uint32_t op = 0;  // ReplicaOp
  std::string tenant, name;
  ReplicaValue value;     // of an offer; of remove and pin: its version, and the time of the pin
  bool replaces = false;  // of an offer: another value of the key gives way
  bool lend = false;      // of find
  uint64_t transfer = 0;  // of offer, read and release
  uint64_t offset = 0;    // of read
  bool begins = false;    // of find: the cluster has values with replicas, or is about to have one

  bool operator==(const ReplicaCall&) const = default;
  template <class V>
  void fields(V& v) {
    v("op", op), v("tenant", tenant), v("name", name), v("value", value), v("replaces", replaces), v("lend", lend);
    v("transfer", transfer), v("offset", offset);
    v.later("begins", begins);
  }
};

struct ReplicaAnswer {
  uint32_t mc = 0;  // number of the error; 0 = done
  std::string what;
  // The value that the node has, in the answer to a find and to a refused offer. Without holders its version is that of
  // a recent removal.
  ReplicaValue value;
  bool changed = false;   // of an offer: the node did not have the value
  bool replaced = false;  // of an offer: the key had another value
  uint64_t transfer = 0;  // of find
  Bytes data;             // of read
  bool has_begun = true;  // as far as the node has learnt, the cluster may have values with replicas

  bool operator==(const ReplicaAnswer&) const = default;
  template <class V>
  void fields(V& v) {
    v("mc", mc), v("what", what), v("value", value), v("changed", changed), v("replaced", replaced);
    v("transfer", transfer), v("data", data);
    v.later("has_begun", has_begun);
  }
};

Bytes encode(const ReplicaCall& call);
Bytes encode(const ReplicaAnswer& answer);
/// Code::corrupt or Code::invalid, naming the fault.
Result<ReplicaCall> parse_replica_call(std::span<const uint8_t> bytes);
Result<ReplicaAnswer> parse_replica_answer(std::span<const uint8_t> bytes);

}  // namespace mc::wire
