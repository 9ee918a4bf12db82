// Held requests, quotas, pins and sessions: the conductor machine alone, fed with hand-made messages.

#include "node/conductor.h"
#include "test.h"

namespace hold_test {

using namespace mc;
using namespace mc::node;

namespace {

using Hold = ConductorOptions::Hold;

InstanceId instance(uint8_t n) {
  InstanceId id;
  id.bytes[0] = n;
  return id;
}

/// A cluster whose prefill takes 10 ms a token and whose nodes are heard whenever time passes.
struct Bench {
  explicit Bench(Hold hold, std::vector<sched::Tenant> tenants = {}, double stretch = 0)
      : conductor(options(hold, std::move(tenants), stretch)) {}
  static ConductorOptions options(Hold hold, std::vector<sched::Tenant> tenants, double stretch) {
    ConductorOptions o;
    o.instance = instance(99);
    o.policy = sched::find_policy("kv-centric");
    o.hold = hold;
    o.hold_lead = 100ms;
    o.tenants = std::move(tenants);
    o.fair.stretch = stretch;
    return o;
  }
  Actions give(const Event& event, bool checked = true) {
    Actions out;
    conductor.handle(event, now, out);
    if (checked) conductor.check();
    for (const auto& a : out)
      if (const auto* s = std::get_if<Send>(&a))
        if (const auto* start = std::get_if<wire::PrefillStart>(&s->message))
          started.push_back(start->spec.req), on[start->spec.req] = s->to,
                                              attempt[start->spec.req] = start->spec.attempt,
                                              ns[start->spec.req] = start->spec.ns;
    for (const auto& a : out)
      if (const auto* r = std::get_if<Reply>(&a)) replies.push_back(*r);
    return out;
  }
  void hello(wire::Role role, const std::string& name, uint8_t n, const std::string& model = "m") {
    numbers[name] = n;
    wire::Hello h;
    h.role = role, h.name = name, h.model = model, h.page_count = 1000, h.page_bytes = 4096, h.context_tokens = 4096;
    h.control_uri = "sim:" + name;
    h.cost.prefill_s_per_token = 0.01, h.cost.read_bytes_per_s = 1e9;
    kv::Namespace ns;
    ns.weights = "w", ns.config = "c", ns.dtype = ns.weight_dtype = ns.kv_dtype = "f32", ns.rope = "r";
    ns.attention = "full";
    ns.layers = 2, ns.kv_heads = 1, ns.head_dim = 16, ns.block_tokens = block_tokens, ns.layout = 1;
    h.kv_namespace = ns.text();
    h.decode_attention = "full";
    give(Received{name, instance(n), h});
  }
  Submit request(const std::string& req, size_t tokens, uint32_t fill = 0) {
    Submit s;
    s.req = req;
    s.ids.assign(tokens, fill ? fill : ++next_fill);
    this->tokens[req] = tokens;
    s.stopping.max_tokens = 10;
    s.deadline = 100s;
    return s;
  }
  void wait(Duration d) {
    const TimePoint end = now + d;
    while (now < end) {
      now = std::min(end, now + 100ms);
      for (const auto& [name, n] : numbers) give(Received{name, instance(n), wire::Heartbeat{}});
      if (conductor.next_wakeup() <= now) give(Tick{});
    }
  }
  void first_token(const std::string& req) {
    wire::FirstToken f;
    f.req = req, f.attempt = attempt.at(req), f.token = 1, f.finish_reason = "length";
    f.report.compute_ms = 10.0 * static_cast<double>(tokens.at(req));
    give(Received{on.at(req), instance(numbers.at(on.at(req))), f}, conductor.line().size() < 1000);
  }
  void lose(const std::string& name) {
    give(PeerLost{name, instance(numbers.at(name)), "killed"});
    numbers.erase(name);
  }
  const Reply* reply(const std::string& req) const {
    for (const auto& r : replies)
      if (r.req == req && r.kind != Reply::Kind::token) return &r;
    return nullptr;
  }
  bool runs(const std::string& req) const { return on.contains(req); }

