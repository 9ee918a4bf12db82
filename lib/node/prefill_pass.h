// The pass of a prefill node's compute, which several short prompts may share.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "node/prefill_request.h"

namespace mc::node {

/// The room of a pass. Each of its prompts ends in it, and all of their pages are on a device at the same time.
class PassRoom {
 public:
  static constexpr size_t kRequestsMax = 16;
  struct Limits {
    uint32_t tokens = 0;  // that are computed; 0: one prompt has the pass alone
    uint32_t context_tokens = 0;
    uint32_t block_tokens = 64;
  };
  using Ptr = std::shared_ptr<PrefillRequest>;

  /// `computing`: the requests of the pass; they are not changed.
  PassRoom(const Limits& limits, std::span<const Ptr> computing);
  /// Whether the requests of the pass may have another one beside them.
  bool is_shared() const { return is_shared_; }
  /// Whether there is room for a request of which `here` blocks are cached. A block that the pass computes is not
  /// computed twice: such a request waits, and reuses it.
  bool takes(const PrefillRequest& r, uint32_t here) const;

 private:
  Limits limits_;
  std::span<const Ptr> computing_;
  bool is_shared_ = false;
  uint32_t tokens_ = 0, blocks_ = 0;
};

/// Divides the time of a pass among its requests by their tokens.
void share_time(std::span<const PassRoom::Ptr> computing);

/// The index of the last RunChunk among the actions, which have one.
size_t last_run(const Actions& actions);

}  // namespace mc::node
