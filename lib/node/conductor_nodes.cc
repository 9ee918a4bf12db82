// Membership and the block index: who is in the cluster, and what each node says it holds.

#include <algorithm>
#include <array>
#include <cctype>

#include "base/assert.h"
#include "node/conductor.h"
#include "node/stage.h"

namespace mc::node {
namespace {

constexpr char role_letter(wire::Role role) {
  return role == wire::Role::prefill ? 'p' : role == wire::Role::decode ? 'd' : 'c';  // stages bring their names
}

// Predictions stay finite.
constexpr double kSecondsMax = 1e6, kBytesPerSecondMax = 1e18;

std::array<std::pair<const char*, double>, 7> cost_fields(const wire::CostModel& c) {
  return {{{"prefill_s", c.prefill_s},
           {"prefill_s_per_token", c.prefill_s_per_token},
           {"prefill_s_per_token2", c.prefill_s_per_token2},
           {"decode_s", c.decode_s},
           {"decode_s_per_row", c.decode_s_per_row},
           {"decode_s_per_kv_token", c.decode_s_per_kv_token},
           {"read_bytes_per_s", c.read_bytes_per_s}}};
}

sched::Cost announced_cost(const wire::CostModel& c) {
  sched::Cost cost;  // defaults stand where the node announced nothing
  if (c.prefill_s_per_token > 0) {
    cost.prefill_s = c.prefill_s, cost.prefill_s_per_token = c.prefill_s_per_token;
    cost.prefill_s_per_token2 = c.prefill_s_per_token2;
  }
  if (c.decode_s > 0 || c.decode_s_per_row > 0) {
    cost.decode_s = c.decode_s, cost.decode_s_per_row = c.decode_s_per_row;
    cost.decode_s_per_kv_token = c.decode_s_per_kv_token;
  }
  if (c.read_bytes_per_s > 0) cost.read_bytes_per_s = c.read_bytes_per_s;
  return cost;
}

}  // namespace

Conductor::Node* Conductor::find_node(const std::string& name) {
  const auto it = nodes_.find(name);
  return it == nodes_.end() ? nullptr : &it->second;
}

const Conductor::Node* Conductor::find_node(const std::string& name) const {
  const auto it = nodes_.find(name);
  return it == nodes_.end() ? nullptr : &it->second;
}

// Messages name their sender by the instance that the channel proved, not by what they claim.
Conductor::Node* Conductor::node_of(const Received& event) {
  const auto known = by_instance_.find(event.instance);
  return known == by_instance_.end() ? nullptr : known->second;
}

// Members that count otherwise compute other layers.
std::string Conductor::lacking(const Node& node) const {
  if (node.hello.role == wire::Role::stage) return "";
  for (uint32_t stage = 1; stage < node.hello.stages; ++stage) {
    const std::string name = stage_name(node.name, stage);
    const Node* member = find_node(name);
    if (!member || member->hello.role != wire::Role::stage) return "pipeline stage " + name + " is not here";
    if (member->hello.stages != node.hello.stages)
      return name + " counts " + std::to_string(member->hello.stages) + " stages, " + node.name + " " +
             std::to_string(node.hello.stages);
  }
  return "";
}

bool Conductor::serves(const Node& node, wire::Role role, const std::string& model) const {
  return node.hello.role == role && (model.empty() || node.hello.model == model) && lacking(node).empty();
}

const kv::Namespace* Conductor::namespace_of(const std::string& model) const {
  const auto [known, fresh] = namespaces_.try_emplace(model);
  if (fresh) {
    for (const auto& [name, node] : nodes_) {
      if (node.hello.kv_namespace.empty() || (!model.empty() && node.hello.model != model)) continue;
      auto ns = kv::Namespace::parse(node.hello.kv_namespace);
      if (!ns) continue;
      known->second = std::move(ns).value();
      break;
    }
  }
  return known->second ? &*known->second : nullptr;
}

// Who serves what, and where everybody stands in the board, is to be found again.
void Conductor::membership_changed() {
  board_stale_ = nodes_changed_ = true;
  namespaces_.clear();
  contexts_.clear();
  ++memberships_;
  room_changed();
}

void Conductor::on_received(const Received& event, TimePoint now, Actions& out) {
  if (const auto* hello = std::get_if<wire::Hello>(&event.message)) return on_hello(event, *hello, now, out);
  Node* node = node_of(event);
  if (!node) {
    // A node that outlived our predecessor, or that we declared dead too early: it must say hello.
    if (std::holds_alternative<wire::Heartbeat>(event.message))
      out.push_back(Send{event.from, event.instance, wire::HeartbeatAck{false}});
    return;
  }
  node->heard = now;
  if (const auto* beat = std::get_if<wire::Heartbeat>(&event.message)) {
    on_heartbeat(*node, *beat, now, out);
  } else if (const auto* events = std::get_if<wire::BlockEvents>(&event.message)) {
    on_events(*node, *events, now, out);
  } else if (const auto* snapshot = std::get_if<wire::BlockSnapshot>(&event.message)) {
    on_snapshot(*node, *snapshot);
  } else if (const auto* told = std::get_if<wire::PromptLogprobs>(&event.message)) {
    on_prompt_logprobs(event, *told);
  } else if (const auto* first = std::get_if<wire::FirstToken>(&event.message)) {
    on_first_token(event, *first, now, out);
  } else if (const auto* tokens = std::get_if<wire::Tokens>(&event.message)) {
    on_tokens(event, *tokens, now, out);
  } else if (const auto* failed = std::get_if<wire::Failed>(&event.message)) {
    on_failed(event, *failed, now, out);
  } else if (const auto* preempted = std::get_if<wire::Preempted>(&event.message)) {
    on_preempted(event, *preempted, now, out);
  } else if (const auto* copied = std::get_if<wire::CopyDone>(&event.message)) {
    on_copy_done(event, *copied, now);
  } else if (const auto* goodbye = std::get_if<wire::Goodbye>(&event.message)) {
    lose(node->name, goodbye->reason, now, out);
  }
}

// The heartbeat closes every gap that a lost message can leave: membership, drain state, block events.
void Conductor::on_heartbeat(Node& node, const wire::Heartbeat& beat, TimePoint now, Actions& out) {
  node.load = beat.load;
  ++node.heartbeats;
  out.push_back(Send{node.name, node.instance, wire::HeartbeatAck{true}});
  // What was ordered holds, whatever became of the order. A conductor that is new to the node takes over what it finds.
  const bool found = beat.load.leaving || (!node.drain_known && beat.load.draining);
  node.drain_known = true;
  if (found && !node.draining) {
    node.draining = true;
    board_stale_ = nodes_changed_ = true;
  } else if (node.draining != beat.load.draining && !beat.load.leaving) {
    out.push_back(Send{node.name, node.instance, wire::Drain{node.draining}});
  }
  if (beat.peers_version != peers_version_) out.push_back(Send{node.name, node.instance, peers()});
  if (index_.seq(node.ordinal) < beat.event_seq || index_.needs_snapshot(node.ordinal)) ask_sync(node, now, out);
}

void Conductor::ask_sync(Node& node, TimePoint now, Actions& out) {
  if (node.sync_open && now - node.sync_asked < options_.dead_after) return;  // the snapshot is on its way
  node.sync_open = true;
  node.sync_asked = now;
  out.push_back(Send{node.name, node.instance, wire::IndexSync{index_.seq(node.ordinal)}});
}

std::string Conductor::free_name(wire::Role role) const {
  for (int ordinal = 0;; ++ordinal) {
    const std::string name = role_letter(role) + std::to_string(ordinal);
    if (!nodes_.contains(name)) return name;
  }
}

// Two nodes of one model must agree on everything that shapes KV bytes; the second one is refused.
std::optional<wire::Refused> Conductor::objection(const wire::Hello& hello) const {
  wire::Refused refused;
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  };
  if (hello.name == kConductor || hello.name.size() > 64 || !std::all_of(hello.name.begin(), hello.name.end(), plain)) {
    refused.mc = err::kNameTaken;
    refused.field = "name";
    refused.message = "a node's name is up to 64 letters, digits, '.', '_' and '-', and not conductor";
    return refused;
  }
  if (hello.stages < 1 || hello.stages > 64 || (hello.role == wire::Role::stage && hello.name.empty())) {
    refused.mc = err::kNameTaken;
    refused.field = "stages";
    refused.message = "a pipeline has 1 to 64 stages, and its members have names";
    return refused;
  }
  for (const auto& [field, value] : cost_fields(hello.cost)) {
    const bool is_rate = field == std::string_view("read_bytes_per_s");
    if (value >= 0 && value <= (is_rate ? kBytesPerSecondMax : kSecondsMax)) continue;  // not a number is neither
    refused.mc = err::kPeerGarbage;
    refused.field = std::string("cost.") + field;
    refused.ours = std::to_string(value);
    refused.message = refused.field + " is " + refused.ours + ", not a number from 0 to " + (is_rate ? "1e18" : "1e6") +
                      "; measure it again (mc-bench model), or leave it out";
    return refused;
  }
  if (hello.role == wire::Role::cache) return std::nullopt;
  const auto ours = kv::Namespace::parse(hello.kv_namespace);
  if (!ours) {
    refused.mc = err::kKvLayoutMismatch;
    refused.message = "the node's KV namespace is not readable: " + ours.error().what;
    return refused;
  }
  if (!options_.config_digest.empty() && ours->config != options_.config_digest) {
    refused.mc = err::kModelMismatch;
    refused.field = "config";
    refused.ours = ours->config;
    refused.theirs = options_.config_digest;
    refused.message =
        "the conductor serves " + options_.model + ", this node has " + hello.model + " with another config.json";
    return refused;
  }
  for (const auto& [name, node] : nodes_) {
    if (node.hello.role == wire::Role::cache) continue;
    const auto theirs = kv::Namespace::parse(node.hello.kv_namespace);
    if (!theirs) continue;
    const auto differences = kv::differences(ours->fields(), theirs->fields());
    if (differences.empty()) continue;
    const auto& first = differences.front();
    refused.mc = err::kKvLayoutMismatch;
    refused.field = first.name;
    refused.ours = first.ours;
    refused.theirs = first.theirs;
    refused.message = name + " of this cluster has " + first.name + "=" + first.theirs + ", this node has " +
                      first.name + "=" + first.ours;
    for (const auto& [field, value] : ours->fields())
      if (std::none_of(differences.begin(), differences.end(), [&](const auto& d) { return d.name == field; }))
        refused.equal.push_back(field);
    return refused;
  }
  return std::nullopt;
}

