// One request on the decode node, shared by Decode and its Batch.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "kv/kv.h"
#include "node/arrivals.h"
#include "node/device_tier.h"
#include "node/held_pages.h"
#include "node/node.h"

namespace mc::node {

/// The blocks of a prompt that come straight from nodes that hold them (node/holder_reads.h, which writes this).
struct FromHolders {
  uint32_t parts = 0;                   // that have not ended
  uint32_t reading = 0;                 // parts whose read may still write into the pages
  uint32_t blocks = 0;                  // that came
  std::vector<wire::NameValue> tokens;  // node -> tokens that came
  std::vector<wire::EndedRead> reads;
  wire::Fallback fallback = wire::Fallback::none;  // why the last part that did not come was given up
  TimePoint began = kNever, ended{};
};

/// The work on a prompt that the decode node computes itself (node/inline_prefills.h).
struct InlineWork {
  TimePoint arrived{}, compute_at{};
  uint64_t run = 0;                         // its chunk under way; 0 = none
  std::vector<std::vector<uint32_t>> crcs;  // [block][layer] of the computed blocks, while the chunk is computed
  std::vector<wire::Miss> misses;           // of the blocks that were not cached when the chunk began
};

struct DecodeRequest {
  enum class Phase : uint8_t { waiting, receiving, loading, computing, running, ended };

  wire::RequestSpec spec;
  uint64_t order = 0;           // order of arrival at this node
  NodeId prefill;               // none of an inlined request
  InstanceId prefill_instance;  // likewise
  TimePoint deadline{};
  Phase phase = Phase::waiting;

  kv::Chain chain;  // names of the prompt's blocks, and of those of the answer whose KV exists
  HeldPages pages;
  DevicePages device;        // where the device is a tier, from the phase `loading` or `computing` on
  uint32_t have_blocks = 0;  // blocks of the prompt that were cached here when the offer was accepted

  std::vector<wire::Source> sources;  // holders that the offer named
  FromHolders from_holders;
  Arrivals arrivals;
  bool complete = false;              // KvComplete has arrived
  std::optional<InlineWork> inlined;  // set: this node computes the prompt
  TimePoint stalled_at = kNever;      // when the request fails because extents are missing and none is being read

  std::vector<uint32_t> answer;  // tokens of the answer, those of earlier attempts included
  uint32_t position = 0;         // number of tokens whose KV exists
  uint32_t told_pages = 0;       // pages that the compute has; 0 = the request has not joined the batch
  uint32_t in_steps = 0;         // steps under way that have a row of the request

  DecodeRequest(const wire::RequestSpec& s, uint32_t block_tokens) : spec(s), chain(s.ns, block_tokens) {}
  uint32_t prompt_tokens() const { return static_cast<uint32_t>(spec.ids.size()) - spec.resumed; }
  /// The chunk of an inlined request: its prompt behind the cached blocks.
  RunChunk chunk(uint32_t block_tokens) const;
  /// Whether all KV of the prompt is here, so that no other node is needed any more.
  bool has_kv() const { return phase == Phase::loading || phase == Phase::running; }
  /// Checksums of a full block of the prompt that was not cached here, one a layer.
  std::vector<uint32_t> crcs(uint32_t block) const { return inlined ? inlined->crcs.at(block) : arrivals.crcs(block); }
  /// Checksums of the first blocks of the prompt, whose KV is in pages of the host, [block][layer].
  std::vector<uint32_t> prompt_crcs(const kv::Pool& pool, uint32_t blocks) const;
  /// The token ids of a full block of the sequence.
  std::vector<uint32_t> block_ids(uint32_t block, uint32_t block_tokens) const;
  /// Whether blocks of the answer may be reused: only where a prefill would compute equal bytes.
  bool publishes_answer() const { return !spec.no_cache && spec.decode_attention == spec.prefill_attention; }
  /// Whether a step or a chunk under way uses the pages.
  bool in_run() const { return in_steps > 0 || (inlined && inlined->run != 0); }
  /// Whether a run uses the pages, or a read may still write into them.
  bool in_use() const { return in_run() || arrivals.reading() || from_holders.reading > 0 || device.load != 0; }
  /// All KV was announced complete, but extents are missing and none is being read: a notify was lost.
  bool stalls() const {
    return phase == Phase::receiving && complete && !arrivals.reading() && from_holders.parts == 0;
  }
  /// The sources of the prompt's KV, when all of it is here.
  wire::KvReport kv_report(uint32_t block_tokens) const;
};

}  // namespace mc::node
