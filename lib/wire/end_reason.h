// Why a demotion or a copy of blocks ended before all blocks were taken (DemoteDone, CopyDone): kinds, with their words
// on the wire. A receiver takes a word of a newer node as `other`: a reason that it does not know.
#pragma once

#include <cstdint>
#include <string_view>

namespace mc::wire {

enum class DemoteEnd : uint8_t { complete = 0, full, failed, corrupt, draining, layout, unknown_peer, other };
inline constexpr DemoteEnd kDemoteEndLast = DemoteEnd::other;
/// "" for complete.
std::string_view to_string(DemoteEnd end);
DemoteEnd demote_end_from(std::string_view word);

/// The words are those of the reader's own refusals, of Fallback where the holder granted nothing, and of Code where
/// the read failed.
enum class CopyEnd : uint8_t {
  complete = 0,
  invalid,
  unknown_peer,
  busy,
  no_space,
  bad_grant,
  peer_lost,
  timeout,
  lease_timeout,
  read_timeout,
  not_found,
  evicted,
  layout,
  not_published_yet,
  no_pages,
  corrupt,
  unsupported,
  io,
  cancelled,
  disk,
  stage,
  other,
};
inline constexpr CopyEnd kCopyEndLast = CopyEnd::other;
/// "" for complete.
std::string_view to_string(CopyEnd end);
CopyEnd copy_end_from(std::string_view word);

}  // namespace mc::wire
