// Orders of operators about the KV blocks of one node of any role: POST /blocks/evict, /blocks/pin and /blocks/unpin,
// which the verbs of mc-cache send. Each body is a JSON object, and each call is one order of the node's state machine
// (node/orders.h).
//
//   evict  {"prefix": HASH, "tenant": T, "model": M, "older_ms": N, "dry_run": true}      every field may be absent
//   pin    {"prefix": HASH, "for_ms": N}
//   unpin  {"prefix": HASH}
//
// GET /blocks/export?prefix=HASH&first=N gives a part of the chain up to HASH, from its block N on, and POST
// /blocks/import takes one (host/block_stream.h).
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "host/block_stream.h"
#include "http/server.h"
#include "node/services.h"
#include "node/worker.h"

namespace mc::host {

Result<node::EvictBlocks> parse_evict(std::string_view body);
/// At most 30 days.
Result<node::PinBlocks> parse_pin(std::string_view body);
Result<node::UnpinBlocks> parse_unpin(std::string_view body);
/// "prefix=HASH&first=20"; `first` may be absent.
Result<node::ReadBlocks> parse_export(std::string_view query);

class BlockCalls {
 public:
  /// `loop` and `worker` outlive the object. `loop` gives the answers of the worker to answer(). `title` names the node
  /// until a conductor has named it. `pages` is the node's KV buffer.
  BlockCalls(node::MachineLoop& loop, node::Worker& worker, std::string title, std::byte* pages)
      : loop_(loop), worker_(worker), title_(std::move(title)), pages_(pages) {}
  BlockCalls(const BlockCalls&) = delete;
  BlockCalls& operator=(const BlockCalls&) = delete;
  /// Answers the calls under way with 503: the node is stopping.
  ~BlockCalls();

  // Any thread; the lock was checked.
  void evict(const http::Request& request, const http::Responder& out);
  void pin(const http::Request& request, const http::Responder& out);
  void unpin(const http::Request& request, const http::Responder& out);
  void give(const http::Request& request, const http::Responder& out);
  void take(http::Request request, const http::Responder& out);

  // The loop's thread.
  void answer(node::OrderAnswer answer);
  /// Cancels the orders whose clients have left.
  void drop_gone(TimePoint now, node::Actions& out);

 private:
  /// A call whose order is under way.
  struct Call {
    http::Responder out;
    std::shared_ptr<const ReadPart> part;  // of an import
  };
  void begin(const http::Request& request, Call call, decltype(node::BlockOrder::what) what);
  void give_run(const node::BlockRun& run, uint64_t id);
  void end(uint64_t id, std::vector<uint32_t> rotten = {});
  PageMemory memory() const;
  Json named() const;

  node::MachineLoop& loop_;
  node::Worker& worker_;
  const std::string title_;
  std::byte* const pages_;
  std::map<uint64_t, Call> waiting_;  // by order; the loop's thread
  uint64_t count_ = 0;                // the loop's thread
};

}  // namespace mc::host
