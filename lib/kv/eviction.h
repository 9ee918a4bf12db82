// Contract of an eviction policy: one number for each block, and the smallest number is evicted first. The pool does
// everything else. It offers only blocks that are not held and have no resident children, so a policy cannot break a
// chain (without its head the rest of a chain is useless).
//   to add one: lib/kv/evict_<name>.cc with a `const Eviction`, and its line in kEvictions[] (evictions.cc)
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace mc::kv {

/// The use of a block. Stamps come from the pool's own counter, which counts touches, so they order uses without a
/// clock.
struct Use {
  uint64_t stored = 0;          // stamp when it was published
  uint64_t last_use = 0;        // stamp of the last touch
  uint32_t use_count = 0;       // touches since it was published, the publication included
  uint32_t first_position = 0;  // token position of the block's first token
};

struct Eviction {
  std::string_view name;
  std::string_view summary;
  /// The rank of a block, above 0. The pool calls it when a block is published or touched, and at no other time.
  uint64_t (*rank)(const Use&);
  /// A chain is touched from its first block to its last, so its end counts as used last.
  bool head_first = false;
};

extern const Eviction kLruTail;  // the default
extern const Eviction kLru, kFifo, kLfu, kLengthAware;

/// All policies; the first is the default.
std::span<const Eviction* const> evictions();
/// nullptr when there is none of that name.
const Eviction* find_eviction(std::string_view name);

}  // namespace mc::kv
