// The conductor and pairs of nodes that fail requests: what is set aside, who probes, what clients are told.

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "node/conductor.h"
#include "test.h"

namespace breaker_test {

using namespace mc;
using namespace mc::node;

namespace {

InstanceId instance(const std::string& name) {
  InstanceId id;
  id.bytes[0] = static_cast<uint8_t>(name[0]), id.bytes[1] = static_cast<uint8_t>(name[1]);
  return id;
}

struct Bench {
  explicit Bench(std::vector<std::string> names = {"p0", "p1", "d0", "d1"}, ConductorOptions options = {}) {
    options.policy = sched::find_policy("kv-centric");
    options.dead_after = std::chrono::hours(10);
    conductor = std::make_unique<Conductor>(options);
    for (const std::string& name : names) {
      wire::Hello h;
      h.role = name[0] == 'p' ? wire::Role::prefill : wire::Role::decode;
      h.name = name, h.model = "m", h.page_count = 1000, h.page_bytes = 4096, h.context_tokens = 4096;
      kv::Namespace ns;
      ns.weights = "w", ns.config = "c", ns.dtype = ns.weight_dtype = ns.kv_dtype = "f32", ns.rope = "r";
      ns.attention = "full";
      ns.layers = 2, ns.kv_heads = 1, ns.head_dim = 16, ns.block_tokens = 64, ns.layout = 1;
      h.kv_namespace = ns.text();
      h.decode_attention = "full";
      give(Received{name, instance(name), h});
    }
  }
  Actions give(const Event& event) {
    Actions out;
    conductor->handle(event, now, out);
    conductor->check();
    for (const Action& action : out) {
      if (const auto* send = std::get_if<Send>(&action))
        if (const auto* start = std::get_if<wire::PrefillStart>(&send->message))
          at[start->spec.req] = {send->to, start->decode, start->spec.attempt};
      if (const auto* reply = std::get_if<Reply>(&action); reply && reply->kind != Reply::Kind::token)
        ended[reply->req] = *reply;
      if (const auto* changed = std::get_if<BreakerChanged>(&action)) changes.push_back(*changed);
      if (const auto* retried = std::get_if<RequestRetried>(&action)) retries.push_back(*retried);
    }
    return out;
  }
  std::string submit(const std::string& req, const std::string& prefill = "", const std::string& decode = "") {
    Submit s;
    s.req = req, s.ids.assign(100, 7), s.stopping.max_tokens = 10, s.deadline = std::chrono::hours(1);
    s.pin_prefill = prefill, s.pin_decode = decode, s.no_cache = true;
    give(s);
    return pair(req);
  }
  std::string pair(const std::string& req) const { return at.at(req).prefill + " " + at.at(req).decode; }
  void fail(const std::string& req, std::string stage = "transfer", std::string code = "invalid") {
    const Placed where = at.at(req);
    const std::string from = stage == "accept" || stage == "prefill" ? where.prefill : where.decode;
    give(Received{from, instance(from), wire::Failed{req, where.attempt, stage, code, "why", true, 0, 0}});
  }
  void answer(const std::string& req) {
    const Placed where = at.at(req);
    wire::FirstToken f;
    f.req = req, f.attempt = where.attempt, f.token = 1;
    give(Received{where.prefill, instance(where.prefill), f});
    wire::Tokens t;
    t.rows.push_back({req, where.attempt, 1, 2, {}, "stop"});
    give(Received{where.decode, instance(where.decode), t});
    REQUIRE(ended.contains(req));
  }
  sched::BreakerState state(const std::string& prefill, const std::string& decode) const {
    const auto& entries = conductor->breakers().entries();
    const auto it = entries.find({prefill, decode});
    return it == entries.end() ? sched::BreakerState::closed : it->second.state;
  }
  /// Opens the pair by requests that are pinned to it, each of which fails once and is cancelled.
  void open(const std::string& prefill, const std::string& decode) {
    for (int i = 0; i < 3; ++i) {
      const std::string req = "open" + prefill + decode + std::to_string(i);
      submit(req, prefill, decode);
      fail(req);
      give(ClientCancel{req});
    }
    REQUIRE(state(prefill, decode) == sched::BreakerState::open);
  }
  void wait_for_half_open() {
    now = conductor->breakers().next_wakeup();
    give(Tick{});
  }

