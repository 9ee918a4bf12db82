// Seeded fault schedules over everything that decides who may come in, where it goes and when: policies, admission,
// SLOs, tenants with quotas, priorities, pins, sessions, drains, holds, slow start, replication, keys read again.
//
//   lost nothing      every request ends once, by its deadline (World), and the conductor's counts say as what
//   quota             nobody is taken in whose bucket holds too little, nobody is refused whose bucket holds enough;
//                     what is rejected before any work is paid back; a bucket never holds more than its burst
//   books             when all is over nothing is unfinished, held or copied, and buckets fill up again
//   starvation        in a healthy cluster nobody waits longer than its class and priority are worth, and the work
//   there
//
// MC_SIM_SEEDS as in cluster_test.cc.

#include <array>

#include "schedule.h"
#include "sim/world.h"
#include "test.h"

namespace policy_test {

using namespace mc;
using namespace mc::sim;

namespace {

template <class T, size_t N>
T one_of(Rng& rng, const std::array<T, N>& items) {
  return items[rng.below(N)];
}

std::vector<sched::Tenant> draw_tenants(Rng& rng) {
  std::vector<sched::Tenant> out;
  for (const char* name : {"a", "b", "c"}) {
    if (rng.chance(0.3)) continue;
    sched::Tenant t{.name = name};
    t.weight = one_of(rng, std::array{0.5, 1.0, 3.0});
    t.priority = static_cast<int>(rng.below(3)) - 1;
    if (rng.chance(0.5)) t.tokens_per_s = one_of(rng, std::array{50.0, 500.0, 20000.0});
    if (t.tokens_per_s > 0 && rng.chance(0.5)) t.burst_tokens = one_of(rng, std::array{40.0, 400.0, 1e6});
    if (rng.chance(0.3)) t.requests_max = 1 + static_cast<uint32_t>(rng.below(4));
    out.push_back(t);
  }
  return out;
}

WorldOptions shape(uint64_t seed) {
  Rng rng(seed * 7919 + 17);
  WorldOptions o;
  o.seed = seed;
  o.prefill = 1 + static_cast<uint32_t>(rng.below(4));
  o.decode = 1 + static_cast<uint32_t>(rng.below(3));
  o.cache = static_cast<uint32_t>(rng.below(2));
  o.page_count = 48 + static_cast<uint32_t>(rng.below(100));
  o.chunk_tokens = 16u << rng.below(4);
  o.batch_max = 1 + static_cast<uint32_t>(rng.below(16));
  o.policy = sched::policies()[rng.below(sched::policies().size())]->name;
  using Hold = node::ConductorOptions::Hold;
  o.hold = one_of(rng, std::array{Hold::off, Hold::automatic, Hold::on});
  o.hold_lead = one_of(rng, std::array<Duration, 3>{0ms, 5ms, 300ms});
  o.fair = {.age_s = one_of(rng, std::array{0.05, 0.5}), .stretch = one_of(rng, std::array{0.0, 10.0})};
  o.tenants = draw_tenants(rng);
  o.request_max = rng.chance(0.2) ? 4 : 8192;
  if (rng.chance(0.6))
    o.replicate = {.replicas_max = 1 + static_cast<uint32_t>(rng.below(4)),
                   .bytes_per_s = one_of(rng, std::array{1e4, 1e6, 1e9}),
                   .half_life_s = 5,
                   .node_share = one_of(rng, std::array{1e-6, 1e-3}),
                   .blocks_min = 1};
  sched::Options& s = o.sched;
  s.admission = sched::admissions()[rng.below(sched::admissions().size())];
  s.fetch_rule = rng.chance(0.5) ? sched::FetchRule::cost : sched::FetchRule::threshold;
  if (rng.chance(0.3)) s.ttft_slo_s = one_of(rng, std::array{0.005, 0.05, 1.0});
  if (rng.chance(0.3)) s.tbt_slo_s = one_of(rng, std::array{0.0006, 0.0009, 0.01});
  if (rng.chance(0.3)) s.slow_start_s = 2;
  s.admitting = {.decode_s = one_of(rng, std::array{0.0, 0.05}),
                 .slack = one_of(rng, std::array{0.8, 1.0, 1.5}),
                 .aggregate = rng.chance(0.5) ? sched::Aggregate::mean : sched::Aggregate::max};
  s.first_with_second = rng.chance(0.3);
  draw_pipelines(rng, o);
  return o;
}

/// A client that makes use of everything there is.
class Clients {
 public:
  explicit Clients(World& world, const WorldOptions& options) : world_(world), options_(options) {}