void Conductor::on_hello(const Received& event, const wire::Hello& hello, TimePoint now, Actions& out) {
  const auto refuse = [&](wire::Refused refused) {
    out.push_back(Send{event.from, event.instance, std::move(refused)});
  };
  if (Node* known = node_of(event)) {  // it missed our Welcome, or lost sight of us: start over
    const std::string name = known->name;
    lose(name, "registered again", now, out);
  }
  if (auto refused = objection(hello)) return refuse(std::move(*refused));
  const std::string name = hello.name.empty() ? free_name(hello.role) : hello.name;
  if (Node* other = find_node(name)) {
    if (now - other->heard <= 2 * options_.heartbeat) {
      wire::Refused refused;
      refused.mc = err::kNameTaken;
      refused.field = "name";
      refused.ours = refused.theirs = name;
      refused.message = "a live node is called " + name + " already (" + other->hello.control_uri + ")";
      return refuse(std::move(refused));
    }
    lose(name, "replaced by a new process of the same name", now, out);
  }
  Node node;
  node.name = name;
  node.instance = event.instance;
  node.hello = hello;
  node.since = node.heard = now;
  node.ordinal = index_.add_node(name);
  node.busy_until = now;
  node.announced = announced_cost(hello.cost);
  node.predictor = sched::Predictor(node.announced);
  nodes_[name] = std::move(node);
  by_instance_[event.instance] = &nodes_[name];
  silence_at_ = std::min(silence_at_, now + options_.dead_after + 1ms);
  membership_changed();
  out.push_back(Send{event.from, event.instance,
                     wire::Welcome{name, static_cast<uint32_t>(options_.heartbeat / 1ms),
                                   static_cast<uint32_t>(options_.dead_after / 1ms), !options_.tenants.empty()}});
  broadcast_peers(out);
  place_parked(now, out);
}

