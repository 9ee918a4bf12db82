// Messages about blocks that one node reads from another: leases, demotion to a cache node, and copies of hot prefixes.
// The rules of wire/messages.h hold.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "wire/end_reason.h"
#include "wire/miss.h"

namespace mc::wire {

/// Asks a holder to keep the leading run of `hashes` readable for `ttl_ms`.
struct LeaseRequest {
  static constexpr std::string_view kType = "lease_request";
  uint64_t lease = 0;  // chosen by the reader, unique with its instance
  NamespaceId ns;
  std::vector<BlockHash> hashes;
  uint32_t ttl_ms = 10000;
  uint32_t wait_ms = 0;      // > 0: the holder may wait so long for blocks that are being computed
  bool with_tokens = false;  // the reader does not know the token ids

  bool operator==(const LeaseRequest&) const = default;
  template <class V>
  void fields(V& v) {
    v("lease", lease), v("ns", ns), v("hashes", hashes), v("ttl_ms", ttl_ms), v("wait_ms", wait_ms);
    v.later("with_tokens", with_tokens);
  }
};

/// A block that a peer may READ: the offset of its page in the holder's pool buffer, and the CRC32C of each layer
/// extent.
struct LeasedBlock {
  BlockHash hash;
  BlockHash parent;
  uint64_t generation = 0;
  uint64_t page_offset = 0;
  std::vector<uint32_t> layer_crcs;
  uint32_t first_position = 0;   // position of the block's first token
  std::vector<uint32_t> tokens;  // the block's token ids where the reader asked for them; may be absent

  bool operator==(const LeasedBlock&) const = default;
  template <class V>
  void fields(V& v) {
    v("hash", hash), v("parent", parent), v("generation", generation), v("page_offset", page_offset);
    v("layer_crcs", layer_crcs);
    v.later("first_position", first_position);
    v.later("tokens", tokens);
  }
};

/// The layers of blocks that one member of a pipeline holds. All members hold a block in a page of the same number.
struct HolderPart {
  std::string node;
  InstanceId instance;
  uint32_t first_layer = 0, end_layer = 0;
  uint64_t page_bytes = 0;  // distance of pages in the member's KV buffer, the first of which is at offset 0

  bool operator==(const HolderPart&) const = default;
  template <class V>
  void fields(V& v) {
    v("node", node), v("instance", instance), v("first_layer", first_layer), v("end_layer", end_layer);
    v("page_bytes", page_bytes);
  }
};

/// The leading run that is leased, which may be empty. The lease ends `ttl_ms` after the grant was sent, which was
/// `waited_ms` after the request arrived, or later. So the reader can count it from the request.
struct LeaseGrant {
  static constexpr std::string_view kType = "lease_grant";
  uint64_t lease = 0;
  std::vector<LeasedBlock> blocks;
  uint32_t ttl_ms = 0;
  Fallback reason = Fallback::none;  // why the run is empty
  uint64_t age_ms = 0;               // time since the first block was evicted
  // The members that hold the blocks, in the order of their layers, the sender first. Empty: the sender holds all
  // layers.
  std::vector<HolderPart> parts;
  uint32_t waited_ms = 0;  // for blocks that were being computed or read from disk

  bool operator==(const LeaseGrant&) const = default;
  template <class V>
  void fields(V& v) {
    v("lease", lease), v("blocks", blocks), v("ttl_ms", ttl_ms), v("reason", reason);
    v.later("age_ms", age_ms), v.later("parts", parts), v.later("waited_ms", waited_ms);
  }
};

struct LeaseRelease {
  static constexpr std::string_view kType = "lease_release";
  uint64_t lease = 0;

  bool operator==(const LeaseRelease&) const = default;
  template <class V>
  void fields(V& v) {
    v("lease", lease);
  }
};

/// Asks the holder to keep the blocks of a lease for `ttl_ms` from now on, because their read has not ended. A lease
/// and its renewals have a limit in total, so that a reader that died keeps no blocks for ever.
struct LeaseRenew {
  static constexpr std::string_view kType = "lease_renew";
  uint64_t lease = 0;
  uint32_t round = 0;  // chosen by the reader; counts the renewals of the lease
  uint32_t ttl_ms = 0;

  bool operator==(const LeaseRenew&) const = default;
  template <class V>
  void fields(V& v) {
    v("lease", lease), v("round", round), v("ttl_ms", ttl_ms);
  }
};

/// The answer. The lease ends `ttl_ms` after the renewal arrived. 0: it has ended already, and the reader must not use
/// what it has read since.
struct LeaseRenewed {
  static constexpr std::string_view kType = "lease_renewed";
  uint64_t lease = 0;
  uint32_t round = 0;
  uint32_t ttl_ms = 0;

  bool operator==(const LeaseRenewed&) const = default;
  template <class V>
  void fields(V& v) {
    v("lease", lease), v("round", round), v("ttl_ms", ttl_ms);
  }
};

/// A worker offers blocks that it is about to evict. They stay leased to the cache node for `ttl_ms`.
struct DemoteOffer {
  static constexpr std::string_view kType = "demote_offer";
  uint64_t lease = 0;  // chosen by the offerer
  NamespaceId ns;
  std::string kv_namespace;   // text without salt, so that the cache can open a pool of this page size
  uint64_t page_bytes = 0;    // of a page with all layers
  uint64_t extent_bytes = 0;  // bytes of one layer
  std::vector<LeasedBlock> blocks;
  uint32_t ttl_ms = 10000;
  std::string model, tenant;      // whose blocks these are, as far as the offerer knows
  std::vector<HolderPart> parts;  // as in LeaseGrant

  bool operator==(const DemoteOffer&) const = default;
  template <class V>
  void fields(V& v) {
    v("lease", lease), v("ns", ns), v("kv_namespace", kv_namespace), v("page_bytes", page_bytes);
    v("extent_bytes", extent_bytes), v("blocks", blocks), v("ttl_ms", ttl_ms);
    v.later("model", model), v.later("tenant", tenant), v.later("parts", parts);
  }
};

struct DemoteDone {
  static constexpr std::string_view kType = "demote_done";
  uint64_t lease = 0;
  std::vector<BlockHash> stored;
  DemoteEnd reason = DemoteEnd::complete;  // why the rest was not taken

  bool operator==(const DemoteDone&) const = default;
  template <class V>
  void fields(V& v) {
    v("lease", lease), v("stored", stored), v("reason", reason);
  }
};

/// Asks the receiver to read a hot prefix from `node` and keep it. No request waits for the copy.
struct CopyBlocks {
  static constexpr std::string_view kType = "copy_blocks";
  uint64_t copy = 0;  // chosen by the conductor
  NamespaceId ns;
  std::vector<BlockHash> hashes;  // the whole run from the first block of the prompt on
  std::string node;               // holder of the blocks
  InstanceId instance;

  bool operator==(const CopyBlocks&) const = default;
  template <class V>
  void fields(V& v) {
    v("copy", copy), v("ns", ns), v("hashes", hashes), v("node", node), v("instance", instance);
  }
};

struct CopyDone {
  static constexpr std::string_view kType = "copy_done";
  uint64_t copy = 0;
  uint32_t blocks = 0;                 // number of blocks read
  CopyEnd reason = CopyEnd::complete;  // why none were read

  bool operator==(const CopyDone&) const = default;
  template <class V>
  void fields(V& v) {
    v("copy", copy), v("blocks", blocks), v("reason", reason);
  }
};

}  // namespace mc::wire
