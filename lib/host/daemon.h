// Parts that every daemon has: the ready line, the ready file, the HTTP pages of a worker and their lock.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>

#include "base/cli.h"
#include "base/json.h"
#include "base/metrics.h"
#include "door/bearer.h"
#include "door/store_api.h"
#include "host/limits.h"
#include "host/signals.h"
#include "http/route.h"
#include "http/server.h"

namespace mc::host {

/// Says "ready" once, where the user asked for it: one line on stdout (an object with --json), systemd,
/// --ready-file. The destructor removes the file.
class Readiness {
 public:
  Readiness(std::string program, bool json, std::string ready_file)
      : program_(std::move(program)), json_(json), file_(std::move(ready_file)) {}
  ~Readiness();
  Readiness(const Readiness&) = delete;
  void announce(const std::string& name, const std::string& http, const std::string& control);
  bool announced() const { return announced_; }

 private:
  std::string program_;
  bool json_;
  std::string file_;
  bool announced_ = false;
};

/// /livez /readyz /health /version /metrics /blocks /blocks/* of a worker, /prefill of a prefill node and /v1/store of
/// a cache node, by HTTP and by a Unix socket. The control loop updates what they say.
class StatusPages {
 public:
  struct Bodies {
    uint64_t value_bytes = 0;               // memory of the store of values; 0 = the node has none
    size_t prompt_bytes = 0;                // longest body of /prefill; 0 = the node computes no prompts
    size_t import_bytes = 0;                // longest body of /blocks/import
    door::ReplicaLink* replicas = nullptr;  // the other nodes that keep values; outlives the pages
  };
  /// `values`: the disk of the store of values, or null. MC5006 when the system starts no threads for it.
  /// MC1005 when --http is off loopback and the lock has neither a key nor consent. `lock`, `metrics` and `heartbeat`
  /// outlive the pages.
  static Result<std::unique_ptr<StatusPages>> open(const cli::Args& args, const std::string& socket_path,
                                                   const door::PageLock& lock, Metrics& metrics,
                                                   const Heartbeat& heartbeat, const DescriptorPlan& descriptors,
                                                   const Bodies& bodies, std::unique_ptr<node::ValueDisk> values);
  http::ServerStats stats() const { return server_->stats(); }
  std::string address() const;
  /// `unready` empty = ready. `has_tenants`: the pages that count requests need the lock on loopback too. `name` is
  /// that of the node, or "" before it has one. Any thread.
  void update(std::string unready, bool has_tenants, const std::string& name);
  /// The control loop's answers to /blocks, /blocks/* and /prefill. They are called on a thread of a server, return
  /// soon and may answer later on another thread.
  using Answer = std::function<void(http::Request request, const http::Responder& out)>;
  struct LoopAnswers {
    Answer blocks, lookup, evict, pin, unpin, give, take, prefill;
  };
  /// Empty answers take the earlier ones away, and none of those is running any more on return.
  void answer_with(LoopAnswers answers);
  /// Reads --api-keys for the store; on failure the keys stay as they were.
  Result<void> load_keys(const cli::Args& args);

 private:
  StatusPages() = default;
  std::optional<http::Response> refuse_head(const http::Request& head) const;
  void handle(http::Request request, const http::Responder& out);
  void ask_loop(Answer LoopAnswers::*answer, http::Request request, const http::Responder& out);
  bool is_locked();

  std::mutex mutex_;
  std::string unready_ = "starting", name_;  // guarded by mutex_
  bool has_tenants_ = false;                 // guarded by mutex_
  // A lock of their own: the control loop takes mutex_ several times a second and waits for no answer that runs.
  std::shared_mutex answers_mutex_;  // shared by the answers that run
  LoopAnswers loop_;                 // guarded by answers_mutex_
  size_t prompt_bytes_ = 0, import_bytes_ = 0;
  Metrics* metrics_ = nullptr;
  const door::PageLock* lock_ = nullptr;
  const Heartbeat* heartbeat_ = nullptr;
  std::string host_;
  std::string socket_name_;
  std::unique_ptr<door::StoreApi> store_;          // null: the node has none
  std::unique_ptr<http::Server> server_, socket_;  // last: their threads use the rest
};

/// --http, --allowed-host and --allowed-origin. A default port that is taken moves up to the next free one.
http::ServerOptions server_options(const cli::Args& args, Metrics* metrics, const DescriptorPlan& descriptors);
/// The operators' Unix socket. It has a thread and connections of its own: clients that crowd the HTTP door leave it
/// free.
http::ServerOptions socket_options(const std::string& path, const DescriptorPlan& descriptors);
/// The lock that --insecure and --admin-key-file ask for.
Result<std::unique_ptr<door::PageLock>> open_page_lock(const cli::Args& args);
/// Reads the key file again; a file that cannot be read is logged and the old key stays.
void reload_page_lock(const cli::Args& args, door::PageLock& lock);

}  // namespace mc::host