void Conductor::broadcast_peers(Actions& out) {
  ++peers_version_;
  const wire::Peers all = peers();
  out.push_back(SetPeers{all.peers});
  for (const auto& [name, node] : nodes_) out.push_back(Send{name, node.instance, all});
}

wire::Peers Conductor::peers() const {
  wire::Peers out{peers_version_, {}};
  for (const auto& [name, node] : nodes_)
    out.peers.push_back({name, node.instance, node.hello.role, node.hello.control_uri, node.hello.data});
  return out;
}

void Conductor::on_events(Node& node, const wire::BlockEvents& events, TimePoint now, Actions& out) {
  std::vector<kv::BlockEvent> converted;
  converted.reserve(events.events.size());
  uint64_t seq = events.first_seq;
  for (const auto& e : events.events) {
    kv::BlockEvent event;
    event.seq = seq++;
    event.kind = e.stored ? kv::BlockEvent::Kind::stored : kv::BlockEvent::Kind::removed;
    event.hash = e.block.hash;
    event.parent = e.block.parent;
    converted.push_back(event);
  }
  if (index_.apply(node.ordinal, converted) == kv::PrefixIndex::Applied::need_snapshot) ask_sync(node, now, out);
}

void Conductor::on_snapshot(Node& node, const wire::BlockSnapshot& snapshot) {
  if (snapshot.part == 0) node.snapshot.clear(), node.snapshot_parts = 0, node.snapshot_seq = snapshot.seq;
  if (snapshot.part != node.snapshot_parts || snapshot.seq != node.snapshot_seq) return;  // of an older one
  node.snapshot.insert(node.snapshot.end(), snapshot.blocks.begin(), snapshot.blocks.end());
  if (++node.snapshot_parts < snapshot.part_count) return;
  std::vector<kv::ResidentBlock> blocks;
  for (const auto& b : node.snapshot) blocks.push_back({b.hash, b.parent, 0, kv::Tier::host});
  index_.replace(node.ordinal, snapshot.seq, blocks);
  node.snapshot.clear(), node.snapshot_parts = 0;
  node.sync_open = false;
}