  struct Placed {
    std::string prefill, decode;
    uint32_t attempt = 0;
  };
  TimePoint now{};
  std::unique_ptr<Conductor> conductor;
  std::map<RequestId, Placed> at;
  std::map<RequestId, Reply> ended;
  std::vector<BreakerChanged> changes;
  std::vector<RequestRetried> retries;
};

constexpr auto kOpen = sched::BreakerState::open, kHalfOpen = sched::BreakerState::half_open,
               kClosed = sched::BreakerState::closed;

}  // namespace

TEST_CASE("node/breaker: a request that fails on a pair is tried on another one first") {
  Bench b({"p0", "p1", "d0"});
  const std::string first = b.submit("r");
  b.fail("r");
  CHECK(b.pair("r") != first);
  CHECK(b.at["r"].attempt == 2);
  b.answer("r");
  CHECK(b.ended["r"].kind == Reply::Kind::finished);
  REQUIRE(b.ended["r"].summary.failed.size() == 1);
  CHECK(b.ended["r"].summary.failed[0].reason == Reason::kv_transfer);
}

TEST_CASE("node/breaker: an internal code of a transfer reaches no client as its own error, whatever is tried") {
  Bench b({"p0", "d0"});
  b.submit("r");
  while (!b.ended.contains("r")) b.fail("r");  // "no such buffer"
  CHECK(b.ended["r"].reason == Reason::kv_transfer);
  CHECK(b.ended["r"].kind == Reply::Kind::failed);
  CHECK(b.ended["r"].summary.failed.size() == 4);
  REQUIRE(b.retries.size() == 3);  // the fourth failure is the last attempt's
  CHECK(b.retries[0].failed.prefill == "p0");
  CHECK(b.retries[0].failed.stage == RequestStage::transfer);
  CHECK(b.retries[0].failed.reason == Reason::kv_transfer);
}

TEST_CASE("node/breaker: a pair that fails three requests is set aside, its nodes serve with others") {
  Bench b;
  b.open("p0", "d0");
  REQUIRE(b.changes.size() == 1);
  CHECK(b.changes[0].state == kOpen);
  CHECK(b.conductor->flights().stats().set_aside == 1);
  std::set<std::string> used;
  for (int i = 0; i < 12; ++i) used.insert(b.submit("r" + std::to_string(i)));
  CHECK_FALSE(used.contains("p0 d0"));
  CHECK(std::any_of(used.begin(), used.end(), [](const auto& pair) { return pair.starts_with("p0"); }));
  CHECK(std::any_of(used.begin(), used.end(), [](const auto& pair) { return pair.ends_with("d0"); }));
}

TEST_CASE("node/breaker: after its back-off exactly one request probes a pair, and a success takes it back") {
  Bench b({"p0", "d0", "d1"});
  b.open("p0", "d0"), b.open("p0", "d1");
  b.wait_for_half_open();
  b.wait_for_half_open();
  std::map<std::string, int> used;
  for (int i = 0; i < 2; ++i) ++used[b.submit("probe" + std::to_string(i))];
  CHECK(used["p0 d0"] == 1);
  CHECK(used["p0 d1"] == 1);
  const std::string good = b.pair("probe0"), bad = b.pair("probe1");
  b.answer("probe0");
  for (int i = 0; i < 8; ++i) CHECK(b.submit("r" + std::to_string(i)) == good);
  CHECK(b.state("p0", good.substr(3)) == kClosed);
  CHECK(b.state("p0", bad.substr(3)) == kHalfOpen);
  b.fail("probe1");
  CHECK(b.state("p0", bad.substr(3)) == kOpen);
  CHECK(b.pair("probe1") == good);
}

TEST_CASE("node/breaker: a probe whose client goes leaves its place to the next request") {
  Bench b({"p0", "p1", "d0"});
  b.open("p0", "d0");
  b.wait_for_half_open();
  CHECK(b.submit("probe", "p0", "d0") == "p0 d0");
  b.give(ClientCancel{"probe"});
  CHECK(b.state("p0", "d0") == kHalfOpen);
  CHECK(b.submit("next", "p0", "d0") == "p0 d0");
  b.answer("next");
  CHECK(b.conductor->breakers().empty());
}

TEST_CASE("node/breaker: where every pair is set aside requests are placed all the same, also those that are pinned") {
  Bench b({"p0", "d0"});
  b.open("p0", "d0");
  CHECK(b.submit("r") == "p0 d0");
  CHECK(b.submit("pinned", "p0", "d0") == "p0 d0");
  b.answer("r");
  CHECK(b.state("p0", "d0") == kClosed);
}

TEST_CASE("node/breaker: room, promises, deadlines and clients open nothing") {
  Bench b;
  for (const char* code : {"queue_full", "draining", "predicted_slo_miss", "no_space"})
    for (int i = 0; i < 5; ++i) {
      const std::string req = code + std::to_string(i);
      b.submit(req, "p0", "d0");
      b.fail(req, "accept", code);
      b.give(ClientCancel{req});
    }
  CHECK(b.conductor->breakers().empty());
}

TEST_CASE("node/breaker: the end of a back-off is reported at the next event, also when its request is unknown") {
  Bench b({"p0", "p1", "d0"});
  b.open("p0", "d0");
  b.changes.clear();
  b.now = b.conductor->breakers().next_wakeup();
  b.give(ClientCancel{"nobody"});
  REQUIRE(b.changes.size() == 1);
  CHECK(b.changes[0].state == kHalfOpen);
}

TEST_CASE("node/breaker: a node whose computing fails is set aside alone, with all its pairs") {
  Bench b;
  for (int i = 0; i < 3; ++i) {
    const std::string req = "r" + std::to_string(i);
    b.submit(req, "p0", i % 2 ? "d0" : "d1");
    b.fail(req, "prefill", "io");
    b.give(ClientCancel{req});
  }
  CHECK(b.state("p0", "") == kOpen);
  for (int i = 0; i < 6; ++i) CHECK(b.submit("s" + std::to_string(i)).starts_with("p1"));
}

TEST_CASE("node/breaker: a node that comes back as a new process starts with a clean record") {
  Bench b({"p0", "p1", "d0"});
  b.open("p0", "d0");
  b.give(PeerLost{"d0", instance("d0"), "killed"});
  CHECK(b.conductor->breakers().empty());
}

TEST_CASE("node/breaker: held requests wait for a busy pair that works rather than use one that fails") {
  ConductorOptions options;
  options.hold = ConductorOptions::Hold::on;
  options.hold_lead = 1us;
  Bench b({"p0", "p1", "d0"}, options);
  for (int i = 0; i < 3; ++i) {
    const std::string req = "open" + std::to_string(i);
    b.submit(req, "p0", "d0");
    b.fail(req);
    b.give(ClientCancel{req});
  }
  REQUIRE(b.state("p0", "d0") == kOpen);
  CHECK(b.submit("first") == "p1 d0");
  b.at["second"] = {};
  CHECK(b.submit("second") == " ");  // p0 is idle, and would fail
  b.answer("first");
  CHECK(b.pair("second") == "p1 d0");
}

TEST_CASE("node/breaker: a held request that waits for a pair runs there when the pair's breaker closes") {
  ConductorOptions options;
  options.hold = ConductorOptions::Hold::on;
  options.hold_lead = 1us;
  Bench b({"p0", "p1", "d0"}, options);
  CHECK(b.submit("early", "p0", "d0") == "p0 d0");
  wire::FirstToken f;
  f.req = "early", f.attempt = 1, f.token = 1;
  b.give(Received{"p0", instance("p0"), f});
  b.open("p0", "d0");
  CHECK(b.submit("first") == "p1 d0");
  b.at["second"] = {};
  CHECK(b.submit("second") == " ");
  wire::Tokens t;  // not the last token: "early" keeps its place on the decode node
  t.rows.push_back({"early", 1, 1, 2, {}, ""});
  b.give(Received{"d0", instance("d0"), t});
  REQUIRE(b.state("p0", "d0") == kClosed);
  CHECK(b.pair("second") == "p0 d0");
}

}  // namespace breaker_test
