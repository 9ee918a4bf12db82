// Prompts that operators ask of one prefill node alone: POST /prefill and mc-prefill ask. The node computes the prompt
// as it does for a conductor, and needs neither a conductor nor a decode node. It answers with the first token.
//
//   {"prompt": [5, 17, 9], "model": "mc-tiny", "logprobs": 5, "no_cache": false}      only "prompt" is required
//   {"node": "p0", "prompt_tokens": 3, "cached_tokens": 0, "computed_tokens": 3, "token": 12, "logprob": -0.8, ...}
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "door/door_pool.h"
#include "http/server.h"
#include "node/services.h"
#include "node/worker.h"

namespace mc::host {

/// The node that is asked.
struct AskedNode {
  std::string title;  // name of the node until a conductor has named it
  std::string model;
  kv::Namespace kv;
  uint32_t context_tokens = 0;
  uint32_t vocab = 0;

  /// Bytes of the longest body; 0 for a node that computes no prompts.
  size_t body_bytes_max() const;
};

struct PrefillAsk {
  std::vector<uint32_t> ids;
  uint32_t logprobs = 5;  // number of most likely first tokens in the answer
  bool no_cache = false;  // neither uses nor leaves cached blocks

  /// Everything in `body` is checked. MC4002 names the field, MC4005 is a prompt beyond the context, MC4006 another
  /// model than the node's. A body with many more values than the context has tokens is MC4005 before it is parsed.
  static Result<PrefillAsk> parse(std::string_view body, const AskedNode& node);
};
/// The remaining time of a request at `now`, counted from its first byte: x-mc-deadline-ms, else a minute. MC4016 when
/// it is over.
Result<Duration> ask_time_left(const http::Request& request, TimePoint now);

class PrefillAsks {
 public:
  /// `loop` and `worker` outlive the object. `loop` gives the messages to node::kOperators to answer().
  PrefillAsks(node::MachineLoop& loop, node::Worker& worker, AskedNode node);
  /// The loop has ended: requests that it has not answered are told that the node is stopping.
  ~PrefillAsks();

  /// Reads the request and gives it to the node. A thread of the server, which has checked the lock. A large body is
  /// read by a pool, because probes of health wait for the server's thread.
  void ask(http::Request request, const http::Responder& out);
  /// Answers the request that the message ends. Loop thread.
  void answer(const wire::Message& message);
  /// Cancels the requests whose clients have left. Loop thread.
  void drop_gone(TimePoint now, node::Actions& out);

 private:
  struct Waiting {
    http::Responder out;
    TimePoint received;
    size_t prompt_tokens = 0;
  };
  void put_in_pool(http::Request request, const http::Responder& out);
  void take(const http::Request& request, const http::Responder& out, const door::DoorPool::TicketPtr& ticket);
  Result<wire::PrefillStart> read(const http::Request& request) const;
  Json result(const wire::FirstToken& first, const Waiting& waiting) const;

  node::MachineLoop& loop_;
  node::Worker& worker_;
  const AskedNode node_;
  std::map<RequestId, Waiting> waiting_;  // the loop's thread
  uint64_t count_ = 0;                    // the loop's thread
  std::optional<door::DoorPool> pool_;    // of a node that computes prompts; last: its threads use the members above
};

}  // namespace mc::host