void Conductor::lose(std::string name, std::string why, TimePoint now, Actions& out) {
  const auto it = nodes_.find(name);
  if (it == nodes_.end()) return;
  std::vector<std::pair<RequestId, RequestStage>> orphans;
  for (const auto& [id, r] : requests_) {
    if (!r.placed) continue;
    if (r.decode == name)
      orphans.emplace_back(id, r.first_token ? RequestStage::decode : RequestStage::transfer);
    else if (r.prefill == name && !r.first_token)
      orphans.emplace_back(id, RequestStage::prefill);
  }
  // Take them off the books while the node is still there, then place them without it.
  for (const auto& [id, stage] : orphans) {
    Request& r = requests_.at(id);
    cancel_workers(r, CancelReason::superseded, out);
    unplace(r, now);
  }
  for (auto& [id, r] : requests_)
    if (r.fetch_from == name) r.fetch_from.clear();
  end_copies_of(name, now);
  breakers_.forget(name);
  if (it->second.hello.role == wire::Role::stage) breakers_.forget(name.substr(0, name.rfind('.')));
  index_.remove_node(name);
  by_instance_.erase(it->second.instance);
  nodes_.erase(it);
  membership_changed();  // those that waited for what it was computing wait no longer
  broadcast_peers(out);
  for (const auto& [id, stage] : orphans)
    if (const auto r = requests_.find(id); r != requests_.end())
      retry(r->second, stage, {Reason::peer_lost, "node " + name + " was lost: " + why}, name, now, out);
}

}  // namespace mc::node
