// Orders of operators about the KV blocks of one node of any role: POST /blocks/evict, /blocks/pin and /blocks/unpin,
// which the verbs of mc-cache send. Each body is a JSON object, and each call is one order of the node's state machine
// (node/orders.h).
//
//   evict  {"prefix": HASH, "tenant": T, "model": M, "older_ms": N, "dry_run": true}      every field may be absent
//   pin    {"prefix": HASH, "for_ms": N}
//   unpin  {"prefix": HASH}
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "http/server.h"
#include "node/services.h"
#include "node/worker.h"

namespace mc::host {

Result<node::EvictBlocks> parse_evict(std::string_view body);
/// At most 30 days.
Result<node::PinBlocks> parse_pin(std::string_view body);
Result<node::UnpinBlocks> parse_unpin(std::string_view body);

class BlockCalls {
 public:
  /// `loop` and `worker` outlive the object. `loop` gives the answers of the worker to answer(). `title` names the node
  /// until a conductor has named it.
  BlockCalls(node::MachineLoop& loop, node::Worker& worker, std::string title)
      : loop_(loop), worker_(worker), title_(std::move(title)) {}

  // Any thread; the lock was checked.
  void evict(const http::Request& request, const http::Responder& out);
  void pin(const http::Request& request, const http::Responder& out);
  void unpin(const http::Request& request, const http::Responder& out);

  // The loop's thread.
  void answer(node::OrderAnswer answer);
  /// Cancels the orders whose clients have left.
  void drop_gone(TimePoint now, node::Actions& out);

 private:
  void begin(const http::Request& request, const http::Responder& out, decltype(node::BlockOrder::what) what);
  Json named() const;

  node::MachineLoop& loop_;
  node::Worker& worker_;
  const std::string title_;
  std::map<uint64_t, http::Responder> waiting_;  // by order; the loop's thread
  uint64_t count_ = 0;                           // the loop's thread
};

}  // namespace mc::host
