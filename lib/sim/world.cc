// The event loop, the fabric and the clients of a simulated cluster. What nodes do with pages and
// tags is in world_compute.cc.

#include "sim/world.h"

#include <algorithm>

#include "base/assert.h"
#include "sim/process.h"

namespace mc::sim {

World::World(WorldOptions options) : options_(std::move(options)), rng_(options_.seed) {
  start_process(std::string(node::kConductor));
  for (uint32_t i = 0; i < options_.prefill; ++i) {
    const std::string name = "p" + std::to_string(i);
    start_process(name);
    for (uint32_t s = 1; s < stages_of(name); ++s) start_process(node::stage_name(name, s));
  }
  for (uint32_t i = 0; i < options_.decode; ++i) start_process("d" + std::to_string(i));
  for (uint32_t i = 0; i < options_.cache; ++i) start_process("c" + std::to_string(i));
}

World::~World() = default;

void World::violate(std::string what) {
  if (violation_.empty()) violation_ = std::to_string(to_ms(now_ - TimePoint{})) + " ms: " + std::move(what);
}

// ---- events ----------------------------------------------------------------------------------

void World::at(TimePoint when, std::function<void()> run) {
  queue_.push_back({std::max(when, now_), ++seq_, std::move(run)});
  std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
}

void World::run_for(Duration d, const std::function<bool()>& stop) {
  const TimePoint end = now_ + d;
  while (!queue_.empty() && queue_.front().at <= end) {
    std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
    Pending next = std::move(queue_.back());
    queue_.pop_back();
    now_ = next.at;
    ++events_run_;
    next.run();
    if (stop && stop()) return;
  }
  now_ = end;
}

bool World::run_until_done(Duration limit) {
  const auto done = [&] { return unended() == 0; };
  if (!done()) run_for(limit, done);
  return done();
}

void World::schedule_tick(Process& process) {
  const TimePoint when = process.machine->next_wakeup();
  if (when == kNever || (process.tick_at != kNever && process.tick_at <= when && process.tick_at > now_)) return;
  process.tick_at = std::max(when, now_ + 1us);
  at(process.tick_at, [this, name = process.name, instance = process.instance, when = process.tick_at] {
    const auto it = processes_.find(name);
    if (it == processes_.end() || !it->second->machine || it->second->instance != instance) return;
    if (it->second->tick_at == when) it->second->tick_at = kNever;
    deliver(name, instance, node::Tick{});
  });
}

void World::deliver(const std::string& name, const InstanceId& instance, node::Event event) {
  const auto it = processes_.find(name);
  if (it == processes_.end() || !it->second->machine || it->second->instance != instance) return;
  Process& process = *it->second;
  node::Actions actions;
  process.machine->handle(event, now_, actions);
  process.machine->check();
  perform(process, std::move(actions));
  schedule_tick(process);
}

void World::perform(Process& process, node::Actions actions) {
  for (auto& action : actions) {
    if (auto* send = std::get_if<node::Send>(&action)) {
      if (const auto* start = std::get_if<wire::PrefillStart>(&send->message)) check_dispatch(send->to, *start);
      transmit(process, send->to, send->instance, false,
               node::Received{process.called(), process.instance, std::move(send->message)});
    } else if (auto* step = std::get_if<node::SendTokens>(&action)) {
      transmit(process, step->to, step->instance, false,
               node::Received{process.called(), process.instance, wire::Message(*step->tokens)});
    } else if (auto* notify = std::get_if<node::SendNotify>(&action)) {
      transmit(process, notify->to, notify->instance, true,
               node::Notified{process.called(), process.instance, std::move(notify->ready)});
    } else if (auto* read = std::get_if<node::Read>(&action)) {
      perform_read(process, *read);
    } else if (auto* cancel_read = std::get_if<node::CancelRead>(&action)) {
      process.cancelled.insert(cancel_read->read);
    } else if (auto* chunk = std::get_if<node::RunChunk>(&action)) {
      perform_chunk(process, *chunk);
    } else if (auto* cancel_run = std::get_if<node::CancelRun>(&action)) {
      process.cancelled.insert(cancel_run->run);
    } else if (auto* join = std::get_if<node::JoinBatch>(&action)) {
      const uint64_t sequence = join->sequence;
      if (!process.batch.emplace(sequence, std::move(*join)).second)
        violate(process.name + ": a sequence joined twice");
    } else if (auto* leave = std::get_if<node::LeaveBatch>(&action)) {
      if (process.batch.erase(leave->sequence) == 0) violate(process.name + ": a sequence left that had not joined");
    } else if (auto* step = std::get_if<node::RunStep>(&action)) {
      perform_step(process, *step);
    } else if (auto* reply = std::get_if<node::Reply>(&action)) {
      on_reply(*reply);
    }  // SetPeers: names are addresses here
  }
}

// A connection is the pair of processes and the channel: what it carries stays in order, unless the
// `reorder` fault lets one message go its own way.
void World::transmit(Process& from, const std::string& to, const InstanceId& instance, bool notify, node::Event event) {
  const auto it = processes_.find(to);
  if (it == processes_.end() || !it->second->machine) return;
  const InstanceId target = instance.is_zero() ? it->second->instance : instance;
  if (it->second->instance != target) return;
  const Faults& f = options_.faults;
  if (rng_.chance(f.lose)) return;
  TimePoint arrival = now_ + Duration(rng_.between(f.delay_min.count(), f.delay_max.count()));
  if (!rng_.chance(f.reorder)) {
    TimePoint& last = last_arrival_[{from.name + (notify ? "#" : ">"), to}];
    last = arrival = std::max(arrival, last + 1ns);
  }
  at(arrival, [this, to, target, event = std::move(event)]() mutable { deliver(to, target, std::move(event)); });
}

// ---- processes -------------------------------------------------------------------------------

void World::start_process(const std::string& name) {
  auto& process = processes_[name];
  process = std::make_unique<Process>();
  process->name = name;
  Id128 id;
  id.bytes[0] = static_cast<uint8_t>(++instances_), id.bytes[1] = static_cast<uint8_t>(instances_ >> 8);
  id.bytes[15] = 1;
  process->instance = InstanceId{id};
  if (name == node::kConductor) {
    node::ConductorOptions options;
    options.instance = process->instance;
    options.policy = sched::find_policy(options_.policy);
    options.sched = options_.sched;
    options.seed = rng_.next();
    options.hold = options_.hold;
    options.hold_lead = options_.hold_lead;
    options.tenants = options_.tenants;
    options.fair = options_.fair;
    options.replicate = options_.replicate;
    options.request_max = options_.request_max;
    process->machine = std::make_unique<node::Conductor>(options);
  } else {
    process->machine = make_worker(name, process->instance);
    process->worker = static_cast<node::Worker*>(process->machine.get());
  }
  at(now_ + Duration(rng_.between(0, 5'000'000)),
     [this, name, instance = process->instance] { deliver(name, instance, node::Tick{}); });
}

void World::crash(const std::string& name) {
  Process& process = *processes_.at(name);
  if (!process.machine) return;
  process.machine.reset();
  process.worker = nullptr;
  process.memory.clear();
  process.batch.clear();
  process.slots.clear();
  process.claims.clear();
  if (name == node::kConductor) {  // its clients' connections close with it
    for (auto& [req, outcome] : outcomes_)
      if (outcome.ended == kNever) {
        over(outcome, node::Finish::none, node::Reason::peer_lost);
        outcome.connection_lost = true;
      }
  }
  if (!options_.faults.tell_peers_of_crash) return;
  for (const auto& [other, p] : processes_) {
    if (!p->machine) continue;
    const Duration delay(rng_.between(options_.faults.delay_min.count(), options_.faults.delay_max.count()));
    at(now_ + delay, [this, other = other, to = p->instance, name, gone = process.instance] {
      deliver(other, to, node::PeerLost{name, gone, "connection closed"});
    });
  }
}

void World::restart(const std::string& name) {
  MC_ASSERT(!alive(name));
  start_process(name);
}

void World::drain(const std::string& name, bool on) {
  node::Actions out;
  Process& c = *processes_.at(std::string(node::kConductor));
  if (!c.machine || !conductor()->drain(name, on, out)) return;
  perform(c, std::move(out));
  deliver(c.name, c.instance, node::Tick{});  // who waits for the node is asked
}

void World::set_tenants(std::span<const sched::Tenant> tenants) {
  options_.tenants.assign(tenants.begin(), tenants.end());  // of a conductor that comes back as well
  if (node::Conductor* c = conductor()) c->tenants().set(tenants);
}

bool World::alive(const std::string& name) const {
  return processes_.at(name)->machine != nullptr;
}

node::Conductor* World::conductor() {
  return static_cast<node::Conductor*>(processes_.at(std::string(node::kConductor))->machine.get());
}

node::Worker* World::worker(const std::string& name) {
  return processes_.at(name)->worker;
}

std::vector<std::string> World::names() const {
  std::vector<std::string> out;
  for (const auto& [name, p] : processes_) out.push_back(name);
  return out;
}

std::string World::leftovers() const {
  for (const auto& [name, p] : processes_) {
    if (!p->machine) continue;
    if (!p->machine->idle()) return name + " is not idle" + (p->worker ? ": " + describe(*p->worker) : "");
    if (!p->batch.empty()) return name + " still has " + std::to_string(p->batch.size()) + " sequences in its batch";
    if (!p->claims.empty()) return name + " still has " + std::to_string(p->claims.size()) + " extents being written";
  }
  return "";
}

// ---- clients ---------------------------------------------------------------------------------

RequestId World::submit(std::vector<uint32_t> ids, uint32_t max_tokens, Duration deadline, std::string salt) {
  node::Submit submit;
  submit.ids = std::move(ids);
  submit.salt = std::move(salt);
  submit.stopping.max_tokens = max_tokens;
  submit.deadline = deadline;
  const uint64_t number = requests_ + 1;
  if (options_.priorities) {
    submit.priority = static_cast<int>(number % 5) - 2;
    if (number % 3 == 0) submit.session = "s" + std::to_string(number % 7);
  }
  if (const size_t turn = number % (options_.tenants.size() + 1); turn > 0)
    submit.tenant = options_.tenants[turn - 1].name;
  return this->submit(std::move(submit));
}

RequestId World::submit(node::Submit submit) {
  const RequestId req = "req_" + std::to_string(++requests_);
  Outcome& outcome = outcomes_[req];
  outcome.ids = submit.ids;
  outcome.max_tokens = submit.stopping.max_tokens;
  outcome.submitted = now_;
  outcome.deadline = now_ + submit.deadline;
  outcome.tenant = submit.tenant;
  outcome.pin_prefill = submit.pin_prefill, outcome.pin_decode = submit.pin_decode;
  Process& c = *processes_.at(std::string(node::kConductor));
  if (!c.machine) {
    over(outcome, node::Finish::none, node::Reason::peer_lost), outcome.connection_lost = true;
    return req;
  }
  submit.req = req;
  submit.sampling.temperature = 0;
  if (options_.profile == nullptr) submit.stopping.stop_ids = {kStopToken};
  deliver(std::string(node::kConductor), c.instance, std::move(submit));
  return req;
}

void World::disconnect(const RequestId& req) {
  Outcome& outcome = outcomes_.at(req);
  if (outcome.ended != kNever) return;
  Process& c = *processes_.at(std::string(node::kConductor));
  if (c.machine) deliver(std::string(node::kConductor), c.instance, node::ClientCancel{req});
  if (outcome.ended == kNever) over(outcome, node::Finish::abort, node::Reason::none);
}

std::string Outcome::end() const {
  return std::string(finish != node::Finish::none ? to_string(finish) : to_string(reason));
}

void World::over(Outcome& outcome, node::Finish finish, node::Reason reason) {
  outcome.ended = now_;
  outcome.finish = finish;
  outcome.reason = reason;
  ++ended_;
}

// The conductor's own view: a drain that it has not heard of yet does not bind it.
void World::check_dispatch(const std::string& to, const wire::PrefillStart& start) {
  const Outcome& outcome = outcomes_.at(start.spec.req);
  for (const auto& n : conductor()->nodes(now_))
    if (n.name == to || n.name == start.decode) {
      if (n.state == node::NodeState::drain) violate(start.spec.req + " went to " + n.name + ", which drains");
      if (!n.lacks.empty()) violate(start.spec.req + " went to " + n.name + ": " + n.lacks);
    }
  if ((!outcome.pin_prefill.empty() && outcome.pin_prefill != to) ||
      (!outcome.pin_decode.empty() && outcome.pin_decode != start.decode))
    violate(start.spec.req + " went to " + to + " and " + start.decode + " past its pin");
}

void World::check_rejection(const Outcome& outcome, const node::Reply& reply) {
  const bool missed = reply.kind == node::Reply::Kind::rejected && reply.reason == node::Reason::predicted_slo_miss;
  if (missed == (reply.bound == sched::Bound::none))
    violate(reply.req + ": " + std::string(to_string(reply.reason)) + " for the bound '" +
            std::string(to_string(reply.bound)) + "'");
  if (missed && reply.bound != sched::Bound::kv && !(reply.predicted_ms > reply.allowed_ms && reply.allowed_ms > 0))
    violate(reply.req + ": rejected although " + reply.message);
  if (missed && !outcome.answer.empty()) violate(reply.req + ": rejected after its first token");
}

void World::on_reply(const node::Reply& reply) {
  Outcome& outcome = outcomes_.at(reply.req);
  if (outcome.ended != kNever) return violate(reply.req + ": a reply after the last one");
  if (reply.kind == node::Reply::Kind::token) {
    if (reply.index != outcome.answer.size())
      return violate(reply.req + ": token " + std::to_string(reply.index) + " came as number " +
                     std::to_string(outcome.answer.size()));
    if (outcome.answer.empty())
      outcome.first_token = now_, outcome.summary = reply.summary;
    else
      outcome.gaps_s.push_back(to_seconds(now_ - outcome.last_token));
    outcome.last_token = now_;
    outcome.answer.push_back(reply.token);
    return;
  }
  outcome.stage = reply.stage;
  outcome.bound = reply.bound;
  outcome.allowed_s = reply.allowed_ms * 1e-3;
  outcome.attempts = reply.summary.attempts;
  outcome.failed = reply.summary.failed;
  check_rejection(outcome, reply);
  over(outcome, reply.finish, reply.reason);
  if (now_ > outcome.deadline + options_.client_grace)
    violate(reply.req + ": ended " + std::to_string(to_ms(now_ - outcome.deadline)) + " ms after its deadline");
  const auto expected = oracle(outcome.ids, outcome.max_tokens);
  const size_t count = outcome.answer.size();
  const bool whole = outcome.served();
  if (count > expected.size() || !std::equal(outcome.answer.begin(), outcome.answer.end(), expected.begin()))
    violate(reply.req + ": wrong token among the " + std::to_string(count) + " answered");
  else if (whole && count != expected.size())
    violate(reply.req + ": ended by " + outcome.end() + " after " + std::to_string(count) + " of " +
            std::to_string(expected.size()) + " tokens");
}

}  // namespace mc::sim
