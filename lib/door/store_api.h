// The HTTP door of a cache node's store of values (stored_values.h); store_request.h has the requests. Calls come
// from the threads of the HTTP servers. A mutex guards the state machine, which is held for the time of a look-up,
// while bytes are copied and summed outside it. Requests that may wait for a disk run on threads of a pool, so that
// their flushes are shared and neither the HTTP threads nor the node's control loop wait.
//
// Two kinds of clients may call: one with the API key of a tenant (--api-keys), for the values of that tenant; and one
// that the page lock admits (the Unix socket, the admin key, --insecure pages), for the tenant that its query names.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/json.h"
#include "base/metrics.h"
#include "door/api_keys.h"
#include "door/bearer.h"
#include "door/door_pool.h"
#include "door/replicas.h"
#include "door/store_request.h"
#include "door/stored_values.h"
#include "http/server.h"
#include "node/value_store.h"

namespace mc::door {

/// Bytes of answers that clients have not taken yet. Calls may come from any thread.
class AnswersUnderWay {
 public:
  /// False: they do not fit beside those of all tenants, or of this one. The only answer of a tenant always fits its
  /// share.
  bool add(const std::string& tenant, uint64_t bytes, uint64_t most, uint64_t tenant_most);
  void remove(const std::string& tenant, uint64_t bytes);

 private:
  std::mutex mutex_;
  uint64_t total_ = 0;
  std::map<std::string, uint64_t> by_tenant_;  // without tenants that have none
};

class StoreApi {
 public:
  /// Bytes of answers that clients have not taken yet, beyond which a get is told to come again: of all tenants, and of
  /// one.
  static constexpr uint64_t kAnswersMax = uint64_t{256} << 20, kTenantAnswersMax = kAnswersMax / 2;

  /// `lock` and `clock` outlive it. std::system_error when there is a disk and the system gives no threads.
  StoreApi(const PageLock& lock, const node::ValueLimits& limits, const Clock& clock = SystemClock::instance(),
           std::unique_ptr<node::ValueDisk> disk = nullptr);
  /// Values may have replicas on other nodes from now on. Before the first request; `link` outlives the object.
  /// std::system_error when the system gives no threads.
  void join(ReplicaLink& link, const node::ReplicaKeeper::Options& options);
  /// null: no tenant has a key.
  void set_keys(std::shared_ptr<const ApiKeys> keys);
  /// Whether tenants have keys. Then counts of calls show what each of them does.
  bool has_keys() const;
  /// The refusal of a request without its key; for ServerOptions::refuse_head.
  std::optional<http::Response> refuse_head(const http::Request& head) const;
  /// Answers at once, or on a thread of the pool. `key` is "" for a listing or a batch. When memory runs out on a
  /// thread of the pool, only this request fails.
  void handle(http::Request request, std::string key, const http::Responder& out);
  /// Removes what has expired, and sets the metrics. A few times a second.
  void update(Metrics& metrics);
  /// The largest body of a request: a value, or a batch of that size and its line.
  size_t body_bytes_max() const { return static_cast<size_t>(limits_.value_bytes_max) + kStoreBatchLineMax; }

 private:
  void open_pool();
  struct Outcome;
  struct Call;
  std::optional<ApiKeys::Grant> grant_of(const http::Request& request) const;
  Result<std::string> tenant_of(const http::Request& request) const;
  using Later = StoredValues::Later;
  bool may_wait(const http::Request& request, std::string_view key);
  void submit(http::Request request, std::string key, const http::Responder& out);
  void run(const http::Request& request, std::string_view key, const http::Responder& out, TimePoint until,
           const DoorPool::TicketPtr& ticket);
  http::Response answer_any(const http::Request& request, std::string_view key, Call& call);
  Result<http::Response> answer(const http::Request& request, std::string_view key, Call& call);
  Result<http::Response> answer_one(const std::string& tenant, const StoreOp& op, Call& call);
  Result<http::Response> answer_batch(const std::string& tenant, std::string_view body, Call& call);
  Result<http::Response> list(const std::string& tenant, const StoreListing& listing);
  Result<Outcome> perform(const std::string& tenant, const StoreOp& op, Call& call);
  Error batch_is_full() const;
  Result<Outcome> perform_in_batch(const std::string& tenant, const StoreOp& op, Call& call, size_t answered);
  Result<Outcome> put(const std::string& tenant, const StoreOp& op, Call& call);
  Result<Outcome> get(const std::string& tenant, const StoreOp& op, Call& call);
  bool has_replicas(const node::ValueKey& key);
  static bool defers(Call& call);
  bool may_be_shared(const node::ValueKey& key);
  bool has_replicas_anywhere(const node::ValueKey& key, const Call& call);
  Result<StoredValues::Found> get_anywhere(const node::ValueKey& key, const StoreOp& op, Call& call);
  Result<node::ValueInfo> find_anywhere(const node::ValueKey& key, Call& call);
  Result<Outcome> relocate(const std::string& tenant, const StoreOp& op, Call& call);
  Result<void> remove(const node::ValueKey& key, const StoreOp& op, Call& call);
  Result<void> pin(const node::ValueKey& key, Duration time, Call& call);
  Result<http::Response> answer_member(const std::string& tenant, const StoreOp& op, Outcome& got, http::Response out,
                                       Call& call);
  Result<void> verify(const std::string& tenant, const StoreOp& op, Outcome& got, Call& call);
  std::shared_ptr<const void> reserve(const std::string& tenant, uint64_t bytes);

  const PageLock& lock_;
  const node::ValueLimits limits_;
  StoredValues values_;
  mutable std::mutex mutex_;             // of keys_
  std::shared_ptr<const ApiKeys> keys_;  // the keys themselves do not change
  std::shared_ptr<AnswersUnderWay> answering_;
  std::atomic<bool> dropping_{false};  // a job of drop_unneeded() waits or runs
  const Clock& clock_;
  std::unique_ptr<Replicas> replicas_;  // null: this node alone has its values
  std::unique_ptr<DoorPool> pool_;      // null without a disk and replicas; last: its threads use the rest
};

}  // namespace mc::door
