#include "host/replica_links.h"

#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "base/log.h"

namespace mc::host {

door::ReplicaLink::Members ReplicaLinks::members() const {
  const std::lock_guard lock(mutex_);
  return members_;
}

Result<wire::ReplicaAnswer> ReplicaLinks::call(const Node& to, const wire::ReplicaCall& call, Duration time) {
  const auto unreachable = [&](const std::string& why) {
    return user_error(err::kPeerUnreachable, to.name + " did not answer a call about a value: " + why, "key",
                      "mc-conductor ps shows which nodes are there; send the call again");
  };
  wire::Bytes body = wire::encode(call);
  std::unique_lock lock(mutex_);
  const auto link = links_.find(to.instance);
  if (hub_ == nullptr || link == links_.end()) return unreachable("there is no control connection to it");
  // The lock is held until the number is in the table, and the answer comes by take().
  const auto sent = hub_->request(link->second, wire::kReplicaCall, std::move(body), time, to.instance);
  if (!sent) return unreachable(sent.error().what);
  waiting_[*sent];
  answered_.wait(lock, [&] { return waiting_.at(*sent).answer.has_value(); });
  auto node = waiting_.extract(*sent);
  Result<wire::ReplicaAnswer> answer = std::move(*node.mapped().answer);
  if (answer) return answer;
  return unreachable(answer.error().what);
}

void ReplicaLinks::serve(Handler handler) {
  const std::unique_lock lock(serving_);
  handler_ = std::move(handler);
}

void ReplicaLinks::open(ctl::Hub& hub) {
  const std::lock_guard lock(mutex_);
  hub_ = &hub;
}

void ReplicaLinks::set_name(const std::string& name) {
  const std::lock_guard lock(mutex_);
  members_.self = name;
}

void ReplicaLinks::set_peers(const std::vector<wire::Peer>& peers) {
  const std::lock_guard lock(mutex_);
  members_.others.clear();
  for (const wire::Peer& peer : peers)
    if (peer.role == wire::Role::cache) members_.others.push_back({peer.name, peer.instance});
}

void ReplicaLinks::set_links(std::map<InstanceId, ctl::LinkId> links) {
  const std::lock_guard lock(mutex_);
  links_ = std::move(links);
}

std::optional<std::string> ReplicaLinks::name_of(const InstanceId& instance) const {
  const std::lock_guard lock(mutex_);
  for (const Node& node : members_.others)
    if (node.instance == instance) return node.name;
  return std::nullopt;
}

bool ReplicaLinks::take(ctl::Received& received) {
  const wire::Envelope& envelope = received.envelope;
  if (envelope.type == wire::kReplicaAnswer) {
    auto answer = wire::parse_replica_answer(received.body);
    const std::lock_guard lock(mutex_);
    const auto waiting = waiting_.find(envelope.re);
    if (waiting != waiting_.end()) waiting->second.answer = std::move(answer);
    answered_.notify_all();
    return true;
  }
  if (envelope.type != wire::kReplicaCall) return false;
  auto call = wire::parse_replica_call(received.body);
  const auto from = name_of(envelope.instance);
  const std::shared_lock serving(serving_);
  if (!call || !from || !handler_) {
    log_warn("call about a value dropped", {{"from", envelope.from},
                                            {"why", !call   ? call.error().what
                                                    : !from ? std::string("the conductor lists no such cache node")
                                                            : std::string("this node keeps no values")}});
    return true;
  }
  auto reply =
      [this, to = ctl::Received{received.link, envelope, {}, received.arrived, received.deadline}](wire::Bytes body) {
        const std::lock_guard lock(mutex_);
        if (hub_ != nullptr) (void)hub_->reply(to, wire::kReplicaAnswer, std::move(body));
      };
  handler_(*from, std::move(*call), std::move(reply));
  return true;
}

void ReplicaLinks::take(const ctl::RequestFailed& failed) {
  const std::lock_guard lock(mutex_);
  const auto waiting = waiting_.find(failed.id);
  if (waiting == waiting_.end()) return;
  waiting->second.answer = failed.error;
  answered_.notify_all();
}

void ReplicaLinks::close() {
  const std::lock_guard lock(mutex_);
  hub_ = nullptr;
  for (auto& [id, waiting] : waiting_)
    if (!waiting.answer) waiting.answer = Error{Code::cancelled, "the node is stopping"};
  answered_.notify_all();
}

}  // namespace mc::host
