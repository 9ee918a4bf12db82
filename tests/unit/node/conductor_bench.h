// A conductor alone at a bench, fed with hand-made messages of workers that are only names.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "node/conductor.h"
#include "test.h"

namespace conductor_test {

using namespace mc;
using namespace mc::node;

inline InstanceId instance(uint8_t n) {
  InstanceId id;
  id.bytes[0] = n;
  return id;
}

struct Bench {
  explicit Bench(ConductorOptions with = options()) : conductor(std::move(with)) {}
  static ConductorOptions options() {
    ConductorOptions o;
    o.instance = instance(99);
    o.policy = sched::find_policy("kv-centric");
    return o;
  }
  Actions give(const Event& event) {
    Actions out;
    conductor.handle(event, now, out);
    conductor.check();
    return out;
  }
  Actions hello(wire::Role role, const std::string& name, uint8_t n, uint32_t block_tokens = 64, uint32_t stages = 1) {
    wire::Hello h;
    h.role = role, h.name = name, h.model = "m", h.page_count = page_count, h.page_bytes = 4096;
    h.context_tokens = context_tokens, h.stages = stages;
    h.control_uri = "sim:" + name;
    kv::Namespace ns;
    ns.weights = "w", ns.config = "c", ns.dtype = ns.weight_dtype = ns.kv_dtype = "f32", ns.rope = "r";
    ns.attention = "full";
    ns.layers = 2, ns.kv_heads = 1, ns.head_dim = 16, ns.block_tokens = block_tokens, ns.layout = 1;
    h.kv_namespace = role == wire::Role::cache ? "" : ns.text();
    h.decode_attention = "full";
    h.cost = cost;
    if (role == wire::Role::decode) h.inline_tokens = inline_tokens;
    return give(Received{name, instance(n), h});
  }
  /// The node reports these blocks of a chain, its first ones.
  void has(const std::string& name, uint8_t n, std::span<const BlockHash> hashes, size_t first, size_t end) {
    wire::BlockEvents events;
    events.first_seq = 1;
    for (size_t i = first; i < end; ++i) events.events.push_back({true, {hashes[i], i ? hashes[i - 1] : BlockHash{}}});
    give(Received{name, instance(n), events});
  }
  Conductor::NodeStatus node(const std::string& name) {
    const auto all = conductor.nodes(now);
    const auto it = std::find_if(all.begin(), all.end(), [&](const auto& n) { return n.name == name; });
    REQUIRE(it != all.end());
    return *it;
  }
  Actions submit(const std::string& req, size_t tokens = 100) {
    Submit s;
    s.req = req;
    s.ids.assign(tokens, 7);
    s.stopping.max_tokens = 10;
    s.deadline = 10s;
    return give(s);
  }
  template <class T>
  static std::vector<T> sent(const Actions& actions, const std::string& to) {
    std::vector<T> out;
    for (const auto& a : actions)
      if (const auto* s = std::get_if<Send>(&a); s && s->to == to)
        if (const auto* m = std::get_if<T>(&s->message)) out.push_back(*m);
    return out;
  }
  static std::vector<Reply> replies(const Actions& actions) {
    std::vector<Reply> out;
    for (const auto& a : actions)
      if (const auto* r = std::get_if<Reply>(&a)) out.push_back(*r);
    return out;
  }
  Actions first_token(const std::string& req, uint32_t attempt, uint32_t token, std::string finish = "") {
    wire::FirstToken f;
    f.req = req, f.attempt = attempt, f.token = token, f.finish_reason = std::move(finish);
    f.report.compute_ms = 5;
    return give(Received{"p0", instance(1), f});
  }
  Actions token(const std::string& req, uint32_t index, uint32_t token, std::string finish = "") {
    wire::Tokens t;
    t.rows.push_back({req, 1, index, token, {}, std::move(finish)});
    return give(Received{"d0", instance(2), t});
  }

  TimePoint now{};
  uint32_t page_count = 100, context_tokens = 4096;
  uint32_t inline_tokens = 0;  // of decode nodes
  wire::CostModel cost;
  Conductor conductor;
};

inline void start(Bench& b) {
  b.hello(wire::Role::prefill, "p0", 1);
  b.hello(wire::Role::decode, "d0", 2);
}

}  // namespace conductor_test