  TimePoint now{};
  uint32_t next_fill = 100, block_tokens = 64;
  std::map<std::string, NamespaceId> ns;
  std::map<std::string, uint8_t> numbers;
  std::vector<std::string> started;
  std::map<std::string, std::string> on;
  std::map<std::string, uint32_t> attempt;
  std::map<std::string, size_t> tokens;
  std::vector<Reply> replies;
  Conductor conductor;
};

void start(Bench& b, int prefills = 1) {
  for (int i = 0; i < prefills; ++i) b.hello(wire::Role::prefill, "p" + std::to_string(i), static_cast<uint8_t>(1 + i));
  b.hello(wire::Role::decode, "d0", 20);
}

}  // namespace

TEST_CASE("node/hold: a request waits here until a node is about to be free, and goes first by priority") {
  Bench b(Hold::on);
  start(b);
  b.give(b.request("first", 500));
  CHECK(b.runs("first"));
  Submit late = b.request("low", 500), normal = b.request("normal", 500), urgent = b.request("urgent", 500);
  late.priority = 3, urgent.priority = -3;
  b.give(late), b.give(normal), b.give(urgent);
  CHECK(b.conductor.line().size() == 3);
  CHECK(b.started.size() == 1);
  b.wait(4800ms);
  CHECK(b.started.size() == 1);
  b.wait(200ms);  // a tenth of a second before it is predicted to be free
  CHECK(b.runs("urgent"));
  b.first_token("first");
  b.first_token("urgent");
  b.first_token("normal");
  CHECK(b.started == std::vector<std::string>{"first", "urgent", "normal", "low"});
  b.first_token("low");
  CHECK(b.reply("low")->summary.held_for.kind == Held::Kind::turn);
  CHECK(b.reply("low")->summary.held_s == doctest::Approx(5.0).epsilon(0.05));
  CHECK(b.conductor.idle());
}

TEST_CASE("node/hold: off places at once, and so does automatic without priorities and tenants") {
  for (const Hold hold : {Hold::off, Hold::automatic}) {
    Bench b(hold);
    start(b);
    b.give(b.request("a", 500));
    b.give(b.request("b", 500));
    CHECK(b.started.size() == 2);
    Submit urgent = b.request("c", 500);
    urgent.priority = -1;
    b.give(urgent);
    CHECK(b.runs("c") == (hold == Hold::off));
  }
}

TEST_CASE("node/hold: two requests with one prefix compute it once: the second waits for the first") {
  Bench b(Hold::on);
  start(b, 2);
  Submit first = b.request("a", 640, 7), second = b.request("b", 660, 7);
  b.give(first);
  b.give(second);
  CHECK(b.runs("a"));
  CHECK_FALSE(b.runs("b"));  // p1 is idle, but would compute 640 tokens again
  b.wait(3s);
  CHECK_FALSE(b.runs("b"));
  // Blocks first, then the token, as a prefill node tells them.
  wire::BlockEvents events;
  events.first_seq = 1;
  const auto e = b.conductor.explain(first, b.now);
  for (size_t i = 0; i < e.hashes.size(); ++i)
    events.events.push_back({true, {e.hashes[i], i ? e.hashes[i - 1] : BlockHash{}}});
  b.give(Received{b.on["a"], instance(b.numbers[b.on["a"]]), events});
  b.first_token("a");
  REQUIRE(b.runs("b"));
  b.first_token("b");
  CHECK(b.reply("b")->summary.held_for == Held{Held::Kind::prefix, b.on["a"]});
  REQUIRE_FALSE(b.reply("b")->summary.considered.empty());
  const auto& won = b.reply("b")->summary.considered[0];
  CHECK(won.local_blocks + won.fetch_blocks == 10);
  CHECK(b.conductor.flights().stats().held_prefix == 1);
}

TEST_CASE("node/hold: a producer that dies releases the one that waits for its prefix") {
  Bench b(Hold::on);
  start(b, 2);
  b.give(b.request("a", 640, 7));
  b.give(b.request("b", 660, 7));
  CHECK_FALSE(b.runs("b"));
  const std::string producer = b.on["a"];
  b.give(PeerLost{producer, instance(b.numbers[producer]), "killed"});
  b.numbers.erase(producer);
  b.wait(8s);
  CHECK(b.runs("b"));
  CHECK(b.on["b"] != producer);
}

TEST_CASE("node/hold: a producer that is late holds nobody for ever") {
  Bench b(Hold::on);
  start(b, 2);
  b.give(b.request("a", 640, 7));
  b.give(b.request("b", 660, 7));
  b.wait(20s);  // 6.4 s were predicted
  CHECK(b.runs("b"));
}

TEST_CASE("node/hold: who cannot keep its TTFT promise is rejected at once, or when its turn did not come") {
  Bench b(Hold::on);
  start(b);
  b.give(b.request("running", 500));  // 5 s
  Submit soon = b.request("soon", 100), never = b.request("never", 100), hopeful = b.request("hopeful", 100);
  soon.ttft_slo_s = 7, never.ttft_slo_s = 5, hopeful.ttft_slo_s = 8;
  Submit urgent = b.request("urgent", 300);
  urgent.priority = -5;
  b.give(soon);
  CHECK_FALSE(b.reply("soon"));
  b.give(never);  // 5 s, then soon's 1 s
  REQUIRE(b.reply("never"));
  CHECK(b.reply("never")->reason == Reason::predicted_slo_miss);
  CHECK(b.reply("never")->predicted_ms == doctest::Approx(7000));
  CHECK(b.reply("never")->bound == sched::Bound::ttft);
  CHECK(b.reply("never")->message.find("predicted TTFT 7000.0 ms, allowed 5000.0 ms with 1 request waiting") == 0);
  b.give(hopeful);
  CHECK_FALSE(b.reply("hopeful"));
  b.give(urgent);
  b.wait(5s);
  CHECK(b.runs("urgent"));
  b.wait(1100ms);  // to 6.1 s
  REQUIRE(b.reply("soon"));
  CHECK_FALSE(b.reply("hopeful"));
  b.wait(1s);
  REQUIRE(b.reply("hopeful"));
  CHECK(b.reply("hopeful")->kind == Reply::Kind::rejected);
  CHECK(b.reply("hopeful")->message.find("turn") != std::string::npos);
}

TEST_CASE("node/hold: at its deadline, or when its client goes, a held request ends") {
  Bench b(Hold::on);
  start(b);
  b.give(b.request("running", 3000));
  Submit late = b.request("late", 10);
  late.deadline = 2s;
  b.give(late);
  b.give(b.request("gone", 10));
  b.give(ClientCancel{"gone"});
  CHECK(b.reply("gone")->finish == Finish::abort);
  b.wait(2100ms);
  REQUIRE(b.reply("late"));
  CHECK(b.reply("late")->reason == Reason::deadline_exceeded);
  CHECK(b.reply("late")->stage == RequestStage::route);
  CHECK(b.conductor.line().size() == 0);
}

TEST_CASE("node/hold: turns are shared by weight between tenants, and a burst of one does not starve another") {
  Bench b(Hold::automatic, {{.name = "heavy", .weight = 1}, {.name = "light", .weight = 1}});
  start(b);
  b.give(b.request("busy", 200));
  for (int i = 0; i < 6; ++i) {
    Submit s = b.request("h" + std::to_string(i), 100);
    s.tenant = "heavy";
    b.give(s);
  }
  for (int i = 0; i < 2; ++i) {
    Submit s = b.request("l" + std::to_string(i), 100);
    s.tenant = "light";
    b.give(s);
  }
  for (size_t i = 0; i < 9; ++i) {
    REQUIRE(b.started.size() > i);
    b.first_token(b.started[i]);
  }
  CHECK(b.started == std::vector<std::string>{"busy", "h0", "l0", "h1", "l1", "h2", "h3", "h4", "h5"});
}

TEST_CASE("node/hold: a quota that is used up answers tenant_quota with the seconds to wait, and refills") {
  Bench b(Hold::off, {{.name = "a", .tokens_per_s = 100, .burst_tokens = 300, .requests_max = 2}});
  start(b);
  const auto ask = [&](const std::string& req, size_t tokens) {
    Submit s = b.request(req, tokens);
    s.tenant = "a";
    b.give(s);
  };
  ask("1", 250);
  CHECK(b.runs("1"));
  ask("2", 250);
  REQUIRE(b.reply("2"));
  CHECK(b.reply("2")->reason == Reason::tenant_quota);
  CHECK(b.reply("2")->retry_after == 2s);  // 50 are there, 250 are needed
  b.wait(2s);
  ask("3", 240);
  CHECK(b.runs("3"));
  ask("4", 1);
  REQUIRE(b.reply("4"));
  CHECK(b.reply("4")->message == "tenant a has 2 unfinished requests, its limit; each of n answers counts as one");
  b.first_token("1");
  b.wait(1s);
  ask("5", 10);
  CHECK(b.runs("5"));
  const auto tenants = b.conductor.tenants().statuses(b.now);
  REQUIRE(tenants.size() == 2);
  CHECK(tenants[1].submitted == 5);
  CHECK(tenants[1].rejected == 2);
  CHECK(tenants[1].tokens == 250 + 240 + 10 + 1);
}

TEST_CASE("node/hold: the text of a quota of one request names one request") {
  Bench b(Hold::off, {{.name = "a", .requests_max = 1}});
  start(b);
  for (const std::string req : {"1", "2"}) {
    Submit s = b.request(req, 10);
    s.tenant = "a";
    b.give(s);
  }
  REQUIRE(b.reply("2"));
  CHECK(b.reply("2")->message == "tenant a has 1 unfinished request, its limit; each of n answers counts as one");
}

TEST_CASE("node/hold: what is rejected before any work costs its tenant nothing") {
  Bench b(Hold::off, {{.name = "a", .tokens_per_s = 100, .burst_tokens = 1000}});
  start(b);
  Submit s = b.request("1", 900);
  s.tenant = "a", s.ttft_slo_s = 0.001;
  b.give(s);
  CHECK(b.reply("1")->reason == Reason::predicted_slo_miss);
  CHECK(b.conductor.tenants().statuses(b.now)[1].level == 1000);
}

TEST_CASE("node/hold: a rejection says which bound would have been broken, held or not") {
  for (const Hold hold : {Hold::off, Hold::on}) {
    Bench b(hold);
    start(b);
    Submit first = b.request("first", 100), next = b.request("next", 100);
    first.ttft_slo_s = 0.5, first.tbt_slo_s = next.tbt_slo_s = 0.001;
    b.give(first);
    REQUIRE(b.reply("first"));
    CHECK(b.reply("first")->bound == sched::Bound::ttft);
    CHECK(b.reply("first")->message == "predicted TTFT 1000.0 ms, allowed 500.0 ms");
    b.give(next);
    REQUIRE(b.reply("next"));
    CHECK(b.reply("next")->reason == Reason::predicted_slo_miss);
    CHECK(b.reply("next")->bound == sched::Bound::tbt);
    CHECK(b.reply("next")->message == "predicted TBT 2.1 ms, allowed 1.0 ms");
    CHECK(b.conductor.flights().stats().missed.at(sched::Bound::ttft) == 1);
    CHECK(b.conductor.flights().stats().missed.at(sched::Bound::tbt) == 1);
  }
}

TEST_CASE("node/hold: a pin to a node that is not there, or of another role, is invalid and names those there are") {
  Bench b(Hold::off);
  start(b, 2);
  Submit s = b.request("1", 10);
  s.pin_prefill = "p7";
  b.give(s);
  REQUIRE(b.reply("1"));
  CHECK(b.reply("1")->reason == Reason::invalid);
  CHECK(b.reply("1")->message == "mc.pin.prefill names p7, which is not in the cluster; the prefill nodes are p0, p1");
  CHECK(b.reply("1")->param == "mc.pin.prefill");
  s = b.request("2", 10);
  s.pin_decode = "p0";
  b.give(s);
  CHECK(b.reply("2")->message == "mc.pin.decode names p0, which is a prefill node; the decode nodes are d0");
  CHECK(b.reply("2")->param == "mc.pin.decode");
  CHECK(b.conductor.explain(s, b.now).refusal->message == b.reply("2")->message);
}

TEST_CASE("node/hold: a pin to a node that drains is answered at once, held or not, and so is explain") {
  for (const Hold hold : {Hold::off, Hold::on}) {
    Bench b(hold);
    start(b, 2);
    Actions ignored;
    CHECK(b.conductor.drain("p1", true, ignored));
    Submit s = b.request("1", 10);
    s.pin_prefill = "p1";
    b.give(s);
    REQUIRE(b.reply("1"));
    CHECK(b.reply("1")->reason == Reason::no_prefill);
    CHECK(b.reply("1")->message == "mc.pin.prefill names p1, which is draining and takes no new requests");
    CHECK(b.conductor.explain(s, b.now).refusal->message == b.reply("1")->message);
    CHECK(b.conductor.drain("p1", false, ignored));
    s.req = "2";
    b.give(s);
    CHECK(b.runs("2"));
  }
}

TEST_CASE("node/hold: a prompt longer than the nodes hold is invalid by its length, with no node asked") {
  Bench b(Hold::off);
  start(b);
  Submit s = b.request("1", 4096);
  b.give(s);
  REQUIRE(b.reply("1"));
  CHECK(b.reply("1")->reason == Reason::context_length_exceeded);
  const std::string wanted = "prompt is too long: this model's maximum context length is 4096 tokens on these nodes";
  CHECK(b.reply("1")->message.find(wanted) != std::string::npos);
  s = b.request("2", 4096), s.stopping.max_tokens = 1;  // that token is not computed with
  b.give(s);
  CHECK(b.runs("2"));
  b.give(b.request("3", 4095));
  CHECK(b.runs("3"));
}

TEST_CASE("node/hold: a session stays with its prefill node while that is little worse than the best") {
  Bench b(Hold::off);
  start(b, 3);
  Submit s = b.request("1", 100);
  s.session = "chat";
  b.give(b.request("other", 10));  // p0 is a little busy
  b.give(s);
  CHECK(b.on["1"] == "p1");
  b.first_token("other"), b.first_token("1");
  s = b.request("2", 100), s.session = "chat";  // another prompt: p0 would win the tie
  b.give(s);
  CHECK(b.on["2"] == "p1");
  s = b.request("3", 100), s.session = "chat";  // 1 s of queue is more than little
  b.give(s);
  CHECK(b.on["3"] == "p0");
}

TEST_CASE("node/hold: however many requests cannot run, the one behind them that can does") {
  SUBCASE("pinned to a node that is busy") {
    Bench b(Hold::on);
    start(b, 2);
    Submit busy = b.request("busy", 3000);
    busy.pin_prefill = "p0";
    b.give(busy);
    for (int i = 0; i < 100; ++i) {
      Submit s = b.request("pinned" + std::to_string(i), 10);
      s.pin_prefill = "p0";
      b.give(s);
    }
    b.give(b.request("free", 10));
    CHECK(b.on["free"] == "p1");
  }
  SUBCASE("waiting for a prefix") {
    Bench b(Hold::on);
    start(b, 2);
    b.give(b.request("producer", 640, 7));
    for (int i = 0; i < 100; ++i) b.give(b.request("waits" + std::to_string(i), 660, 7));
    CHECK(b.conductor.line().size() == 100);
    b.give(b.request("free", 10));
    CHECK(b.runs("free"));
  }
  SUBCASE("of a model whose node is busy: asked a part at a time, the rest a moment later") {
    Bench b(Hold::on);
    start(b);
    b.hello(wire::Role::prefill, "q0", 7, "n");
    b.hello(wire::Role::decode, "e0", 8, "n");
    for (int i = 0; i < 201; ++i) {
      Submit s = b.request("n" + std::to_string(i), 3000);
      s.model = "n";
      b.give(s);
    }
    CHECK(b.conductor.line().size() == 200);
    Submit s = b.request("free", 10);
    s.model = "m";
    b.give(s);
    b.wait(1s);
    CHECK(b.runs("free"));
    CHECK(b.conductor.line().size() == 200);
  }
}

TEST_CASE("node/hold: held requests outlive a node that is briefly away, and one that stays away by park_max") {
  for (const std::string role : {"decode", "prefill", "pinned"}) {
    INFO(role);
    Bench b(Hold::on);
    start(b, role == "pinned" ? 2 : 1);
    Submit first = b.request("first", 300), held = b.request("held", 10);
    if (role == "pinned") first.pin_prefill = held.pin_prefill = "p0";
    b.give(first);
    b.give(held);
    CHECK(b.conductor.line().size() == 1);
    b.first_token("first");
    REQUIRE(b.runs("held"));
    first.req = "again", held.req = "kept", b.tokens["again"] = 300, b.tokens["kept"] = 10;
    b.give(first);
    b.give(held);
    const std::string away = role == "decode" ? "d0" : "p0";
    const auto kind = role == "decode" ? wire::Role::decode : wire::Role::prefill;
    b.lose(away);
    b.wait(5s);
    CHECK_FALSE(b.reply("kept"));
    b.hello(kind, away, 30);
    b.wait(6s);
    CHECK(b.runs("kept"));
    Submit last = held;
    last.req = "last", b.tokens["last"] = 10;
    Submit before = first;
    before.req = "before", b.tokens["before"] = 300, before.ids.assign(300, 5);
    b.give(before);
    b.give(last);
    CHECK_FALSE(b.runs("last"));
    b.lose(away);
    b.wait(9900ms);
    CHECK_FALSE(b.reply("last"));
    b.wait(200ms);
    REQUIRE(b.reply("last"));
    CHECK(b.reply("last")->kind == Reply::Kind::rejected);
    CHECK(b.conductor.line().size() == 0);
  }
}

TEST_CASE("node/hold: room at a decode node wakes those that wait for it") {
  Bench b(Hold::on);
  start(b);
  Submit first = b.request("first", 10), second = b.request("second", 10);
  first.tbt_slo_s = second.tbt_slo_s = 0.00215;  // for one, not for two
  second.ttft_slo_s = 50;
  b.give(first);
  wire::FirstToken f;
  f.req = "first", f.attempt = 1, f.token = 1, f.report.compute_ms = 100;
  b.give(Received{"p0", instance(b.numbers["p0"]), f});
  b.give(second);
  CHECK_FALSE(b.runs("second"));
  CHECK_FALSE(b.reply("second"));
  wire::Tokens t;
  t.rows.push_back({"first", 1, 1, 5, {}, "stop"});
  b.give(Received{"d0", instance(b.numbers["d0"]), t});
  CHECK(b.reply("first"));
  CHECK(b.runs("second"));
}

TEST_CASE("node/hold: API keys may be read again for ever, with other tenants each time") {
  Bench b(Hold::automatic, {{.name = "first"}});
  start(b);
  Submit s = b.request("running", 500);
  s.tenant = "first";
  b.give(s);
  for (int i = 0; i < 2000; ++i) {
    const std::vector<sched::Tenant> next = {{.name = "t" + std::to_string(i)}, {.name = "u" + std::to_string(i)}};
    b.conductor.tenants().set(next);
    b.conductor.check();
  }
  CHECK(b.conductor.tenants().statuses(b.now).size() == 4);
  CHECK(b.conductor.tenants().statuses(b.now)[1].unfinished == 1);
  b.give(b.request("held", 10));
  CHECK_FALSE(b.runs("held"));
  b.first_token("running");
  b.first_token("held");
  b.conductor.tenants().set({});  // nobody is named any more: automatic holds nobody
  b.give(b.request("a", 500));
  b.give(b.request("b", 500));
  CHECK(b.runs("b"));
}

TEST_CASE("node/hold: whoever is turned away is so as its tenant, and work that was done is not paid back") {
  Bench b(Hold::off, {{.name = "a", .tokens_per_s = 100, .burst_tokens = 1000}});
  Submit s = b.request("early", 100);
  s.tenant = "a";
  b.give(s);
  CHECK(b.reply("early")->reason == Reason::no_prefill);
  CHECK(b.conductor.tenants().statuses(b.now)[0].rejected == 0);
  CHECK(b.conductor.tenants().statuses(b.now)[1].submitted == 1);
  CHECK(b.conductor.tenants().statuses(b.now)[1].rejected == 1);
  start(b);
  s.req = "late", b.tokens["late"] = 100;
  b.give(s);
  for (int i = 1; i <= 2; ++i) {  // its decode node refuses it before its prefill
    REQUIRE(b.attempt["late"] == static_cast<uint32_t>(i));
    wire::Failed f;
    f.req = "late", f.attempt = static_cast<uint32_t>(i), f.stage = "accept", f.code = "predicted_slo_miss";
    f.retryable = true, f.predicted_ms = 9, f.allowed_ms = 4;
    b.give(Received{"d0", instance(b.numbers["d0"]), f});
  }
  REQUIRE(b.reply("late"));
  CHECK(b.reply("late")->kind == Reply::Kind::rejected);
  CHECK(b.reply("late")->bound == sched::Bound::tbt);
  CHECK(b.reply("late")->stage == RequestStage::accept);
  CHECK(b.reply("late")->message == "predicted TBT 9.0 ms, allowed 4.0 ms on d0");
  CHECK(b.conductor.flights().stats().missed.at(sched::Bound::tbt) == 1);
  CHECK(b.conductor.tenants().statuses(b.now)[1].level == 900);
  CHECK(b.conductor.tenants().statuses(b.now)[1].tokens == 100);
}

TEST_CASE("node/hold: the blocks of a held request are named as those nodes do that it goes to in the end") {
  Bench b(Hold::on);
  start(b);
  b.give(b.request("busy", 3000));
  b.give(b.request("held", 300));
  CHECK(b.conductor.line().size() == 1);
  b.lose("p0");
  b.lose("d0");
  b.block_tokens = 128;  // another configuration
  start(b);
  b.wait(60s);
  REQUIRE(b.runs("held"));
  b.first_token("held");
  if (b.runs("busy") && b.attempt["busy"] > 1) b.first_token("busy");
  b.give(b.request("fresh", 300));
  b.wait(60s);
  REQUIRE(b.runs("fresh"));
  CHECK(b.ns["held"] == b.ns["fresh"]);
}

TEST_CASE("node/hold: what cannot run is not looked at again before it could: however many, an event costs the same") {
  constexpr int kHeld = 2000, kEvents = 100;
  Bench b(Hold::on);
  start(b, 2);
  Submit busy = b.request("busy", 4000, 7);
  busy.pin_prefill = "p0";
  b.give(busy);
  uint64_t each_max = 0;
  SUBCASE("pinned to a busy node") {
    for (int i = 0; i < kHeld; ++i) {
      Submit s = b.request("held" + std::to_string(i), 10);
      s.pin_prefill = "p0";
      b.give(s, false);
    }
    each_max = 1;
  }
  SUBCASE("waiting for a prefix that a node computes") {
    for (int i = 0; i < kHeld; ++i) b.give(b.request("held" + std::to_string(i), 4010, 7), false);
    each_max = 1;
  }
  SUBCASE("pinned to a node that was lost") {
    b.hello(wire::Role::prefill, "p2", 9);
    Submit last = b.request("last", 4000);
    last.pin_prefill = "p2";
    b.give(last);
    for (int i = 0; i < kHeld; ++i) {
      Submit s = b.request("held" + std::to_string(i), 10);
      s.pin_prefill = "p2";
      b.give(s, false);
    }
    b.lose("p2");
    each_max = 1;
  }
  SUBCASE("refused for bounds of TBT that differ") {
    for (int i = 0; i < 10; ++i) {  // a step of so many rows takes 3 ms
      const std::string req = "row" + std::to_string(i);
      b.give(b.request(req, 10));
      wire::FirstToken f;
      f.req = req, f.attempt = 1, f.token = 1, f.report.compute_ms = 100;
      b.give(Received{"p1", instance(b.numbers["p1"]), f});
    }
    for (int i = 0; i < kHeld; ++i) {
      Submit s = b.request("held" + std::to_string(i), 10);
      s.ttft_slo_s = 10'000, s.tbt_slo_s = 0.0022 + i * 4e-7;
      b.give(s, false);
    }
    each_max = 8;
  }
  REQUIRE(b.conductor.line().size() >= kHeld);
  const uint64_t before = b.conductor.line().asked();
  for (int i = 0; i < kEvents; ++i) {
    const std::string req = "free" + std::to_string(i);
    b.give(b.request(req, 10), false);
    REQUIRE(b.on[req] == "p1");
    b.first_token(req);
  }
  CHECK(b.conductor.line().asked() - before <= kEvents * (each_max + 1));
  b.conductor.check();
}

TEST_CASE("node/hold: those who wait for one node get their turns there in order, however many they are") {
  Bench b(Hold::on, {{.name = "a"}, {.name = "b"}});
  start(b, 2);
  Submit busy = b.request("busy", 500);
  busy.pin_prefill = "p0";
  b.give(busy);
  std::vector<std::string> expected = {"busy"};
  for (int i = 0; i < 40; ++i) {
    Submit s = b.request((i % 2 ? "b" : "a") + std::to_string(i), 100);
    s.pin_prefill = "p0", s.tenant = i % 2 ? "b" : "a";
    expected.push_back(s.req);
    b.give(s);
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    b.wait(2ms);
    REQUIRE(b.started.size() > i);
    b.first_token(b.started[i]);
  }
  CHECK(b.started == expected);
  CHECK(b.conductor.idle());
}

}  // namespace hold_test
