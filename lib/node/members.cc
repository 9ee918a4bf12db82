#include "node/members.h"

#include <algorithm>
#include <array>

#include "base/assert.h"
#include "base/errors.h"
#include "node/node_name.h"
#include "node/stage.h"
#include "node/worker.h"
#include "wire/codec.h"

namespace mc::node {
namespace {

constexpr char role_letter(wire::Role role) {
  return role == wire::Role::prefill ? 'p' : role == wire::Role::decode ? 'd' : 'c';  // stages bring their own names
}

// Upper bounds keep predictions finite.
constexpr double kSecondsMax = 1e6, kBytesPerSecondMax = 1e18;

constexpr Duration kAgeMost = 3600s;  // that a node may claim, far above node::SlowStart::kTime
constexpr size_t kKeyFileMax = 256;   // bytes of a path in messages

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
  sched::Cost cost;  // fields that the node did not announce keep their defaults
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

// A node whose keys differ would join, and every transfer to or from it would fail.
std::optional<wire::Refused> key_objection(const KeysFor& keys, const wire::Hello& hello, const InstanceId& instance) {
  if (!keys || hello.key_check.empty()) return std::nullopt;
  const KeyMark mark = keys(instance);
  if (mark.check.empty() || mark.check == hello.key_check) return std::nullopt;
  wire::Refused refused;
  refused.mc = err::kWrongKey;
  refused.field = "key_check";
  refused.ours = hello.key_file.substr(0, kKeyFileMax);
  refused.theirs = mark.file;
  refused.message = "the node has the keys of " + refused.ours + ", the conductor has those of " + refused.theirs +
                    ", and the two differ";
  return refused;
}

}  // namespace

Members::Node* Members::find(const std::string& name) {
  const auto it = nodes_.find(name);
  return it == nodes_.end() ? nullptr : &it->second;
}

Members::Node* Members::of(const InstanceId& instance) {
  const auto known = by_instance_.find(instance);
  return known == by_instance_.end() ? nullptr : known->second;
}

// The first member of the pipeline that is missing. A member that announces another number of stages computes other
// layers and does not count.
std::string Members::lacking(const Node& node) const {
  if (node.hello.role == wire::Role::stage) return "";
  for (uint32_t stage = 1; stage < node.hello.stages; ++stage) {
    const std::string name = stage_name(node.name, stage);
    const Node* member = find(name);
    if (!member || member->hello.role != wire::Role::stage) return "pipeline stage " + name + " is not registered";
    if (member->hello.stages != node.hello.stages)
      return name + " announces " + std::to_string(member->hello.stages) + " stages, " + node.name + " " +
             std::to_string(node.hello.stages);
  }
  return "";
}

bool Members::serves(const Node& node, wire::Role role, const std::string& model) const {
  return node.hello.role == role && (model.empty() || node.hello.model == model) && lacking(node).empty();
}

NodeState Members::state_of(const Node& node) const {
  if (node.draining) return NodeState::drain;
  return lacking(node).empty() ? NodeState::ready : NodeState::partial;
}

Reason Members::unready(const std::string& model) const {
  bool prefill = false, decode = false;
  for (const auto& [name, node] : nodes_) {
    prefill |= serves(node, wire::Role::prefill, model) && !node.draining;
    decode |= serves(node, wire::Role::decode, model) && !node.draining;
  }
  return !prefill ? Reason::no_prefill : !decode ? Reason::no_decode : Reason::none;
}

bool Members::has_nodes(const Submit& submit) const {
  const auto here = [&](const std::string& pin, wire::Role role) {
    const Node* node = pin.empty() ? nullptr : find(pin);
    return pin.empty() || (node && serves(*node, role, submit.model) && !node->draining);
  };
  return unready(submit.model) == Reason::none && here(submit.pin_prefill, wire::Role::prefill) &&
         here(submit.pin_decode, wire::Role::decode);
}

std::optional<Refusal> Members::wrong_pin(const Submit& submit) const {
  for (const auto& [field, name, role] : {std::tuple{"prefill", &submit.pin_prefill, wire::Role::prefill},
                                          std::tuple{"decode", &submit.pin_decode, wire::Role::decode}}) {
    if (name->empty()) continue;
    const Node* node = find(*name);
    if (node && node->hello.role == role) continue;
    std::string known;
    for (const auto& [other, n] : nodes_)
      if (n.hello.role == role && known.size() < 200) known += (known.empty() ? "" : ", ") + other;
    Refusal out{Reason::invalid, ""};
    out.param = std::string("mc.pin.") + field;
    out.message = out.param + " names " + name->substr(0, 64) + ", which is " +
                  (node ? "a " + std::string(wire::to_string(node->hello.role)) + " node" : "not in the cluster") +
                  "; the " + field + " nodes are " + known;
    return out;
  }
  return std::nullopt;
}

std::optional<Refusal> Members::refusal_of(const Submit& submit) const {
  if (auto wrong = wrong_pin(submit)) return wrong;
  if (!namespace_of(submit.model)) return Refusal{Reason::invalid, "no node announced a KV namespace"};
  const uint32_t most = context_tokens(submit.model);
  if (most > 0 && !fits_context(submit.ids.size(), 0, submit.stopping.max_tokens, most))
    return Refusal{Reason::context_length_exceeded,
                   "with max_tokens " + std::to_string(submit.stopping.max_tokens) +
                       " the prompt is too long: this model's maximum context length is " + std::to_string(most) +
                       " tokens on these nodes, and the prompt has " + std::to_string(submit.ids.size()) +
                       "; shorten one of them, or raise the nodes' --kv-mem"};
  // The end of a drain is unknown, so a request that is pinned to a draining node is rejected at once.
  for (const auto& [reason, field, name] : {std::tuple{Reason::no_prefill, "prefill", &submit.pin_prefill},
                                            std::tuple{Reason::no_decode, "decode", &submit.pin_decode}}) {
    const Node* node = name->empty() ? nullptr : find(*name);
    if (node && node->draining)
      return Refusal{
          reason, std::string("mc.pin.") + field + " names " + *name + ", which is draining and takes no new requests"};
  }
  return std::nullopt;
}

std::vector<std::string> Members::models() const {
  std::vector<std::string> out;
  for (const auto& [name, node] : nodes_)
    if (!node.hello.model.empty() && std::find(out.begin(), out.end(), node.hello.model) == out.end())
      out.push_back(node.hello.model);
  return out;
}

uint32_t Members::context_tokens(const std::string& model) const {
  const auto [known, fresh] = contexts_.try_emplace(model, 0);
  if (!fresh) return known->second;
  uint32_t& least = known->second;
  for (const auto& [name, node] : nodes_) {
    if (node.hello.role == wire::Role::cache || (!model.empty() && node.hello.model != model)) continue;
    least = least == 0 ? node.hello.context_tokens : std::min(least, node.hello.context_tokens);
  }
  return least;
}

const kv::Namespace* Members::namespace_of(const std::string& model) const {
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

const std::string* Members::decode_attention(const std::string& model) const {
  for (const auto& [name, node] : nodes_)
    if (serves(node, wire::Role::decode, model)) return &node.hello.decode_attention;
  return nullptr;
}

// Blocks of a pipeline are read from all of its members, and all of them read what the pipeline fetches. So a pipeline
// that lacks a member lends and fetches nothing.
void Members::show_on(sched::Board& board) const {
  const kv::Namespace* ns = namespace_of("");
  const uint32_t block_tokens = ns ? ns->block_tokens : 64;
  uint64_t block_bytes = 0;
  std::vector<sched::BoardMember> members;
  for (const auto& [name, node] : nodes_) {
    sched::BoardMember member;
    member.slot = node.ordinal;
    member.name = name;
    member.prefill = serves(node, wire::Role::prefill, ""), member.decode = serves(node, wire::Role::decode, "");
    member.readable = lacking(node).empty();
    member.draining = node.draining;
    member.model = node.hello.model;
    member.capacity_tokens = node.hello.page_count * block_tokens;
    if (member.decode) member.inline_tokens = node.hello.inline_tokens;
    member.since = node.since;
    member.announced = announced_cost(node.hello.cost);
    if (node.hello.role != wire::Role::cache) block_bytes = std::max(block_bytes, node.hello.page_bytes);
    members.push_back(std::move(member));
  }
  board.set_members(members, block_tokens, block_bytes);
}

void Members::changed() {
  namespaces_.clear();
  contexts_.clear();
  ++version_;
}

// ---- coming and going ------------------------------------------------------------------------

std::string Members::free_name(wire::Role role) const {
  for (int ordinal = 0;; ++ordinal) {
    const std::string name = role_letter(role) + std::to_string(ordinal);
    if (!nodes_.contains(name)) return name;
  }
}

std::optional<wire::Refused> Members::objection(const wire::Hello& hello, const InstanceId& instance) const {
  if (auto refused = key_objection(options_.keys, hello, instance)) return refused;
  wire::Refused refused;
  if (!hello.name.empty() && !is_node_name(hello.name)) {
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
    if (value >= 0 && value <= (is_rate ? kBytesPerSecondMax : kSecondsMax)) continue;  // NaN fails this comparison too
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
    refused.message = "the conductor serves " + options_.model + ", this node has " + hello.model +
                      " with another configuration (config.json, or the metadata of a GGUF file)";
    return refused;
  }
  for (const auto& [name, node] : nodes_) {
    if (node.hello.role == wire::Role::cache) continue;
    const auto theirs = kv::Namespace::parse(node.hello.kv_namespace);
    if (!theirs) continue;
    const auto differences = kv::differences(*ours, *theirs);
    if (differences.empty()) continue;
    const auto& first = differences.front();
    refused.mc = err::kKvLayoutMismatch;
    refused.field = first.name;
    refused.ours = first.ours;
    refused.theirs = first.theirs;
    refused.message = name + " of this cluster has " + first.name + "=" + first.theirs + ", this node has " +
                      first.name + "=" + first.ours;
    for (const auto& [field, value] : ours->fields())
      if (std::none_of(differences.begin(), differences.end(),
                       [&other = field](const auto& d) { return d.name == other; }))
        refused.equal.push_back(field);
    return refused;
  }
  return std::nullopt;
}

std::optional<wire::Refused> Members::name_objection(const std::string& name, TimePoint now) const {
  const Node* other = find(name);
  if (!other || now - other->heard > 2 * options_.heartbeat) return std::nullopt;
  wire::Refused refused;
  refused.mc = err::kNameTaken;
  refused.field = "name";
  refused.ours = refused.theirs = name;
  refused.message = "a live node is called " + name + " already (" + other->hello.control_uri + ")";
  return refused;
}

std::optional<wire::Refused> Members::room_objection(const std::string& name) const {
  if (nodes_.size() < kNodesMax || find(name)) return std::nullopt;
  wire::Refused refused;
  refused.mc = err::kClusterFull;
  refused.message = "the cluster has " + std::to_string(nodes_.size()) + " nodes, and the conductor takes no more";
  return refused;
}

const Members::Node& Members::join(const std::string& name, const InstanceId& instance, const wire::Hello& hello,
                                   TimePoint now) {
  MC_ASSERT(!nodes_.contains(name) && !by_instance_.contains(instance));
  Node& node = nodes_[name];
  node.name = name;
  node.instance = instance;
  node.hello = hello;
  node.since = node.heard = node.sync_asked = now;
  node.member_before = std::chrono::milliseconds(std::min<uint64_t>(hello.member_ms, kAgeMost / 1ms));
  for (const Lost& lost : lost_)
    if (lost.instance == instance) node.member_before = std::max(node.member_before, lost.member);
  node.sync_open = true;  // the node sends a snapshot by itself
  node.ordinal = index_.add_node(name);
  by_instance_[instance] = &node;
  MC_ASSERT_EQ(by_instance_.size(), nodes_.size());
  silence_at_ = std::min(silence_at_, now + options_.dead_after + 1ms);
  changed();
  return node;
}

void Members::remove(const std::string& name, std::string why) {
  const auto at = nodes_.find(name);
  MC_ASSERT(at != nodes_.end());
  index_.remove_node(name);
  const Node& node = at->second;
  // `heard` ends the time for which the node surely was a member.
  lost_.push_back({node.instance, std::move(why), node.member_before + (node.heard - node.since)});
  if (lost_.size() > kLostMax) lost_.pop_front();
  by_instance_.erase(at->second.instance);
  nodes_.erase(at);
  MC_ASSERT_EQ(by_instance_.size(), nodes_.size());
  changed();
}

void Members::note_refused(RefusedNode node) {
  // A stranger chooses these texts, and a message may have 16 MiB.
  for (std::string* text : {&node.name, &node.control_uri, &node.why.message, &node.why.ours, &node.why.theirs})
    if (text->size() > kRefusedTextMax) *text = text->substr(0, kRefusedTextMax);
  ++refused_.count;
  refused_.last.push_back(std::move(node));
  if (refused_.last.size() > kRefusedMax) refused_.last.pop_front();
}

void Members::stalled(Duration time, TimePoint now) {
  for (auto& [name, node] : nodes_) node.heard = std::min(node.heard + time, now);
}

std::vector<std::string> Members::silent(TimePoint now) {
  std::vector<std::string> out;
  if (now < silence_at_) return out;
  silence_at_ = kNever;
  for (const auto& [name, node] : nodes_) {
    if (now - node.heard > options_.dead_after) out.push_back(name);
    silence_at_ = std::min(silence_at_, node.heard + options_.dead_after + 1ms);
  }
  return out;
}

void Members::broadcast(TimePoint now, Actions& out) {
  ++peers_version_;
  const wire::Peers all = peers(now);
  out.push_back(SetPeers{all.peers});
  for (const auto& [name, node] : nodes_) out.push_back(Send{name, node.instance, all});
}

wire::Peers Members::peers(TimePoint now) const {
  wire::Peers out{peers_version_, {}};
  for (const auto& [name, node] : nodes_) {
    MC_ASSERT(now >= node.since);
    const Duration member = node.member_before + (now - node.since);
    const uint64_t member_ms = std::max<uint64_t>(1, static_cast<uint64_t>(member / 1ms));
    out.peers.push_back({name, node.instance, node.hello.role, node.hello.control_uri, node.hello.data,
                         node.hello.cache_bytes, member_ms, node.hello.keeps_values});
  }
  return out;
}

// ---- messages and orders ---------------------------------------------------------------------

bool Members::on_heartbeat(Node& node, const wire::Heartbeat& beat, TimePoint now, Actions& out) {
  node.load = beat.load;
  ++node.heartbeats;
  out.push_back(Send{node.name, node.instance, wire::HeartbeatAck{true}});
  // The last drain order is kept, even if the node has not confirmed it. A new conductor adopts the state that the node
  // reports.
  const bool found = beat.load.leaving || (!node.drain_known && beat.load.draining);
  node.drain_known = true;
  const bool begins = found && !node.draining;
  if (begins) {
    node.draining = true;
  } else if (node.draining != beat.load.draining && !beat.load.leaving) {
    out.push_back(Send{node.name, node.instance, wire::Drain{node.draining}});
  }
  if (beat.peers_version != peers_version_) out.push_back(Send{node.name, node.instance, peers(now)});
  if (index_.seq(node.ordinal) < beat.event_seq || index_.needs_snapshot(node.ordinal)) ask_sync(node, now, out);
  return begins;
}

void Members::ask_sync(Node& node, TimePoint now, Actions& out) {
  constexpr Duration kPause = 1s;  // a snapshot costs a walk over the whole index, and a node may lie about its events
  if (now - node.sync_asked < (node.sync_open ? options_.dead_after : kPause)) return;  // it may be on its way
  node.sync_open = true;
  node.snapshot = {}, node.snapshot_parts = 0;
  node.sync_asked = now;
  out.push_back(Send{node.name, node.instance, wire::IndexSync{index_.seq(node.ordinal)}});
}

void Members::on_events(Node& node, const wire::BlockEvents& events, TimePoint now, Actions& out) {
  std::vector<kv::BlockEvent> converted;
  converted.reserve(events.events.size());
  uint64_t seq = events.first_seq;
  for (const auto& e : events.events) {
    kv::BlockEvent event;
    event.seq = seq++;
    event.kind = e.stored ? kv::BlockEvent::Kind::stored : kv::BlockEvent::Kind::removed;
    event.hash = e.block.hash;
    event.parent = e.block.parent;
    event.tier = e.block.tier;
    converted.push_back(event);
  }
  if (index_.apply(node.ordinal, converted) == kv::PrefixIndex::Applied::need_snapshot) ask_sync(node, now, out);
}

/// How many more blocks of its snapshot the conductor keeps: as many as the index will take, beside the snapshots whose
/// last part is not here. A node may leave the last part out.
uint64_t Members::snapshot_room(const Node& node) const {
  const kv::PrefixIndex::Bounds& most = options_.blocks_max;
  uint64_t held = index_.resident_count() - index_.resident_count(node.ordinal);  // a snapshot replaces its own
  for (const auto& [name, other] : nodes_) held += other.snapshot.size();
  const uint64_t here = node.snapshot.size();
  const uint64_t of_all =
      std::max(most.of_all - std::min(held, most.of_all), most.always - std::min(here, most.always));
  return std::min(most.of_node - here, of_all);
}

void Members::on_snapshot(Node& node, const wire::BlockSnapshot& snapshot) {
  if (!node.sync_open) return;  // of an earlier request
  if (snapshot.part == 0) node.snapshot.clear(), node.snapshot_parts = 0, node.snapshot_seq = snapshot.seq;
  if (snapshot.part != node.snapshot_parts || snapshot.seq != node.snapshot_seq) return;  // a part of an older snapshot
  const auto taken = std::span(snapshot.blocks).first(std::min<size_t>(snapshot_room(node), snapshot.blocks.size()));
  node.snapshot.insert(node.snapshot.end(), taken.begin(), taken.end());
  if (++node.snapshot_parts < snapshot.part_count) return;
  std::vector<kv::ResidentBlock> blocks;
  for (const auto& b : node.snapshot) blocks.push_back({b.hash, b.parent, 0, b.tier});
  index_.replace(node.ordinal, snapshot.seq, blocks);
  node.snapshot = {}, node.snapshot_parts = 0;
  node.sync_open = false;
}

Result<void> Members::drain(const std::string& name, bool on, Actions& out) {
  Node* node = find(name);
  if (!node) {
    constexpr size_t kListedMax = 16;
    std::string names;
    size_t listed = 0;
    for (const auto& [other, unused] : nodes_)
      if (++listed <= kListedMax) names += (names.empty() ? "" : ", ") + other;
    if (listed > kListedMax) names += " and " + std::to_string(listed - kListedMax) + " more";
    return user_error(err::kNotFound, "no node is called " + name + "; there are: " + (names.empty() ? "none" : names),
                      "node", "name a node as mc-conductor ps lists it");
  }
  if (node->hello.role == wire::Role::stage) {
    const auto parsed = parse_stage_name(name);
    const std::string leader = parsed ? parsed->leader : name;
    return Error{Code::invalid,
                 name + " is a stage of the pipeline " + leader + ", which drains as a whole: drain " + leader};
  }
  if (!on && node->load.leaving)
    return Error{Code::invalid, name + " was told to stop and drains by itself; start it again instead"};
  node->draining = on;
  node->drain_known = true;
  out.push_back(Send{name, node->instance, wire::Drain{on}});
  return {};
}

void Members::check() const {
  MC_ASSERT_EQ(by_instance_.size(), nodes_.size());
  for (const auto& [name, node] : nodes_) {
    MC_ASSERT_EQ(name, node.name);
    MC_ASSERT(by_instance_.at(node.instance) == &node);
    MC_ASSERT(silence_at_ <= node.heard + options_.dead_after + 1ms);
  }
}

}  // namespace mc::node
