// Messages inside a pipeline of prefill processes (Mooncake, arXiv:2407.00079, "Multi-node Prefill"), part of
// wire/messages.h.
//
// The leader allocates the pages, and page i of every member holds the member's layers of the same block. Each member
// READs the activations from the member before it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "wire/sampling.h"

namespace mc::wire {

/// Asks a stage to compute its layers of one chunk and to send the message on to the next stage.
struct StageRun {
  static constexpr std::string_view kType = "stage_run";
  uint64_t run = 0;  // the leader's number of this run
  RequestId req;
  uint32_t attempt = 1;
  std::string leader;
  InstanceId leader_instance;
  // Number of stages by the leader's count. A member with another count has other layers and refuses.
  uint32_t stages = 0;
  std::string decode;  // destination of the KV of every stage
  InstanceId decode_instance;
  uint32_t decode_has = 0;  // leading blocks that the decode node has, so they are not announced
  uint32_t start = 0;       // first position, a multiple of the block size
  uint32_t reused = 0;      // cached tokens before the request's first chunk, named by its StageAnnounce; else 0
  std::vector<uint32_t> tokens;
  std::vector<uint32_t> pages;  // pages of the sequence up to the end of the chunk
  std::string attention;
  bool sample = false;  // the last stage draws the first token
  Sampling sampling;
  std::vector<uint32_t> history;
  uint32_t prompt_tokens = 0;
  std::vector<uint32_t> banned;
  int32_t prompt_logprobs = -1;     // alternatives for each of `targets`, which the last stage reports
  std::vector<uint32_t> targets;    // the prompt tokens that the positions of this chunk predict
  uint64_t activations_offset = 0;  // offset in the sender's KV buffer
  uint32_t activations_crc = 0;
  uint32_t budget_ms = 60000;

  bool operator==(const StageRun&) const = default;
  template <class V>
  void fields(V& v) {
    v("run", run), v("req", req), v("attempt", attempt), v("leader", leader), v("leader_instance", leader_instance);
    v("stages", stages);
    v("decode", decode), v("decode_instance", decode_instance), v("decode_has", decode_has), v("start", start);
    v("reused", reused);
    v("tokens", tokens), v("pages", pages), v("attention", attention), v("sample", sample), v("sampling", sampling);
    v("history", history), v("prompt_tokens", prompt_tokens), v("banned", banned);
    v("prompt_logprobs", prompt_logprobs), v("targets", targets);
    v("activations_offset", activations_offset), v("activations_crc", activations_crc), v("budget_ms", budget_ms);
  }
};

/// The activations have been read or are not needed, so their buffer is free.
struct StageTaken {
  static constexpr std::string_view kType = "stage_taken";
  uint64_t run = 0;

  bool operator==(const StageTaken&) const = default;
  template <class V>
  void fields(V& v) {
    v("run", run);
  }
};

/// The end of one stage's part of a chunk; sent to the leader.
struct StageDone {
  static constexpr std::string_view kType = "stage_done";
  uint64_t run = 0;
  uint32_t first_layer = 0;
  Code code = Code::ok;  // unsupported: the chunk does not fit this stage
  std::string message;
  std::vector<std::vector<uint32_t>> crcs;  // [layer - first_layer][block of the chunk]
  uint32_t token = 0;                       // set by the last stage, when the chunk asked for it
  TokenLogprobs logprobs;
  std::vector<PromptLogprob> prompt_logprobs;  // set by the last stage: one for each of the targets
  std::vector<uint8_t> embedding;              // set by the last stage; see FirstToken

  bool operator==(const StageDone&) const = default;
  template <class V>
  void fields(V& v) {
    v("run", run), v("first_layer", first_layer), v("code", code), v("message", message), v("crcs", crcs);
    v("token", token), v("logprobs", logprobs), v("prompt_logprobs", prompt_logprobs);
    v.later("embedding", embedding);
  }
};

/// The cached blocks at the front of a request. The stage checks its layers of all of them, and announces those from
/// `first_block` on to the decode node.
struct StageAnnounce {
  static constexpr std::string_view kType = "stage_announce";
  RequestId req;
  uint32_t attempt = 1;
  std::string decode;
  InstanceId decode_instance;
  uint32_t first_block = 0;
  std::vector<uint32_t> pages;
  uint32_t first_layer = 0;
  std::vector<std::vector<uint32_t>> crcs;  // [layer - first_layer][page]

  bool operator==(const StageAnnounce&) const = default;
  template <class V>
  void fields(V& v) {
    v("req", req), v("attempt", attempt), v("decode", decode), v("decode_instance", decode_instance);
    v("first_block", first_block), v("pages", pages), v("first_layer", first_layer), v("crcs", crcs);
  }
};

/// Pages of a StageAnnounce whose bytes at this stage do not match their checksums.
struct StageRotten {
  static constexpr std::string_view kType = "stage_rotten";
  std::vector<uint32_t> pages;

  bool operator==(const StageRotten&) const = default;
  template <class V>
  void fields(V& v) {
    v("pages", pages);
  }
};

/// Asks a stage to read its layers of some blocks from another node into its pages. The leader owns the pages until the
/// stage has answered.
struct StageRead {
  static constexpr std::string_view kType = "stage_read";
  uint64_t read = 0;  // from the numbers of the leader's runs
  std::string node;   // holder of the bytes
  InstanceId instance;
  std::vector<uint32_t> pages;
  uint32_t first_layer = 0;
  std::vector<uint64_t> offsets;            // of layer `first_layer` of each block, in the holder's KV buffer
  std::vector<std::vector<uint32_t>> crcs;  // [layer - first_layer][block]
  uint32_t budget_ms = 5000;
  bool urgent = false;

  bool operator==(const StageRead&) const = default;
  template <class V>
  void fields(V& v) {
    v("read", read), v("node", node), v("instance", instance), v("pages", pages), v("first_layer", first_layer);
    v("offsets", offsets), v("crcs", crcs), v("budget_ms", budget_ms), v("urgent", urgent);
  }
};

/// The end of a StageRead. The stage writes into the pages no more.
struct StageReadDone {
  static constexpr std::string_view kType = "stage_read_done";
  uint64_t read = 0;
  Code code = Code::ok;
  std::string message;
  bool refused = false;  // the stage has not begun the read

  bool operator==(const StageReadDone&) const = default;
  template <class V>
  void fields(V& v) {
    v("read", read), v("code", code), v("message", message);
    v.later("refused", refused);
  }
};

/// The leader does not need the bytes of a StageRead any more. The stage ends the read early, and answers it as always.
struct StageReadCancel {
  static constexpr std::string_view kType = "stage_read_cancel";
  uint64_t read = 0;

  bool operator==(const StageReadCancel&) const = default;
  template <class V>
  void fields(V& v) {
    v("read", read);
  }
};

}  // namespace mc::wire