  node::Submit draw() {
    Rng& rng = world_.rng();
    node::Submit s;
    s.ids = prompt();
    s.stopping.max_tokens = 1 + static_cast<uint32_t>(rng.below(40));
    s.deadline = Duration(rng.between(50'000'000, 4'000'000'000));
    if (rng.chance(0.7)) s.tenant = one_of(rng, std::array<const char*, 4>{"a", "b", "c", "nobody"});
    if (rng.chance(0.5)) s.priority = static_cast<int>(rng.below(9)) - 4;
    if (rng.chance(0.3)) s.session = "s" + std::to_string(rng.below(5));
    if (rng.chance(0.15)) s.pin_prefill = "p" + std::to_string(rng.below(options_.prefill + (rng.chance(0.2) ? 1 : 0)));
    if (rng.chance(0.1)) s.pin_decode = "d" + std::to_string(rng.below(options_.decode));
    if (rng.chance(0.2)) s.ttft_slo_s = one_of(rng, std::array{0.001, 0.02, 0.5});
    if (rng.chance(0.2)) s.tbt_slo_s = one_of(rng, std::array{0.0006, 0.001, 0.02});
    s.no_cache = rng.chance(0.05);
    if (rng.chance(0.1)) s.salt = "other";
    return s;
  }

  /// Submits, and holds the answer against the tenant's books of the moment before.
  RequestId give(node::Submit s) {
    node::Conductor* c = world_.conductor();
    if (!c) return world_.submit(std::move(s));
    const auto before = find(*c, s.tenant);
    const double tokens = static_cast<double>(s.ids.size()), refunded_before = refunds_of(before.name);
    const double charged_before = answered(before.name);
    const RequestId req = world_.submit(std::move(s));
    const Outcome& outcome = world_.outcomes().at(req);
    const auto after = find(*c, before.name);
    const sched::Tenant* t = tenant(before.name);
    if (!t || outcome.reason == node::Reason::invalid || outcome.reason == node::Reason::context_length_exceeded)
      return req;
    if (outcome.reason == node::Reason::no_prefill || outcome.reason == node::Reason::no_decode ||
        outcome.reason == node::Reason::queue_full)
      return req;
    INFO(req << " of " << before.name << ": " << tokens << " tokens, level " << before.level << ", ended "
             << outcome.end());
    const double needed = std::min(tokens, t->burst());
    const bool many = t->requests_max > 0 && before.unfinished >= t->requests_max;
    const bool few = t->tokens_per_s > 0 && before.level < needed;
    CHECK((outcome.reason == node::Reason::tenant_quota) == (many || few));
    if (t->tokens_per_s <= 0 || outcome.reason == node::Reason::tenant_quota) return req;
    const double refunded = refunds_of(before.name) - refunded_before;
    const double charged = tokens + answered(before.name) - charged_before;
    CHECK(after.level == doctest::Approx(std::min(t->burst(), before.level - charged + refunded)).epsilon(1e-9));
    return req;
  }

  /// Checks the invariants that hold at any time.
  void check() {
    const node::Conductor* c = world_.conductor();
    if (!c) return;
    for (const auto& t : c->tenants().statuses(world_.now())) {
      const sched::Tenant* limits = tenant(t.name);
      if (limits && limits->tokens_per_s > 0) CHECK(t.level <= limits->burst() * (1 + 1e-12));
      CHECK(t.submitted >= t.rejected + t.unfinished);
    }
    if (options_.replicate.replicas_max == 0) CHECK(c->copies().stats().copies + c->copies().stats().failed == 0);
    CHECK(c->copies().size() <= 4);
  }

  /// Checks the invariants that hold after the last request has ended and time has passed.
  void check_over() {
    const node::Conductor* c = world_.conductor();
    REQUIRE(c != nullptr);
    CHECK(c->flights().size() == 0);
    CHECK(c->line().size() == 0);
    CHECK(c->copies().size() == 0);
    const auto& r = options_.replicate;
    CHECK(c->copies().budget_bytes(world_.now()) == doctest::Approx(r.bytes_per_s * r.burst_s));
    for (const auto& t : c->tenants().statuses(world_.now())) {
      INFO("tenant " << t.name);
      CHECK(t.unfinished == 0);
      CHECK(t.waiting == 0);
      const sched::Tenant* limits = tenant(t.name);
      if (limits && limits->tokens_per_s > 0 && limits->burst() <= 40 * limits->tokens_per_s)
        CHECK(t.level == doctest::Approx(limits->burst()));
    }
  }

  void set_tenants(std::vector<sched::Tenant> tenants) {
    options_.tenants = tenants;
    world_.set_tenants(tenants);
  }
  const sched::Tenant* tenant(const std::string& name) const {
    for (const auto& t : options_.tenants)
      if (t.name == name) return &t;
    return nullptr;
  }

 private:
  std::vector<uint32_t> prompt() {
    Rng& rng = world_.rng();
    std::vector<uint32_t> ids;
    if (!history_.empty() && rng.chance(0.7)) ids = history_[rng.below(history_.size())];
    const uint64_t more = rng.chance(0.3) ? rng.below(3) : 1 + rng.below(120);
    for (uint64_t i = 0; i < more; ++i) ids.push_back(static_cast<uint32_t>(rng.below(63)));
    if (ids.size() > 300) ids.resize(300);
    if (ids.empty()) ids.push_back(1);
    if (rng.chance(0.01)) ids.resize(600, 5);  // longer than any node's context
    if (ids.size() <= 300) history_.push_back(ids);
    return ids;
  }

  node::Tenants::Status find(const node::Conductor& c, const std::string& name) const {
    const auto all = c.tenants().statuses(world_.now());
    for (const auto& t : all)
      if (t.name == name) return t;
    return all.front();
  }
  // Sums over all that a tenant ever sent: only their changes within one moment are used.
  double refunds_of(const std::string& name) const {
    double sum = 0;
    for (const auto& [req, o] : world_.outcomes())
      if (is_of(o, name) && o.ended != kNever && o.attempts == 0 && o.stage == node::RequestStage::route &&
          o.reason != node::Reason::tenant_quota && o.reason != node::Reason::deadline_exceeded)
        sum += static_cast<double>(o.asked.ids.size());
    return sum;
  }
  double answered(const std::string& name) const {
    double sum = 0;
    for (const auto& [req, o] : world_.outcomes())
      if (is_of(o, name)) sum += static_cast<double>(o.answer.size());
    return sum;
  }
  bool is_of(const Outcome& o, const std::string& name) const {
    return o.asked.tenant == name || (name == "default" && !tenant(o.asked.tenant));
  }

  World& world_;
  WorldOptions options_;
  std::vector<std::vector<uint32_t>> history_;
};

void disturb(World& world, Clients& clients, const std::vector<RequestId>& sent, const WorldOptions& options) {
  Rng& rng = world.rng();
  if (rng.chance(0.1)) world.disconnect(sent[rng.below(sent.size())]);
  const auto names = world.names();
  const std::string& victim = names[rng.below(names.size())];
  if (rng.chance(0.06) && world.alive(victim)) world.crash(victim);
  for (const auto& name : names)
    if (!world.alive(name) && rng.chance(0.15)) world.restart(name);
  const std::string& other = names[rng.below(names.size())];
  if (rng.chance(0.2)) world.drain(other, rng.chance(0.4));
  if (!options.tenants.empty() && rng.chance(0.05)) clients.set_tenants(draw_tenants(rng));
}

void require_clean(World& world, uint64_t seed) {
  INFO("seed " << seed);
  REQUIRE_MESSAGE(world.violation().empty(), world.violation());
}

/// How a request may end in a healthy cluster.
bool may_end(const Outcome& o, const WorldOptions& options, const sched::Tenant* tenant) {
  if (o.served()) return true;
  if (o.reason == node::Reason::predicted_slo_miss) return options.sched.ttft_slo_s > 0 || options.sched.tbt_slo_s > 0;
  if (o.reason == node::Reason::tenant_quota) return tenant && (tenant->tokens_per_s > 0 || tenant->requests_max > 0);
  return o.reason == node::Reason::queue_full && options.request_max < 8192;
}

void serve_healthy(World& world, Clients& clients, const WorldOptions& options, uint64_t seed) {
  end_faults(world);
  world.run_for(5s);  // a node notices after 3 s of silence that its conductor has died, and registers again
  for (const auto& name : world.names()) world.drain(name, false);
  world.run_for(3s);
  require_clean(world, seed);
  INFO("seed " << seed);
  for (const auto& n : world.conductor()->nodes(world.now())) {
    INFO(n.name << " is " << to_string(n.state));
    CHECK((n.state == node::NodeState::ready &&
           !n.load.draining));  // whatever was on its way when the drain was taken back
  }
  std::vector<RequestId> last;
  for (int n = 0; n < 10; ++n) {
    node::Submit s = clients.draw();
    s.ttft_slo_s = s.tbt_slo_s = 0, s.deadline = 20s;
    s.ids.resize(std::min<size_t>(s.ids.size(), 300));
    if (!s.pin_prefill.empty()) s.pin_prefill = "p0";
    last.push_back(clients.give(std::move(s)));
  }
  REQUIRE(world.run_until_done(25s));
  require_clean(world, seed);
  for (const auto& req : last) {
    const Outcome& o = world.outcomes().at(req);
    INFO(req << " ended " << o.end() << " in " << to_string(o.stage) << ", attempts " << o.attempts << ", tenant "
             << o.asked.tenant);
    CHECK(may_end(o, options, clients.tenant(o.asked.tenant)));
    // Ten short prompts are a tenth of a second of work; priorities and classes differ by ten steps in all.
    CHECK(o.summary.held_s < 1 + 10 * options.fair.age_s + (options.fair.stretch > 0 ? 1 : 0));
  }
}

}  // namespace

TEST_CASE("sim: no fault schedule breaks a promise of tenants, priorities, pins, sessions, drains, holds or copies") {
  uint64_t copies = 0, held = 0, quota = 0, missed = 0, served = 0;
  for (uint64_t i = 0; i < seed_count(20); ++i) {
    const uint64_t seed = 5000 + test::seed() + i;
    WorldOptions options = shape(seed);
    Rng rng(seed);
    draw_faults(rng, options.faults);
    World world(options);
    Clients clients(world, options);
    world.run_for(100ms);
    std::vector<RequestId> sent;
    INFO("seed " << seed);
    for (int n = 0; n < 40; ++n) {
      // Bursts and pauses: queues form, buckets run dry, and both recover.
      for (uint64_t burst = world.rng().chance(0.2) ? 6 : 1; burst > 0; --burst)
        sent.push_back(clients.give(clients.draw()));
      disturb(world, clients, sent, options);
      world.run_for(Duration(world.rng().between(0, 120'000'000)));
      clients.check();
      require_clean(world, seed);
    }
    serve_healthy(world, clients, options, seed);
    if (const node::Conductor* c = world.conductor()) {
      copies += c->copies().stats().copies, held += c->flights().stats().held_turn + c->flights().stats().held_prefix;
      for (const auto& [bound, times] : c->flights().stats().missed) missed += times;
    }
    for (const auto& [req, o] : world.outcomes()) quota += o.reason == node::Reason::tenant_quota, served += o.served();
    world.run_for(45s);  // past every deadline, lease and copy
    require_clean(world, seed);
    REQUIRE_MESSAGE(world.leftovers().empty(), world.leftovers());
    clients.check_over();
  }
  // The schedules do reach what they are for.
  INFO(copies << " copies, " << held << " held, " << quota << " over quota, " << missed << " missed, " << served);
  CHECK((copies > 0 && held > 0 && quota > 0 && missed > 0 && served > 0));
}

TEST_CASE("sim: a stream of urgent requests does not starve one of a worse class, nor one of a worse priority") {
  for (uint64_t i = 0; i < seed_count(4); ++i) {
    for (const bool by_class : {true, false}) {
      WorldOptions options;
      options.seed = 90 + test::seed() + i;
      options.hold = node::ConductorOptions::Hold::on, options.hold_lead = 1ms;
      options.fair.age_s = 0.1;
      options.tenants = {{.name = "urgent"}, {.name = "slow", .priority = by_class ? 3 : 0}};
      World world(options);
      world.run_for(100ms);
      const auto ask = [&](const char* tenant, int priority) {
        node::Submit s;
        for (int k = 0; k < 100; ++k) s.ids.push_back(static_cast<uint32_t>(world.rng().below(63)));
        s.stopping.max_tokens = 1, s.deadline = 10s, s.tenant = tenant, s.priority = priority;
        return world.submit(std::move(s));
      };
      // 100 tokens take 2.6 ms: as many come as the node can serve.
      for (int n = 0; n < 20; ++n) ask("urgent", -1);
      const RequestId late = by_class ? ask("slow", 0) : ask("urgent", 2);
      while (world.outcomes().at(late).ended == kNever && world.now() < world.outcomes().at(late).deadline) {
        ask("urgent", -1);
        world.run_for(2600us);
      }
      const Outcome& o = world.outcomes().at(late);
      INFO("seed " << options.seed << (by_class ? " class" : " priority") << ", held " << o.summary.held_s << " s");
      CHECK(o.served());
      // Three steps of 0.1 s, and those that were here before it, about 20 and what came in that time.
      CHECK(o.summary.held_s >= 0.05);
      CHECK(o.summary.held_s < 0.3 + 0.3);
      require_clean(world, options.seed);
    }
  }
}

}  // namespace policy_test
