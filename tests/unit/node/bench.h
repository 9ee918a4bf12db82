// A worker machine alone at a bench: registered with a conductor that is not there, beside peers that
// are only names, fed with hand-made messages.
#pragma once

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "node/worker.h"
#include "test.h"

namespace mc::node::bench {

inline InstanceId instance(uint8_t n) {
  InstanceId id;
  id.bytes[0] = n;
  return id;
}

inline ExtentLayout layout_of(uint32_t layers) {
  ExtentLayout layout;
  layout.layers = layers, layout.kv_heads = 1, layout.head_dim = 16, layout.dtype = Dtype::f32;
  return layout;
}

inline kv::Namespace namespace_of(const ExtentLayout& layout) {
  kv::Namespace ns;
  ns.weights = "w", ns.config = "c", ns.dtype = ns.weight_dtype = ns.kv_dtype = "f32", ns.rope = "r";
  ns.attention = "full";
  ns.layers = layout.layers, ns.kv_heads = layout.kv_heads, ns.head_dim = layout.head_dim;
  ns.block_tokens = layout.block_tokens, ns.layout = ExtentLayout::kVersion;
  return ns;
}

inline constexpr uint8_t kConductorNumber = 99;

/// As WorkerOptions::demote_above: nothing is offered.
inline constexpr double kNeverDemote = 2;

/// p0 (1), d0 (2), c0 (3) and p1 (4) are peers of every machine; the machine itself is number 50.
template <class Role, class Options>
struct Bench {
  Bench(wire::Role role, uint32_t pages, Options options, uint32_t layers = 2, uint64_t disk_bytes = 0,
        uint32_t device_pages = 0)
      : machine(worker_options(role, pages, layers, disk_bytes, device_pages), options) {
    give(Tick{});
    give(Received{NodeId(kConductor), instance(kConductorNumber), wire::Welcome{"me", 200, 1000}});
    wire::Peers peers{1, {}};
    peers.peers = {{"p0", instance(1), wire::Role::prefill, "sim:p0", {}},
                   {"d0", instance(2), wire::Role::decode, "sim:d0", {}},
                   {"c0", instance(3), wire::Role::cache, "sim:c0", {}},
                   {"p1", instance(4), wire::Role::prefill, "sim:p1", {}}};
    from_conductor(peers);
    REQUIRE(machine.registration().is_member());
  }

  static WorkerOptions worker_options(wire::Role role, uint32_t pages, uint32_t layers, uint64_t disk_bytes,
                                      uint32_t device_pages = 0) {
    WorkerOptions o;
    o.role = role;
    o.name = "me";
    o.instance = instance(50);
    o.page_count = pages;
    o.device_pages = device_pages;
    o.context_tokens = 4096;
    if (pages > 0) o.layout = layout_of(layers), o.kv = namespace_of(o.layout), o.model = "m";
    o.demote_above = kNeverDemote;
    o.disk.capacity_bytes = disk_bytes;
    return o;
  }

  Actions give(const Event& event) {
    Actions out;
    machine.handle(event, now, out);
    machine.check();
    return out;
  }
  Actions from_conductor(wire::Message message) {
    return give(Received{NodeId(kConductor), instance(kConductorNumber), std::move(message)});
  }
  Actions from(const std::string& name, uint8_t n, wire::Message message) {
    return give(Received{name, instance(n), std::move(message)});
  }
  /// Time passes while the conductor is heard.
  Actions wait(Duration time) {
    now += time;
    from_conductor(wire::HeartbeatAck{true});
    return give(Tick{});
  }

  TimePoint now{};
  Role machine;
};

template <class T>
std::vector<T> sent(const Actions& actions, const std::string& to) {
  std::vector<T> out;
  for (const auto& a : actions) {
    if (const auto* s = std::get_if<Send>(&a); s && s->to == to)
      if (const auto* m = std::get_if<T>(&s->message)) out.push_back(*m);
    if constexpr (std::is_same_v<T, wire::Tokens>)
      if (const auto* s = std::get_if<SendTokens>(&a); s && s->to == to) out.push_back(*s->tokens);
  }
  return out;
}

template <class T>
std::vector<T> all(const Actions& actions) {
  std::vector<T> out;
  for (const auto& a : actions)
    if (const auto* t = std::get_if<T>(&a)) out.push_back(*t);
  return out;
}

inline wire::RequestSpec spec_of(const std::string& req, std::vector<uint32_t> ids, uint32_t max_tokens = 10) {
  wire::RequestSpec spec;
  spec.req = req;
  spec.ids = std::move(ids);
  spec.ns = namespace_of(layout_of(2)).id();
  spec.prefill_attention = spec.decode_attention = "full";
  spec.stopping.max_tokens = max_tokens;
  spec.deadline_ms = 60000;
  return spec;
}

}  // namespace mc::node::bench
