// The reasons why reusable prompt blocks were computed, and why a fetch of blocks was given up: kinds with their data.
// The tables here are the only place with their names and meanings. The wire, JSON, metrics labels, `why` and the
// manual page use them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mc::wire {

enum class MissKind : uint8_t {
  none = 0,
  cold,
  evicted,
  layout,
  salt,
  not_published_yet,
  node_down,
  checksum,
  timeout,
  no_space,
  no_cache,
  prompt_logprobs,
  shorter_than_block,
  tail_partial,
  disk,
  stage,
};

struct MissRow {
  MissKind kind;
  std::string_view name;  // "" for none
  std::string_view meaning;
  std::string_view next;  // next step for the operator
};
/// One row for each kind, in the order of the enum.
std::span<const MissRow> miss_rows();
std::string_view to_string(MissKind kind);
/// The kind of that name; none for an unknown name.
MissKind miss_from(std::string_view name);

/// A run of a prompt's blocks that was computed for one reason.
struct Miss {
  MissKind kind = MissKind::none;
  uint32_t first_block = 0;
  uint32_t block_count = 0;
  std::string node;     // node that missed them, or ""
  uint64_t age_ms = 0;  // evicted: time since then

  bool operator==(const Miss&) const = default;
  template <class V>
  void fields(V& v) {
    v("kind", kind), v("first_block", first_block), v("block_count", block_count), v("node", node);
    v("age_ms", age_ms);
  }
};
/// A text such as "evicted by p0 3.2 s ago".
std::string describe(const Miss& miss);

/// The end of the last fetch that a request gave up. Its blocks were computed instead.
enum class Fallback : uint8_t {
  none = 0,
  peer_lost,
  lease_timeout,
  read_timeout,
  absent,
  evicted,
  layout,
  unknown_peer,
  not_published_yet,
  bad_grant,
  no_pages,
  refused,
  corrupt,
  transfer,
  disk,
  stage,
};

struct FallbackRow {
  Fallback fallback;
  std::string_view name;
  MissKind miss;  // kind of the misses of the blocks that were not fetched
  std::string_view meaning;
};
std::span<const FallbackRow> fallback_rows();
std::string_view to_string(Fallback fallback);
/// The fallback of that name, with or without "fetch:" in front; none for an unknown name.
Fallback fallback_from(std::string_view name);
/// A text such as "fetch:evicted".
std::string describe(Fallback fallback);
MissKind miss_of(Fallback fallback);

}  // namespace mc::wire
