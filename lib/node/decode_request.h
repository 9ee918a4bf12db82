// One request on the decode node, as Decode and its Batch share it.
#pragma once

#include <memory>
#include <vector>

#include "kv/kv.h"
#include "node/arrivals.h"
#include "node/held_pages.h"
#include "node/node.h"

namespace mc::node {

struct DecodeRequest {
  enum class Phase : uint8_t { waiting, receiving, running, ended };

  wire::RequestSpec spec;
  uint64_t order = 0;  // of arrival at this node
  NodeId prefill;
  InstanceId prefill_instance;
  TimePoint deadline{};
  Phase phase = Phase::waiting;

  kv::Chain chain;  // of all tokens whose KV exists
  HeldPages pages;
  uint32_t have_blocks = 0;  // found here when accepted

  Arrivals arrivals;
  bool complete = false;          // KvComplete came
  TimePoint stalled_at = kNever;  // complete but extents missing, and nothing on its way: give up then

  std::vector<uint32_t> answer;  // answered tokens, earlier attempts included
  uint32_t position = 0;         // tokens whose KV exists
  uint32_t told_pages = 0;       // pages that the compute has; 0 = the request has not joined the batch there
  bool in_step = false;

  DecodeRequest(const wire::RequestSpec& s, uint32_t block_tokens) : spec(s), chain(s.ns, block_tokens) {}
  uint32_t prompt_tokens() const { return static_cast<uint32_t>(spec.ids.size()) - spec.resumed; }
  /// Complete, but extents are missing and none is being read: a notify was lost.
  bool stalls() const { return phase == Phase::receiving && complete && !arrivals.reading(); }
};

}  // namespace mc::node
