// The doctor's visits: connects to a peer as a node would, over each transport that could carry.
#include <algorithm>

#include "base/assert.h"
#include "base/errors.h"
#include "base/units.h"
#include "transports/transports.h"
#include "verbs/doctor.h"

namespace mc::verbs {
namespace {

std::string scheme_of(const std::string& uri) {
  return uri.substr(0, uri.find("://"));
}

const xfer::TransportEntry* entry_of(std::string_view scheme) {
  for (const auto* entry : xfer::transports())
    if (entry->scheme == scheme) return entry;
  return nullptr;
}

/// "10.0.0.2", "10.0.0.2:7790", "fe80::1" or a URI as it is.
std::string uri_of(const std::string& peer, uint16_t port) {
  MC_ASSERT(!peer.empty());
  if (peer.find("://") != std::string::npos) return peer;
  const auto colons = std::count(peer.begin(), peer.end(), ':');
  if (colons > 1 && peer.front() != '[') return "tcp://[" + peer + "]:" + std::to_string(port);
  const bool has_port = peer.front() == '[' ? peer.find("]:") != std::string::npos : colons == 1;
  return "tcp://" + peer + (has_port ? "" : ":" + std::to_string(port));
}

PeerTrouble trouble_of(int mc) {
  return mc == err::kAuthRequired ? PeerTrouble::no_secret : PeerTrouble::other;
}

PeerTrouble trouble_of(const xfer::Event& event) {
  if (event.kind == xfer::Event::Kind::peer_up) return PeerTrouble::none;
  if (event.mismatch == wire::Mismatch::secret) return PeerTrouble::no_secret;
  return event.no_listener ? PeerTrouble::no_listener : PeerTrouble::other;
}

struct Visit {
  PeerCheck check;
  xfer::Descriptor local;
  std::shared_ptr<const xfer::Descriptor> remote;  // null: not reached
};

/// Until the peer is up, or lost for good.
void await(xfer::Engine& engine, xfer::PeerId peer, TimePoint deadline, Visit& visit) {
  MC_ASSERT(peer != xfer::PeerId::none && !visit.check.usable);
  const TimePoint began = SystemClock::instance().now();
  std::vector<xfer::Event> events;
  visit.check.reason = "not connected within " + human_duration(deadline - began);
  // The engine reports at its deadline at the latest; the extra second is for a busy machine.
  while (SystemClock::instance().now() < deadline + 1s) {
    events.clear();
    (void)engine.poll(events, deadline + 1s);
    for (const auto& event : events) {
      if (event.peer != peer) continue;
      visit.check.reason = event.text;
      visit.check.trouble = trouble_of(event);
      if (event.kind == xfer::Event::Kind::peer_lost) return;
      if (event.kind != xfer::Event::Kind::peer_up) continue;
      visit.check.usable = true;
      visit.check.connect_ms = to_seconds(SystemClock::instance().now() - began) * 1e3;
      visit.remote = engine.descriptor(peer);
      return;
    }
  }
}

Visit visit(const std::string& peer, const std::string& uri, const DoctorPlan& plan) {
  MC_ASSERT(plan.timeout > Duration(0));
  Visit out;
  out.check = {.peer = peer, .uri = uri, .transport = scheme_of(uri)};
  if (entry_of(out.check.transport) == nullptr) {
    out.check.reason = "this program has no transport named " + out.check.transport;
    return out;
  }
  xfer::Options options = plan.options;
  options.name = "doctor";
  options.transport = out.check.transport;
  auto engine = xfer::open_engine(options);
  if (!engine) {
    out.check.reason = "not usable here: " + engine.error().what;
    out.check.trouble = trouble_of(engine.error().mc);
    return out;
  }
  const auto described = (*engine)->describe();
  if (auto local = wire::decode_descriptor(described)) out.local = std::move(*local);
  const TimePoint deadline = SystemClock::instance().now() + plan.timeout;
  auto id = (*engine)->connect(uri, deadline);
  if (id) {
    await(**engine, *id, deadline, out);
  } else {
    out.check.reason = id.error().what;
    out.check.trouble = trouble_of(id.error().mc);
  }
  return out;
}

std::string next_step(const PeerCheck& check, const DoctorPlan& plan) {
  MC_ASSERT(!check.usable);
  if (check.trouble == PeerTrouble::no_secret)
    return "--auth FILE of the cluster, or --insecure data on a network you trust";
  if (check.alternative) return "";
  if (check.trouble == PeerTrouble::no_listener)
    return "the host answers: start the peer, e.g. mc-bench xfer --server --port " + std::to_string(plan.port);
  return "check that the peer runs, its address (its ready line has uris), firewalls and keys";
}

}  // namespace

std::vector<PeerCheck> check_peer(const std::string& peer, const DoctorPlan& plan) {
  if (peer.empty()) return {{.peer = peer, .reason = "the address is empty"}};
  Visit first = visit(peer, uri_of(peer, plan.port), plan);
  MC_ASSERT(first.check.usable || !first.remote);
  std::vector<PeerCheck> out = {first.check};
  if (!first.remote) return out;
  for (const auto* entry : xfer::transports()) {
    if (entry->scheme == first.check.transport) continue;
    PeerCheck other{.peer = peer, .transport = entry->scheme, .alternative = !plan.wants(entry->scheme)};
    const xfer::Reach reach = entry->reach(first.local, *first.remote);
    other.uri = reach.uri;
    other.reason = reach.reason;
    other.trouble = trouble_of(reach.mc);
    if (reach.usable) {
      const bool alternative = other.alternative;
      other = visit(peer, reach.uri, plan).check;
      other.alternative = alternative;
    }
    out.push_back(std::move(other));
  }
  MC_ASSERT_EQ(out.size(), xfer::transports().size());
  return out;
}

std::vector<Finding> judge_peers(const std::vector<PeerCheck>& peers, const DoctorPlan& plan) {
  std::vector<Finding> out;
  for (const PeerCheck& check : peers) {
    const std::string where = check.uri.empty() || check.uri == check.peer ? "" : check.uri;
    Finding finding{.area = Area::peer, .name = check.peer + (check.transport.empty() ? "" : " " + check.transport)};
    if (check.usable) {
      finding.what = (where.empty() ? "" : where + " ") + "in " +
                     human_duration(Duration(static_cast<int64_t>(check.connect_ms * 1e6))) +
                     (check.reason.empty() ? "" : ": " + check.reason);
    } else {
      finding.verdict = check.alternative ? Verdict::unused : Verdict::fix;
      finding.what = (where.empty() ? "" : where + ": ") + check.reason;
      finding.next = next_step(check, plan);
    }
    out.push_back(std::move(finding));
  }
  return out;
}

}  // namespace mc::verbs
