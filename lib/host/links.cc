#include "host/links.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "base/log.h"
#include "node/worker.h"
#include "wire/codec.h"

namespace mc::host {
namespace {
constexpr size_t kKeptMax = 64;  // messages for one peer that is not connected yet
}  // namespace

Result<std::unique_ptr<Links>> Links::open(ctl::HubOptions options, const std::optional<Uri>& conductor,
                                           Duration kept_for) {
  MC_ASSERT(kept_for > Duration(0));
  MC_TRY(hub, ctl::Hub::open(std::move(options)));
  auto links = std::unique_ptr<Links>(new Links(std::move(hub), kept_for));
  if (conductor) {
    MC_TRY(link, links->hub_.connect(*conductor));
    MC_ASSERT(link != 0);  // 0 stands for a process that dials no conductor
    links->conductor_ = link;
  }
  return links;
}

NodeId Links::called(ctl::LinkId link, const InstanceId& instance, const std::string& claimed) const {
  if (conductor_ != 0 && link == conductor_) return NodeId(node::kConductor);
  const auto it = names_.find(instance);
  if (it != names_.end()) return it->second;
  // Only the link we dialled leads to the conductor, whatever somebody who dialled us says. No link leads to operators.
  if (claimed == node::kOperators) return NodeId("?");
  return conductor_ != 0 && claimed == node::kConductor ? NodeId("?") : claimed;
}

void Links::add_link(const InstanceId& instance, ctl::LinkId link) {
  MC_ASSERT(link != 0);
  auto& links = links_[instance];
  if (std::find(links.begin(), links.end(), link) != links.end()) return;
  links.push_back(link);
  publish();
}

/// Gives the links to the calls about values, which other threads make.
void Links::publish() const {
  if (replicas_ == nullptr) return;
  std::map<InstanceId, ctl::LinkId> first;
  for (const auto& [instance, links] : links_) first.emplace(instance, links.front());
  replicas_->set_links(std::move(first));
}

std::optional<node::Event> Links::next() {
  give_up_kept();
  if (!lost_.empty()) {
    node::Event event = std::move(lost_.front());
    lost_.pop_front();
    return event;
  }
  while (auto event = hub_.next())
    if (auto converted = convert(std::move(*event))) return converted;
  return std::nullopt;
}

std::optional<node::Event> Links::convert(ctl::Event event) {
  if (auto* received = std::get_if<ctl::Received>(&event)) {
    const auto& envelope = received->envelope;
    add_link(envelope.instance, received->link);
    if (replicas_ != nullptr && replicas_->take(*received)) return std::nullopt;
    auto message = wire::decode(envelope.type, received->body);
    if (!message) {
      ++bad_messages_;
      log_warn("message dropped", {{"from", envelope.from}, {"type", envelope.type}, {"why", message.error().what}});
      return std::nullopt;
    }
    return node::Received{called(received->link, envelope.instance, envelope.from), envelope.instance,
                          std::move(*message)};
  }
  if (auto* up = std::get_if<ctl::LinkUp>(&event)) {
    add_link(up->instance, up->link);
    if (up->link == conductor_) {
      fatal_ = false;
      flush(std::string(node::kConductor), up->link);
    }
    flush(up->instance.hex(), up->link);
    return std::nullopt;
  }
  if (auto* gone = std::get_if<ctl::LinkLost>(&event)) return on_lost(*gone);
  if (auto* failed = std::get_if<ctl::LinkFailed>(&event)) {
    if (failed->link != conductor_) {
      log_warn("peer unreachable", {{"why", failed->error.what}});
      return std::nullopt;
    }
    fatal_ = failed->fatal;
    failure_ = failed->error;
    log_warn("conductor unreachable", {{"why", failed->error.what}});
  } else if (auto* dropped = std::get_if<ctl::SendFailed>(&event)) {
    on_send_failed(*dropped);
  } else if (auto* request = std::get_if<ctl::RequestFailed>(&event); request && replicas_ != nullptr) {
    replicas_->take(*request);
  }
  return std::nullopt;
}

std::optional<node::Event> Links::on_lost(const ctl::LinkLost& gone) {
  const auto it = links_.find(gone.instance);
  if (it == links_.end()) return std::nullopt;
  MC_ASSERT(!it->second.empty());  // a peer leaves the table with its last link
  const bool spoken_by = it->second.front() == gone.link;
  std::erase(it->second, gone.link);
  const bool last = it->second.empty();
  if (last) links_.erase(it);
  publish();
  // By another link nothing was said that could be lost with it.
  if (!spoken_by && !last) return std::nullopt;
  return node::PeerLost{called(gone.link, gone.instance, gone.name), gone.instance, gone.why};
}

void Links::on_send_failed(const ctl::SendFailed& failed) {
  for (auto it = links_.begin(); it != links_.end(); ++it) {
    auto& [instance, links] = *it;
    MC_ASSERT(!links.empty());
    const auto at = std::find(links.begin(), links.end(), failed.link);
    if (at == links.end()) continue;
    const NodeId name = called(failed.link, instance, "");
    // The peer has left the cluster already. At a stop this is usual: all nodes send their last messages at once.
    // The end of a connection is the end of a node, which the conductor logs.
    if (!name.empty() && failed.error.code != Code::peer_lost) {
      lost(name, instance, "message not sent: " + failed.error.what);
    } else {
      log_debug("message to a peer that left", {{"to", name}, {"why", failed.error.what}});
      lost_.push_back({name.empty() ? "?" : name, instance, failed.error.what});
    }
    // Words of a link that we closed may have come after the closing and brought it back here.
    if (failed.error.code == Code::peer_lost) links.erase(at);
    if (links.empty()) links_.erase(it);
    publish();
    return;
  }
}

void Links::lost(const NodeId& name, const InstanceId& instance, std::string why) {
  log_warn("message lost", {{"to", name}, {"why", why}});
  lost_.push_back({name, instance, std::move(why)});
}

void Links::post(ctl::LinkId link, const node::Send& send) {
  const auto sent = hub_.send(link, wire::type_name(send.message), wire::encode(send.message), send.instance);
  if (!sent) lost(send.to, send.instance, "message not sent: " + sent.error().what);
}

// A hub drops what its link cannot take now. The first words to a peer would be lost that way, so a
// few messages wait here for a while.
void Links::keep(const std::string& target, const node::Send& send) {
  auto& kept = kept_[target];
  if (kept.size() >= kKeptMax)
    return lost(send.to, send.instance,
                "the queue is full: " + std::to_string(kKeptMax) + " messages wait for a control connection");
  kept.push_back({send, after(SystemClock::instance().now(), kept_for_)});
  MC_ASSERT_LE(kept.size(), kKeptMax);
}

void Links::give_up_kept() {
  if (kept_.empty()) return;
  const TimePoint now = SystemClock::instance().now();
  for (auto it = kept_.begin(); it != kept_.end();) {
    MC_ASSERT(!it->second.empty());
    const auto& oldest = it->second.front();
    if (now < oldest.until || oldest.send.to == node::kConductor) {
      ++it;
      continue;
    }
    lost(oldest.send.to, oldest.send.instance,
         "no control connection within " + std::to_string(kept_for_ / 1ms) + " ms");
    it = kept_.erase(it);
  }
}

void Links::flush(const std::string& target, ctl::LinkId link) {
  const auto it = kept_.find(target);
  if (it == kept_.end()) return;
  const auto kept = std::move(it->second);
  kept_.erase(it);
  MC_ASSERT(!kept.empty());
  for (const auto& k : kept) post(link, k.send);
}

void Links::send(const node::Send& send) {
  if (send.to == node::kConductor && conductor_ != 0) {
    const bool up = std::any_of(links_.begin(), links_.end(), [&](const auto& l) {
      return std::find(l.second.begin(), l.second.end(), conductor_) != l.second.end();
    });
    if (!up) {
      kept_.erase(send.to);  // only the newest Hello counts
      return keep(send.to, send);
    }
    return post(conductor_, send);
  }
  const auto it = links_.find(send.instance);
  if (it == links_.end()) {
    if (names_.contains(send.instance)) return keep(send.instance.hex(), send);
    return lost(send.to, send.instance,
                "the conductor names no such peer, and the peer has no control connection to this node");
  }
  MC_ASSERT(!it->second.empty());
  post(it->second.front(), send);
}

void Links::set_peers(const std::vector<wire::Peer>& peers) {
  std::set<std::string> wanted;
  const auto former = std::exchange(names_, {});
  for (const auto& peer : peers) {
    names_[peer.instance] = peer.name;
    wanted.insert(peer.control_uri);
    if (conductor_ == 0 || dialled_.contains(peer.control_uri)) continue;  // workers dial the conductor, not it them
    auto uri = parse_uri(peer.control_uri);
    if (!uri) {
      log_warn("peer has no usable address", {{"peer", peer.name}, {"uri", peer.control_uri}});
      continue;
    }
    if (auto link = hub_.connect(*uri)) dialled_[peer.control_uri] = *link;
  }
  for (auto it = dialled_.begin(); it != dialled_.end();) {
    if (wanted.contains(it->first)) {
      ++it;
      continue;
    }
    (void)hub_.disconnect(it->second);
    for (auto& [instance, links] : links_) {
      // Messages of this link may still be under way, and the hub reports nothing of a link that we closed.
      if (!links.empty() && links.front() == it->second)
        lost_.push_back(
            {former.contains(instance) ? former.at(instance) : "?", instance, "the node has left the cluster"});
      std::erase(links, it->second);
    }
    std::erase_if(links_, [](const auto& l) { return l.second.empty(); });
    it = dialled_.erase(it);
  }
  MC_ASSERT_LE(dialled_.size(), wanted.size());
  if (replicas_ != nullptr) replicas_->set_peers(peers);
  publish();
  for (auto it = kept_.begin(); it != kept_.end();) {
    MC_ASSERT(!it->second.empty());
    const node::Send& first = it->second.front().send;
    if (first.to == node::kConductor || names_.contains(first.instance)) {
      ++it;
      continue;
    }
    lost(first.to, first.instance, "the node has left the cluster");
    it = kept_.erase(it);
  }
}

}  // namespace mc::host
