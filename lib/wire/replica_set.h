// The cache nodes that hold one value of the store API.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mc::wire {

inline constexpr uint32_t kReplicasMax = 8;
inline constexpr size_t kHolderBytesMax = 64;  // of a node's name

/// A value without holders belongs to its node alone.
struct ReplicaSet {
  uint64_t version = 0;   // of the bytes and terms; of two values of one key the higher one counts
  uint32_t revision = 0;  // of the holders; counts up with each change of them
  uint32_t copies = 0;    // asked for
  std::vector<std::string> holders;

  bool is_single() const { return holders.empty(); }
  bool has(const std::string& node) const {
    for (const std::string& holder : holders)
      if (holder == node) return true;
    return false;
  }
  bool operator==(const ReplicaSet&) const = default;
  template <class V>
  void fields(V& v) {
    v("version", version), v("revision", revision), v("copies", copies), v("holders", holders);
  }
};

/// Whether a node can have made it: counts and lengths are within their bounds, and no holder is named twice.
bool is_plausible(const ReplicaSet& set);

}  // namespace mc::wire
