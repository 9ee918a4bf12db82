#include "host/loop.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "node/worker.h"

namespace mc::host {
namespace {
constexpr int kEventsPerRound = 256;   // of one source before the others and the clock get a turn
constexpr Duration kSleepMax = 200ms;  // after_events runs at least so often
constexpr Duration kLongRound = 100ms;

void log_breaker(const node::BreakerChanged& changed) {
  const std::string what = changed.prefill.empty() || changed.decode.empty() ? "node" : "pair of nodes";
  const std::string names =
      changed.prefill + (changed.prefill.empty() || changed.decode.empty() ? "" : ",") + changed.decode;
  switch (changed.state) {
    case sched::BreakerState::open:
      return log_info(what + " set aside",
                      {{"nodes", names}, {"failures", changed.failures}, {"for_ms", changed.backoff / 1ms}});
    case sched::BreakerState::half_open: return log_info(what + " tried again", {{"nodes", names}});
    case sched::BreakerState::closed: return log_info(what + " works again", {{"nodes", names}});
  }
}

void log_retry(const node::RequestRetried& retried) {
  log_info("request is retried", {{"req", retried.req},
                                  {"prefill", retried.failed.prefill},
                                  {"decode", retried.failed.decode},
                                  {"stage", to_string(retried.failed.stage)},
                                  {"reason", to_string(retried.failed.reason)},
                                  {"why", retried.message}});
}

}  // namespace

Result<std::unique_ptr<Loop>> Loop::open(Parts parts) {
  MC_ASSERT(parts.machine && parts.links);
  MC_ASSERT(!parts.data || parts.place);
  MC_ASSERT(!parts.compute || parts.on_compute);
  MC_ASSERT(parts.signal_fd < 0 || parts.on_signal);
  MC_TRY(wake, EventFd::open());
  return std::unique_ptr<Loop>(new Loop(std::move(parts), std::move(wake)));
}

void Loop::post(Task task) {
  MC_ASSERT(task);
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake_.signal();
}

void Loop::stop() {
  stopping_.store(true, std::memory_order_release);  // pairs with run()
  wake_.signal();
}

// An action may deliver an event in turn, which then finds no spare room and makes its own.
node::Actions Loop::taken_actions() {
  MC_ASSERT(spare_.empty());
  return std::exchange(spare_, {});
}

void Loop::deliver(const node::Event& event) {
  node::Actions actions = taken_actions();
  parts_.machine->handle(event, SystemClock::instance().now(), actions);
  perform(std::move(actions));
}

void Loop::apply(const Task& task) {
  node::Actions actions = taken_actions();
  task(SystemClock::instance().now(), actions);
  perform(std::move(actions));
}

bool Loop::run_tasks() {
  std::vector<Task> tasks;
  {
    std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
  }
  for (const auto& task : tasks) apply(task);
  return !tasks.empty();
}

// Takes what is there from every source; true when something was.
bool Loop::drain_sources() {
  bool any = run_tasks();
  const auto take = [&](auto& source) {
    for (int i = 0; i < kEventsPerRound; ++i) {
      auto event = source.next();
      if (!event) return;
      any = true;
      deliver(*event);
    }
  };
  // Compute first: an announced layer lets the decode node read while everything else waits.
  for (int i = 0; parts_.compute && i < kEventsPerRound; ++i) {
    const auto event = parts_.compute->next();
    if (!event) break;
    any = true;
    deliver(*event);
  }
  if (parts_.data) take(*parts_.data);
  if (parts_.leases) take(*parts_.leases);
  if (parts_.disk) take(*parts_.disk);
  has_more_messages_ = true;
  for (int i = 0; i < kEventsPerRound; ++i) {
    const auto event = parts_.links->next();
    has_more_messages_ = event.has_value();
    if (!event) break;
    any = true;
    if (parts_.leases) parts_.leases->heard(*event);
    deliver(*event);
  }
  return any;
}

/// Returns the end of the sleep as it was planned, or as it was when something ended it earlier.
TimePoint Loop::wait() {
  std::vector<pollfd> fds = {{wake_.fd(), POLLIN, 0}, {parts_.links->event_fd(), POLLIN, 0}};
  if (parts_.data) fds.push_back({parts_.data->event_fd(), POLLIN, 0});
  if (parts_.compute) fds.push_back({parts_.compute->event_fd(), POLLIN, 0});
  if (parts_.disk) fds.push_back({parts_.disk->event_fd(), POLLIN, 0});
  if (parts_.signal_fd >= 0) fds.push_back({parts_.signal_fd, POLLIN, 0});
  const TimePoint now = SystemClock::instance().now();
  TimePoint due = parts_.machine->next_wakeup();
  if (parts_.leases) due = std::min(due, parts_.leases->due());
  const Duration rest = std::clamp<Duration>(due - now, Duration(0), kSleepMax);
  const timespec timeout = {rest.count() / 1'000'000'000, rest.count() % 1'000'000'000};
  const int ready = ::ppoll(fds.data(), fds.size(), &timeout, nullptr);
  const TimePoint woken = std::min(SystemClock::instance().now(), now + rest);
  MC_ASSERT(ready >= 0 || errno == EINTR || errno == ENOMEM);  // a descriptor of a part is open; else no round waits
  if (fds[0].revents) wake_.drain();
  if (parts_.signal_fd >= 0 && fds.back().revents && parts_.on_signal) parts_.on_signal();
  return woken;
}

/// The time up to `now` in which the loop read no messages, beyond its planned sleep, is no silence of the peers.
/// Where every round is long, the machine sees no silence, and the hub still reports the peers that are.
void Loop::forgive(TimePoint now) {
  const Duration unread = now - std::exchange(read_until_, now);
  if (unread > kLongRound) deliver(node::HostStalled{unread});
}

/// Whether messages may wait that arrived some time ago. Their senders were not silent, so they are read before the
/// clock, for a bounded time.
bool Loop::is_behind(TimePoint began, TimePoint now) {
  if (now - began <= kLongRound && !has_more_messages_) {
    behind_since_ = kNever;
    return false;
  }
  behind_since_ = std::min(behind_since_, now);
  return now - behind_since_ <= kLongRound;
}

void Loop::run() {
  read_until_ = SystemClock::instance().now();
  while (!stopping_.load(std::memory_order_acquire)) {
    const TimePoint began = SystemClock::instance().now();
    forgive(began);
    bool any = drain_sources();
    const TimePoint now = SystemClock::instance().now();
    forgive(now);
    const bool reads_first = is_behind(began, now);
    if (now >= parts_.machine->next_wakeup() && !reads_first) {
      deliver(node::Tick{});
      any = true;  // what it did may have been answered on the spot
    }
    if (parts_.after_events) parts_.after_events();
    if (parts_.heartbeat) parts_.heartbeat->beat(SystemClock::instance().now());
    if (any || stopping_.load(std::memory_order_acquire)) continue;
    forgive(SystemClock::instance().now());
    read_until_ = wait();
  }
}

// A machine acts only on the parts that its process has: a cache computes nothing, the conductor moves no KV.
node::KvPlane& Loop::data() {
  MC_ASSERT(parts_.data != nullptr);
  return *parts_.data;
}

node::Compute& Loop::compute() {
  MC_ASSERT(parts_.compute != nullptr);
  return *parts_.compute;
}

/// Whether the action is one for the log.
bool Loop::log_action(const node::Action& action) {
  if (const auto* changed = std::get_if<node::BreakerChanged>(&action)) return log_breaker(*changed), true;
  if (const auto* retried = std::get_if<node::RequestRetried>(&action)) return log_retry(*retried), true;
  return false;
}

void Loop::perform_on_disk(const node::Action& action) {
  const auto page = [&](uint32_t pool, uint32_t index, const ExtentLayout& layout) {
    return std::span(parts_.pages + parts_.place(pool, index), layout.page_bytes());
  };
  if (const auto* write = std::get_if<node::DiskWrite>(&action)) {
    parts_.disk->write(*write, page(write->pool, write->page, write->block.layout));
  } else if (const auto* load = std::get_if<node::DiskLoad>(&action)) {
    parts_.disk->load(*load, page(load->pool, load->page, load->layout));
  } else if (const auto* drop = std::get_if<node::DiskDrop>(&action)) {
    parts_.disk->drop(*drop);
  }
}

void Loop::send(const node::Send& send) {
  if (parts_.leases && parts_.leases->send(send)) return;
  parts_.links->send(send);
}

void Loop::perform(node::Actions actions) {
  for (auto& action : actions) {
    if (auto* send = std::get_if<node::Send>(&action); send && send->to == node::kOperators) {
      MC_ASSERT(parts_.on_operators);
      parts_.on_operators(send->message);
    } else if (send) {
      this->send(*send);
    } else if (auto* tokens = std::get_if<node::SendTokens>(&action)) {
      node::Send message{std::move(tokens->to), tokens->instance, std::move(*tokens->tokens)};
      parts_.links->send(message);
      *tokens->tokens = std::get<wire::Tokens>(std::move(message.message));  // its rows are the machine's to fill again
    } else if (auto* notify = std::get_if<node::SendNotify>(&action)) {
      data().notify(*notify);
    } else if (auto* peers = std::get_if<node::SetPeers>(&action)) {
      parts_.links->set_peers(peers->peers);
      if (parts_.data) data().set_peers(peers->peers);
      if (parts_.leases) parts_.leases->on_peers();
    } else if (auto* read = std::get_if<node::Read>(&action)) {
      data().read(*read, parts_.place);
    } else if (auto* cancel_read = std::get_if<node::CancelRead>(&action)) {
      data().cancel(cancel_read->read);
    } else if (auto* chunk = std::get_if<node::RunChunk>(&action)) {
      parts_.on_compute(chunk->tokens.size());
      compute().submit(std::move(*chunk));
    } else if (const auto* here = std::get_if<node::PrefixLayers>(&action)) {
      compute().prefix_here(here->run, here->layers);
    } else if (auto* cancel_run = std::get_if<node::CancelRun>(&action)) {
      compute().cancel(cancel_run->run);
    } else if (auto* join = std::get_if<node::JoinBatch>(&action)) {
      compute().submit(std::move(*join));
    } else if (auto* leave = std::get_if<node::LeaveBatch>(&action)) {
      compute().submit(*leave);
    } else if (auto* load = std::get_if<node::LoadPages>(&action)) {
      compute().submit(std::move(*load));
    } else if (std::holds_alternative<node::CollectSteps>(action)) {
      compute().submit(node::CollectSteps{});
    } else if (auto* step = std::get_if<node::RunStep>(&action)) {
      parts_.on_compute(step->rows->in.size());
      compute().submit(std::move(*step));
    } else if (auto* reply = std::get_if<node::Reply>(&action)) {
      MC_ASSERT(parts_.on_reply);
      parts_.on_reply(*reply);
    } else if (auto* answer = std::get_if<node::OrderAnswer>(&action)) {
      MC_ASSERT(parts_.on_order);
      parts_.on_order(std::move(*answer));
    } else if (const auto* lookup = std::get_if<node::Lookup>(&action)) {
      MC_ASSERT(parts_.leases != nullptr);
      parts_.leases->look_up(*lookup);
    } else if (const auto* touch = std::get_if<node::Touch>(&action)) {
      MC_ASSERT(parts_.leases != nullptr);
      parts_.leases->touch(*touch);
    } else if (!log_action(action)) {
      perform_on_disk(action);
    }
  }
  actions.clear();
  if (actions.capacity() > spare_.capacity()) spare_ = std::move(actions);
}

}  // namespace mc::host
