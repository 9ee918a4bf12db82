#include "host/replica_links.h"

#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "base/log.h"

namespace mc::host {
namespace {

constexpr Duration kHandOver = 500ms;  // in which the control loop hands over what the hub has reported

Error unreachable(const door::ReplicaLink::Node& node, const std::string& why) {
  return user_error(err::kPeerUnreachable, node.name + " did not answer a call about a value: " + why, "key",
                    "mc-conductor ps shows which nodes are there; send the call again");
}

}  // namespace

door::ReplicaLink::Members ReplicaLinks::members() const {
  const std::lock_guard lock(mutex_);
  return members_;
}

ReplicaLinks::Answers ReplicaLinks::call_all(std::span<const Node> to, const wire::ReplicaCall& call, Duration time,
                                             const Suffices& suffices) {
  const wire::Bytes body = wire::encode(call);
  const TimePoint until = after(after(SystemClock::instance().now(), time), kHandOver);
  Answers out;
  std::map<uint64_t, size_t> asked;  // number of a request -> index of its node
  std::unique_lock lock(mutex_);
  for (const Node& node : to) {
    out.emplace_back(unreachable(node, "there is no control connection to it"));
    const auto link = links_.find(node.instance);
    if (hub_ == nullptr || link == links_.end()) continue;
    // The lock is held until the number is in the table, and the answer comes by take().
    const auto sent = hub_->request(link->second, wire::kReplicaCall, body, time, node.instance);
    out.back() = unreachable(node, sent ? "its answer was not waited for" : sent.error().what);
    if (!sent) continue;
    const bool is_new = waiting_.try_emplace(*sent).second;
    MC_ASSERT(is_new);  // the hub gives each request a number of its own
    asked.emplace(*sent, out.size() - 1);
  }
  bool is_enough = false;
  const auto take_answers = [&] {
    for (auto at = asked.begin(); at != asked.end();) {
      const auto waiting = waiting_.find(at->first);
      MC_ASSERT(waiting != waiting_.end());  // this call alone removes its numbers
      std::optional<Result<wire::ReplicaAnswer>>& answer = waiting->second.answer;
      if (!answer) {
        ++at;
        continue;
      }
      const Node& node = to[at->second];
      out[at->second] = *answer ? std::move(*answer) : unreachable(node, answer->error().what);
      is_enough = is_enough || (suffices && out[at->second] && suffices(*out[at->second]));
      waiting_.erase(waiting);
      at = asked.erase(at);
    }
    return asked.empty() || is_enough;
  };
  if (!answered_.wait_until(lock, until, take_answers))
    for (const auto& [number, index] : asked) out[index] = unreachable(to[index], "no answer came in time");
  for (const auto& [number, index] : asked) waiting_.erase(number);
  MC_ASSERT_EQ(out.size(), to.size());
  return out;
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
  members_.awaits_list = !has_list_;
}

void ReplicaLinks::set_peers(const std::vector<wire::Peer>& peers) {
  const std::lock_guard lock(mutex_);
  has_list_ = true;
  members_.awaits_list = false;
  members_.others.clear();
  for (const wire::Peer& peer : peers)
    if (peer.role == wire::Role::cache && peer.keeps_values) members_.others.push_back({peer.name, peer.instance});
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
