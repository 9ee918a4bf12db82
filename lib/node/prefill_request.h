// One request on a prefill node: its prompt, the pages that hold its KV, and its progress.
//
//   queued --> preparing --> computing --> handing_over --> ended
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "node/device_tier.h"
#include "node/held_pages.h"
#include "node/node.h"
#include "node/pipeline.h"
#include "node/prefix_fetches.h"
#include "node/reason.h"
#include "sched/cost.h"

namespace mc::node {

/// The decode node of a request, which reads the KV of the prompt from this node.
struct DecodePartner {
  NodeId node;
  InstanceId instance;
  bool offered = false, accepted = false;
  std::vector<wire::Source> sources;  // other nodes that it reads blocks from; for its offer
  uint32_t has = 0;                   // number of leading blocks that it holds already
  kv::LeaseId lease = 0;              // its lease of the request's pages; 0 = none
};

struct PrefillTimes {
  TimePoint arrived{}, deadline{}, prepare_at{}, accepted_at{}, compute_at{}, computed_at{};
};

/// The leading blocks of a prompt that are not computed, as counted when computing started.
struct CachedPrefix {
  uint32_t blocks = 0;
  uint32_t remote = 0;             // part of `blocks` that was fetched for this request
  uint32_t disk = 0;               // part of `blocks` that was loaded from disk for this request
  std::vector<wire::Miss> misses;  // miss reasons of the blocks after the prefix
};

/// The chunks of a prompt. The chunk under way is [next, end).
struct ChunkProgress {
  uint32_t next = 0;  // first token that is not computed yet
  uint32_t end = 0;
  uint64_t run = 0;  // number of the chunk under way; 0 = none
  uint32_t chunks = 0;
  double share = 1;  // of the time of the pass
  ChunkFlow flow;    // chunks that later stages have not finished
};

/// A prefix whose later layers arrive while the first chunk is computed (Mooncake 5.2, "Layer-wise Prefill"). No extent
/// is announced to the decode node until all have arrived, because a block that does not arrive is computed, and its
/// bytes may differ.
struct ArrivingPrefix {
  uint32_t here = 0;              // number of leading blocks that were here when computing started
  uint32_t layers = 0;            // number of leading layers that were reported to the compute
  bool failed = false;            // a block does not come: the run under way has been cancelled
  std::vector<LayerDone> sealed;  // layers of the chunk that are not announced yet
};

struct PrefillRequest {
  enum class Phase : uint8_t { queued, preparing, computing, handing_over, ended };

  wire::RequestSpec spec;
  bool alone = false;  // operators ask this node: the request ends with its first token and has no decode node
  Phase phase = Phase::queued;
  DecodePartner decode;
  PrefillTimes times;
  std::vector<wire::Source> sources;
  std::vector<BlockHash> hashes;  // names of the full blocks of spec.ids
  uint32_t reusable = 0;          // number of leading blocks that may come from a cache
  HeldPages pages;
  DevicePages device;  // while the request computes, where the device is a tier
  CachedPrefix prefix;
  std::optional<ArrivingPrefix> arriving;
  uint64_t loan = 0;  // number of the pages lent by the fetch (PrefixFetches::lend); 0 = none were lent
  ChunkProgress work;
  std::vector<std::vector<uint32_t>> crcs;  // [block][layer] of computed blocks, and of those that arrived meanwhile

  uint32_t tokens() const { return static_cast<uint32_t>(spec.ids.size()); }
  std::span<const BlockHash> reusable_hashes() const { return std::span(hashes).first(reusable); }
  BlockHash parent(uint32_t block) const { return block == 0 ? BlockHash{} : hashes[block - 1]; }
  /// Whether the prompt ends with the chunk under way.
  bool is_last_chunk() const { return work.end == tokens(); }
  /// The prompt tokens that the chunk under way predicts. Empty unless the client asked for log-probabilities of
  /// the prompt.
  std::vector<uint32_t> targets() const;
  /// The chunk under way, for this node's compute.
  RunChunk chunk(uint32_t block_tokens) const;
  /// The chunk under way, for the later stages of a pipeline.
  wire::StageRun stage_run(uint32_t block_tokens) const;
  /// The cached prefix, for the stage that holds these layers of it.
  wire::StageAnnounce stage_announce(const kv::Pool& pool, LayerRange layers) const;
  /// The first token of the answer and the report of the prefill.
  wire::FirstToken first_token(const SampledToken& sampled, const PrefixFetches::Outcome& fetched,
                               uint32_t block_tokens, TimePoint now) const;
  /// The log-probabilities of the prompt tokens after `start`, the chunk's first token.
  wire::PromptLogprobs prompt_logprobs(uint32_t start, std::vector<wire::PromptLogprob> rows) const {
    return {spec.req, spec.attempt, start + 1, std::move(rows)};
  }
  /// Books a sealed extent of `block`. True when the decode node needs it.
  bool seal(uint32_t block, uint32_t layer, uint32_t crc);
};

/// The stage of an unfinished request, for messages about its end.
RequestStage stage_of(const PrefillRequest& r, const PrefixFetches& fetches);

/// Whether a prefix is on its way, and the first chunk takes longer to compute than the rest of the way is expected to
/// take.
bool hides_the_rest(const PrefillRequest& r, const PrefixFetches& fetches, const sched::Cost& cost,
                    uint32_t block_tokens, uint32_t chunk_tokens, TimePoint now);

/// Predicted seconds of computing the prompt behind what is cached of it now, or computed.
double predicted_s(const PrefillRequest& r, const DiskTier& disk, const Shelf& shelf, const sched::Cost& cost);

/// The token ids of a full block of the prompt.
std::vector<uint32_t> block_ids(const PrefillRequest& request, uint32_t block, uint32_t block_tokens);

}  // namespace mc::node
