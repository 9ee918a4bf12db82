#include "sim/world.h"

#include <algorithm>

#include "base/assert.h"
#include "sim/agenda.h"
#include "sim/clients.h"
#include "sim/disk_device.h"
#include "sim/process.h"
#include "sim/tag_device.h"

namespace mc::sim {

/// The parts of a world. They stay at their addresses.
struct World::Parts {
  Parts(const WorldOptions& options, Rng& rng, TagDevice::Deliver deliver)
      : device(options, agenda, rng, processes, findings, deliver),
        disks(options, agenda, rng, processes, findings, std::move(deliver)),
        clients(options, findings) {}

  Agenda agenda;
  Findings findings;
  Processes processes;
  TagDevice device;
  DiskDevice disks;
  Clients clients;
};

World::World(WorldOptions options)
    : options_(std::move(options)),
      rng_(options_.seed),
      parts_(std::make_unique<Parts>(options_, rng_, [this](const auto& name, const auto& instance, node::Event event) {
        deliver(name, instance, std::move(event));
      })) {
  using Kind = Place::Kind;
  MC_ASSERT_LT(0u, options_.events_per_check);
  start_process({Kind::conductor});
  for (uint32_t i = 0; i < options_.prefill; ++i)
    for (uint32_t stage = 0; stage < stages_of(options_, i); ++stage) start_process({Kind::prefill, i, stage});
  for (uint32_t i = 0; i < options_.decode; ++i) start_process({Kind::decode, i});
  for (uint32_t i = 0; i < options_.cache; ++i) start_process({Kind::cache, i});
}

World::~World() = default;

TimePoint World::now() const {
  return parts_->agenda.now();
}

// ---- events ----------------------------------------------------------------------------------

void World::run_for(Duration d, const std::function<bool()>& stop) {
  parts_->agenda.run_for(d, stop);
}

bool World::run_until_done(Duration limit) {
  const auto done = [&] { return unended() == 0; };
  if (!done()) run_for(limit, done);
  return done();
}

void World::schedule_tick(Process& process) {
  const TimePoint when = process.machine->next_wakeup();
  if (when == kNever || (process.tick_at != kNever && process.tick_at <= when && process.tick_at > now())) return;
  process.tick_at = std::max(when, now() + 1us);
  parts_->agenda.at(process.tick_at, [this, name = process.name, instance = process.instance, when = process.tick_at] {
    const auto it = parts_->processes.find(name);
    if (it == parts_->processes.end() || !it->second->runs(instance)) return;
    if (it->second->tick_at == when) it->second->tick_at = kNever;
    deliver(name, instance, node::Tick{});
  });
}

void World::deliver(const std::string& name, const InstanceId& instance, node::Event event) {
  const auto it = parts_->processes.find(name);
  if (it == parts_->processes.end() || !it->second->runs(instance)) return;
  Process& process = *it->second;
  node::Actions actions;
  process.machine->handle(event, now(), actions);
  if (++process.events % options_.events_per_check == 0) process.machine->check();
  perform(process, std::move(actions));
  schedule_tick(process);
}

void World::perform(Process& process, node::Actions actions) {
  check_followed(process, actions);
  for (auto& action : actions) {
    if (auto* send = std::get_if<node::Send>(&action)) {
      if (const auto* start = std::get_if<wire::PrefillStart>(&send->message))
        parts_->clients.check_dispatch(*conductor(), send->to, *start, now());
      transmit(process, send->to, send->instance, false,
               node::Received{process.name, process.instance, std::move(send->message)});
    } else if (auto* step = std::get_if<node::SendTokens>(&action)) {
      transmit(process, step->to, step->instance, false,
               node::Received{process.name, process.instance, wire::Message(*step->tokens)});
    } else if (auto* notify = std::get_if<node::SendNotify>(&action)) {
      transmit(process, notify->to, notify->instance, true,
               node::Notified{process.name, process.instance, std::move(notify->ready)});
    } else if (auto* read = std::get_if<node::Read>(&action)) {
      parts_->device.perform_read(process, *read);
    } else if (auto* cancel_read = std::get_if<node::CancelRead>(&action)) {
      process.cancelled.insert(cancel_read->read);
    } else if (auto* chunk = std::get_if<node::RunChunk>(&action)) {
      parts_->device.perform_chunk(process, *chunk);
    } else if (auto* cancel_run = std::get_if<node::CancelRun>(&action)) {
      parts_->device.cancel_run(process, cancel_run->run);
    } else if (auto* here = std::get_if<node::PrefixLayers>(&action)) {
      parts_->device.prefix_here(process, *here);
    } else if (auto* join = std::get_if<node::JoinBatch>(&action)) {
      const uint64_t sequence = join->sequence;
      parts_->device.use(process, join->device_pages);
      if (!process.batch.emplace(sequence, std::move(*join)).second)
        parts_->findings.add(now(), process.name + ": a sequence joined twice");
    } else if (auto* load_pages = std::get_if<node::LoadPages>(&action)) {
      parts_->device.perform_load(process, *load_pages);
    } else if (auto* leave = std::get_if<node::LeaveBatch>(&action)) {
      parts_->device.leave(process, leave->sequence);
    } else if (auto* step = std::get_if<node::RunStep>(&action)) {
      parts_->device.perform_step(process, *step);
    } else if (auto* write = std::get_if<node::DiskWrite>(&action)) {
      parts_->disks.write(process, *write);
    } else if (auto* load = std::get_if<node::DiskLoad>(&action)) {
      parts_->disks.load(process, *load);
    } else if (auto* drop = std::get_if<node::DiskDrop>(&action)) {
      parts_->disks.drop(process, *drop);
    } else if (auto* reply = std::get_if<node::Reply>(&action)) {
      parts_->clients.on_reply(*reply, now());
    }  // SetPeers: names are addresses here
  }
}

// A compute waits for the run that RunChunk::is_followed promises.
void World::check_followed(const Process& process, const node::Actions& actions) {
  bool is_followed = false, breaks = false;
  for (const auto& action : actions) {
    const auto* chunk = std::get_if<node::RunChunk>(&action);
    breaks |= is_followed && std::holds_alternative<node::CollectSteps>(action);
    if (chunk || std::holds_alternative<node::RunStep>(action)) is_followed = chunk && chunk->is_followed;
  }
  if (breaks || is_followed) parts_->findings.add(now(), process.name + ": no run follows a chunk that promises one");
}

// A connection is the pair of processes and the channel: what it carries stays in order, unless the
// `reorder` fault lets one message go its own way.
void World::transmit(Process& from, const std::string& to, const InstanceId& instance, bool notify, node::Event event) {
  const auto it = parts_->processes.find(to);
  if (it == parts_->processes.end() || !it->second->machine) return;
  const InstanceId target = instance.is_zero() ? it->second->instance : instance;
  if (it->second->instance != target) return;
  const Faults& f = options_.faults;
  if (rng_.chance(f.lose)) return;
  TimePoint arrival = now() + Duration(rng_.between(f.delay_min.count(), f.delay_max.count()));
  if (!rng_.chance(f.reorder)) {
    TimePoint& last = last_arrival_[{from.name + (notify ? "#" : ">"), to}];
    last = arrival = std::max(arrival, last + 1ns);
  }
  parts_->agenda.at(arrival,
                    [this, to, target, event = std::move(event)]() mutable { deliver(to, target, std::move(event)); });
}

// ---- processes -------------------------------------------------------------------------------

void World::start_process(const Place& place) {
  const std::string name = place.name();
  auto& process = parts_->processes[name];
  process = std::make_unique<Process>();
  process->place = place;
  process->name = name;
  Id128 id;
  id.bytes[0] = static_cast<uint8_t>(++instances_), id.bytes[1] = static_cast<uint8_t>(instances_ >> 8);
  id.bytes[15] = 1;
  process->instance = InstanceId{id};
  if (place.kind == Place::Kind::conductor) {
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
    options.prefix_from = options_.prefix_from;
    process->machine = std::make_unique<node::Conductor>(options);
  } else {
    process->machine = make_worker(options_, place, process->instance, rng_.next());
    process->worker = static_cast<node::Worker*>(process->machine.get());
  }
  parts_->agenda.at(now() + Duration(rng_.between(0, 5'000'000)),
                    [this, name, instance = process->instance] { deliver(name, instance, node::Tick{}); });
  parts_->disks.start(*process);
}

void World::crash(const std::string& name) {
  Process& process = *parts_->processes.at(name);
  if (!process.machine) return;
  parts_->disks.crash(process);
  process.machine.reset();
  process.worker = nullptr;
  process.memory.clear();
  process.batch.clear();
  process.drawn.clear();
  process.steps.clear();
  process.slots.clear();
  process.claims.clear();
  process.device = {};
  if (process.place.kind == Place::Kind::conductor) parts_->clients.lose_all(now());  // connections close with it
  if (!options_.faults.tell_peers_of_crash) return;
  for (const auto& [other, p] : parts_->processes) {
    if (!p->machine) continue;
    const Duration delay(rng_.between(options_.faults.delay_min.count(), options_.faults.delay_max.count()));
    parts_->agenda.at(now() + delay, [this, other = other, to = p->instance, name, gone = process.instance] {
      deliver(other, to, node::PeerLost{name, gone, "connection closed"});
    });
  }
}

void World::restart(const std::string& name) {
  MC_ASSERT(!alive(name));
  start_process(Place(parts_->processes.at(name)->place));
}

void World::drain(const std::string& name, bool on) {
  node::Actions out;
  Process& c = *parts_->processes.at(std::string(node::kConductor));
  if (!c.machine || !conductor()->drain(name, on, out)) return;
  perform(c, std::move(out));
  deliver(c.name, c.instance, node::Tick{});  // requests that wait for the node are placed
}

void World::set_tenants(std::span<const sched::Tenant> tenants) {
  options_.tenants.assign(tenants.begin(), tenants.end());  // of a conductor that comes back as well
  if (node::Conductor* c = conductor()) c->tenants().set(tenants);
}

bool World::alive(const std::string& name) const {
  return parts_->processes.at(name)->machine != nullptr;
}

node::Conductor* World::conductor() {
  return static_cast<node::Conductor*>(parts_->processes.at(std::string(node::kConductor))->machine.get());
}

node::Worker* World::worker(const std::string& name) {
  return parts_->processes.at(name)->worker;
}

std::vector<std::string> World::names() const {
  std::vector<std::string> out;
  for (const auto& [name, p] : parts_->processes) out.push_back(name);
  return out;
}

std::string World::leftovers() const {
  for (const auto& [name, p] : parts_->processes) {
    if (!p->machine) continue;
    if (!p->machine->idle()) return name + " is not idle" + (p->worker ? ": " + describe(*p->worker) : "");
    if (!p->batch.empty()) return name + " still has " + std::to_string(p->batch.size()) + " sequences in its batch";
    if (!p->claims.empty()) return name + " still has " + std::to_string(p->claims.size()) + " extents being written";
  }
  return "";
}

uint32_t World::index_of(const std::string& name) const {
  return parts_->processes.at(name)->place.index;
}

const std::string& World::violation() const {
  return parts_->findings.first();
}

uint64_t World::events_run() const {
  return parts_->agenda.events_run();
}

// ---- clients ---------------------------------------------------------------------------------

const std::map<RequestId, Outcome>& World::outcomes() const {
  return parts_->clients.outcomes();
}

uint64_t World::unended() const {
  return parts_->clients.unended();
}

std::vector<uint32_t> World::oracle(const std::vector<uint32_t>& ids, uint32_t count) const {
  return sim::oracle(options_, ids, count);
}

RequestId World::submit(std::vector<uint32_t> ids, uint32_t max_tokens, Duration deadline, std::string salt) {
  return submit(parts_->clients.request(std::move(ids), max_tokens, deadline, std::move(salt)));
}

RequestId World::submit(node::Submit submit) {
  const RequestId req = parts_->clients.add(submit, now());
  Process& c = *parts_->processes.at(std::string(node::kConductor));
  if (c.machine)
    deliver(c.name, c.instance, std::move(submit));
  else
    parts_->clients.lose(req, now());
  return req;
}

void World::disconnect(const RequestId& req) {
  if (outcomes().at(req).is_over()) return;
  Process& c = *parts_->processes.at(std::string(node::kConductor));
  if (c.machine) deliver(c.name, c.instance, node::ClientCancel{req});
  parts_->clients.abort(req, now());
}

}  // namespace mc::sim
