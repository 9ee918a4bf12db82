// The errors of calls about values with replicas (door/replicas.h).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/errors.h"
#include "base/peer_error.h"
#include "node/value_store.h"
#include "wire/replica_messages.h"

namespace mc::door {

/// The error that another node answered, with its name.
inline Error told(const std::string& node, const wire::ReplicaAnswer& answer) {
  MC_ASSERT(answer.mc != 0);
  return peer_error(answer.mc, node + ": " + answer.what.substr(0, 1000), "key");
}

inline std::string names(const std::vector<std::string>& nodes) {
  std::string out;
  for (const std::string& node : nodes) out += (out.empty() ? "" : ", ") + node;
  return out;
}

inline Error nowhere(const node::ValueKey& key) {
  return user_error(err::kNotFound, "there is no value \"" + key.name.substr(0, 100) + "\" on any cache node", "key",
                    "mc-cache ls NODE --keys lists the keys of a node");
}

/// Holders cannot be reached, and a change of the value needs them.
inline Error away(const std::vector<std::string>& nodes, std::string next) {
  return user_error(err::kPeerUnreachable,
                    names(nodes) + (nodes.size() == 1 ? " holds" : " hold") +
                        " the value too and cannot be reached, and would bring it back later",
                    "key", std::move(next));
}

}  // namespace mc::door
