#include "wire/replica_messages.h"

#include <algorithm>

#include "wire/codec.h"

namespace mc::wire {
namespace {

template <class T>
Bytes encode_map(const T& value) {
  MsgpackWriter out;
  Encoder(out).put_struct(value);
  return out.take();
}

template <class T>
Result<T> parse_map(std::string_view name, std::span<const uint8_t> bytes) {
  constexpr size_t kNodesMax = 256;
  auto nodes = parse_msgpack(bytes, {.bytes = kMessageBytesMax, .nodes = kNodesMax});
  if (!nodes) return within(name, std::move(nodes).error());
  T out;
  MC_CHECK(Decoder(*nodes, name).decode_root(out));
  if (!is_plausible(out.value.set)) return Error{Code::invalid, std::string(name) + ": set is out of range"};
  return out;
}

}  // namespace

bool is_plausible(const ReplicaSet& set) {
  if (set.holders.size() > kReplicasMax || set.copies > kReplicasMax) return false;
  for (size_t i = 0; i < set.holders.size(); ++i) {
    const std::string& holder = set.holders[i];
    if (holder.empty() || holder.size() > kHolderBytesMax) return false;
    if (std::find(set.holders.begin(), set.holders.begin() + static_cast<ptrdiff_t>(i), holder) !=
        set.holders.begin() + static_cast<ptrdiff_t>(i))
      return false;
  }
  return set.is_single() || (set.copies > 0 && set.version > 0);
}

Bytes encode(const ReplicaCall& call) {
  return encode_map(call);
}

Bytes encode(const ReplicaAnswer& answer) {
  return encode_map(answer);
}

Result<ReplicaCall> parse_replica_call(std::span<const uint8_t> bytes) {
  auto call = parse_map<ReplicaCall>(kReplicaCall, bytes);
  if (call && call->op >= kReplicaOps) return Error{Code::invalid, "replica_call: op is out of range"};
  return call;
}

Result<ReplicaAnswer> parse_replica_answer(std::span<const uint8_t> bytes) {
  return parse_map<ReplicaAnswer>(kReplicaAnswer, bytes);
}

}  // namespace mc::wire
