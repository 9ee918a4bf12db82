// The records of requests, which `mc-conductor why` shows: where a request went, what each stage took, what had been
// predicted, and which nodes were weighed. Running requests have one, and the requests that ended last. No text is
// kept. Not thread-safe: they belong to the control loop.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "node/node.h"

namespace mc::door {

/// The nodes that a prefix is read from.
Json sources_json(const std::vector<node::FetchSource>& sources);
/// The nodes that the decode node got the prompt's KV from, with the tokens of each; {} if it has not reported them.
Json kv_from_json(const node::RequestSummary& summary);

/// One running request, as far as the front door has seen it.
struct RequestProgress {
  TimePoint submitted{}, first = kNever, last{};  // tokens
  uint32_t prompt_tokens = 0, max_tokens = 0;
  std::string client_id;  // x-request-id
  uint32_t tokens = 0;    // of the answer so far
  std::string tenant;
  int priority = 0;
  node::RequestSummary summary;  // from the first token on
};

class RequestRecords {
 public:
  static constexpr size_t kEndedMax = 2000;  // about 2 KiB each
  static constexpr size_t kMessageBytesMax = 2048;

  void begin(const RequestId& req, RequestProgress progress);
  /// The request must run.
  RequestProgress& running(const RequestId& req) { return running_.at(req); }
  /// Forgets a request that was never submitted.
  void drop(const RequestId& req) { running_.erase(req); }
  /// The request's last reply: its record is kept until kEndedMax later requests have ended, with the first
  /// kMessageBytesMax bytes of an error's message.
  void end(const node::Reply& reply, TimePoint now);
  /// The record under our id, an answer's id (cmpl-X, chatcmpl-X) or the client's x-request-id. Clients repeat their
  /// ids: the newest wins.
  std::optional<Json> find(const std::string& id, TimePoint now) const;
  /// The chief figures of running requests, then of the requests that ended last, newest first.
  Json list(TimePoint now) const;

 private:
  std::map<RequestId, RequestProgress> running_;
  std::deque<std::pair<RequestId, Json>> ended_;
};

}  // namespace mc::door
