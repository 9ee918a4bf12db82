// Calls of cache nodes about replicas of values (door/replica_link.h) over the control plane. They share the links of
// the machines' messages: Links gives what concerns them to this object. Threads of the store wait for answers here,
// and the control loop only hands them over.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>

#include "ctl/ctl.h"
#include "door/replica_link.h"
#include "wire/messages.h"

namespace mc::host {

class ReplicaLinks final : public door::ReplicaLink {
 public:
  Members members() const override;
  /// The wait ends soon after `time` even where the control loop hands nothing over.
  Answers call_all(std::span<const Node> to, const wire::ReplicaCall& call, Duration time,
                   const Suffices& suffices) override;
  void serve(Handler handler) override;

  // ---- for Links, on the thread of the control loop ----
  /// `hub` outlives all calls.
  void open(ctl::Hub& hub);
  void set_name(const std::string& name);
  void set_peers(const std::vector<wire::Peer>& peers);
  /// The links that are up, of each instance the first one.
  void set_links(std::map<InstanceId, ctl::LinkId> links);
  /// True: the message was one of these calls or answers.
  bool take(ctl::Received& received);
  void take(const ctl::RequestFailed& failed);
  /// No call waits any longer, and none begins.
  void close();

 private:
  struct Waiting {
    std::optional<Result<wire::ReplicaAnswer>> answer;
  };
  std::optional<std::string> name_of(const InstanceId& instance) const;

  mutable std::mutex mutex_;  // of the members below, up to handler_
  std::condition_variable answered_;
  ctl::Hub* hub_ = nullptr;  // null: closed
  Members members_;
  bool has_list_ = false;
  std::map<InstanceId, ctl::LinkId> links_;
  std::map<uint64_t, Waiting> waiting_;  // by the number of the request
  std::shared_mutex serving_;            // shared while the handler runs
  Handler handler_;                      // guarded by serving_
};

}  // namespace mc::host
