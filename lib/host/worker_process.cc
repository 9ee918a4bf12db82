#include "host/worker_process.h"

#include <csignal>

#include "base/assert.h"
#include "base/errors.h"
#include "base/log.h"
#include "base/peer_error.h"
#include "host/block_calls.h"
#include "host/block_list.h"
#include "host/block_lookup.h"
#include "host/daemon.h"
#include "host/daemon_flags.h"
#include "host/loop.h"
#include "host/prefill_asks.h"
#include "host/shutdown.h"
#include "host/worker_metrics.h"
#include "host/worker_plan.h"
#include "host/worker_planes.h"
#include "host/worker_watch.h"
#include "product/flags.h"
#include "product/wrong_key.h"

namespace mc::host {
namespace {

/// The loop's answers to the operators of the node.
struct Operators {
  BlockLister blocks;
  BlockCalls orders;
  PrefillAsks prompts;

  void drop_gone(TimePoint now, node::Actions& out) {
    orders.drop_gone(now, out);
    prompts.drop_gone(now, out);
  }
};

// Everything a worker process owns, in the order it is built; destroyed in reverse.
class WorkerProcess {
 public:
  WorkerProcess(wire::Role role, const cli::Args& args) : args_(args), plan_(role, args) {}

  ~WorkerProcess() {
    if (pages_) pages_->answer_with({});  // they use the loop, which ends first
    planes_.replicas().close();           // threads of the pages wait for it, and the loop gives it nothing any more
  }

  Result<int> serve() {
    MC_TRY(signals, Signals::open());
    signals_ = std::make_unique<Signals>(std::move(signals));
    MC_TRY(descriptors, prepare_process(true, plan_.disk_files()));
    descriptors_ = descriptors;
    if (args_.on(flags::kDieWithParent)) die_with_parent();
    MC_CHECK(plan_.make());
    MC_ASSERT(plan_.arena_bytes() > 0);
    MC_CHECK(planes_.open(args_, descriptors_, plan_.arena_bytes(), plan_.title(), plan_.options));
    MC_TRY(compute, plan_.open_compute(planes_.pool()));
    compute_ = std::move(compute);
    MC_TRY(disk, plan_.open_disk());
    disk_ = std::move(disk);
    if (const auto pace = plan_.pace()) MC_CHECK(planes_.pace(*pace));
    metrics_ =
        std::make_unique<Metrics>(Metrics::Labels{{"model_name", plan_.options.model}, {"engine", plan_.title()}});
    MC_CHECK(open_machine());
    if (args_.on(flags::kCheck)) {
      log_info("check passed", {{"kv_bytes", plan_.arena_bytes()}, {"http", plan_.options.http}});
      return 0;
    }
    return run();
  }

 private:
  Result<void> open_machine() {
    MC_ASSERT((compute_ == nullptr) == (plan_.role() == wire::Role::cache));
    MC_TRY(lock, open_page_lock(args_));
    lock_ = std::move(lock);
    MC_TRY(values, plan_.open_value_disk());
    MC_TRY(pages,
           StatusPages::open(args_, planes_.control_socket() + ".http", *lock_, *metrics_, heartbeat_, descriptors_,
                             {plan_.value_bytes(), asked_node().body_bytes_max(), import_bytes(),
                              plan_.role() == wire::Role::cache ? &planes_.replicas() : nullptr},
                             std::move(values)));
    pages_ = std::move(pages);
    plan_.options.http = pages_->address();
    // Nobody answers lookups where leases go by control alone.
    plan_.options.lookups = lease_by_of(args_.text(flags::kLeaseBy)) != LeaseBy::control;
    MC_CHECK(planes_.publish_blocks(plan_.blocks_max()));
    plan_.options.table = &planes_.blocks();
    worker_ = plan_.make_machine();
    process_meter_ = std::make_unique<ProcessMeter>(*metrics_);
    meters_ = std::make_unique<WorkerMetrics>(*metrics_, *worker_, planes_.data(), planes_.leases());
    Loop::Parts parts;
    parts.machine = worker_.get();
    parts.links = &planes_.links();
    parts.data = &planes_.plane();
    parts.leases = &planes_.leases();
    parts.compute = compute_.get();
    parts.disk = disk_.get();
    parts.pages = planes_.pool();
    parts.place = [this](uint32_t pool, uint32_t page) { return worker_->local_offset(pool, page); };
    parts.on_compute = [this](size_t tokens) { meters_->computes(tokens); };
    parts.after_events = [this] { after_events(); };
    parts.signal_fd = signals_->fd();
    parts.on_signal = [this] { on_signal(); };
    parts.heartbeat = &heartbeat_;
    parts.on_operators = [this](const wire::Message& message) { operators_->prompts.answer(message); };
    parts.on_order = [this](node::OrderAnswer answer) { operators_->orders.answer(std::move(answer)); };
    MC_TRY(loop, Loop::open(std::move(parts)));
    loop_ = std::move(loop);
    operators_.reset(new Operators{
        {*worker_, *loop_}, {*loop_, *worker_, plan_.title(), planes_.pool()}, {*loop_, *worker_, asked_node()}});
    answer_pages();
    readiness_ = std::make_unique<Readiness>(std::string(cli::build_info().program), json(),
                                             args_.present(flags::kReadyFile) ? args_.text(flags::kReadyFile) : "");
    return {};
  }

  /// A node that computes no prompts has no room for one.
  AskedNode asked_node() const {
    if (plan_.role() != wire::Role::prefill) return {};
    return {plan_.title(), plan_.options.model, plan_.options.kv, plan_.options.context_tokens, plan_.vocab()};
  }

  /// A cache node keeps pages of many sizes, none larger than a slab.
  size_t import_bytes() const {
    const bool is_cache = plan_.role() == wire::Role::cache;
    return stream_part_max(is_cache ? node::CacheOptions{}.slab_bytes : plan_.options.layout.page_bytes());
  }

  void answer_pages() {
    StatusPages::LoopAnswers answers;
    answers.blocks = [o = operators_.get()](const auto& request, const auto& out) { o->blocks.answer(request, out); };
    answers.lookup = [&table = planes_.blocks()](const auto& request, const auto& out) {
      out.respond(answer_lookup(request, table));
    };
    answers.evict = [o = operators_.get()](const auto& request, const auto& out) { o->orders.evict(request, out); };
    answers.pin = [o = operators_.get()](const auto& request, const auto& out) { o->orders.pin(request, out); };
    answers.unpin = [o = operators_.get()](const auto& request, const auto& out) { o->orders.unpin(request, out); };
    answers.give = [o = operators_.get()](const auto& request, const auto& out) { o->orders.give(request, out); };
    answers.take = [o = operators_.get()](auto request, const auto& out) { o->orders.take(std::move(request), out); };
    answers.prefill = [o = operators_.get()](auto request, const auto& out) {
      o->prompts.ask(std::move(request), out);
    };
    pages_->answer_with(std::move(answers));
  }

  bool json() const { return args_.on(flags::kJson); }

  void log_start() const {
    std::string transports;
    for (const auto& line : planes_.data().transports()) transports += (transports.empty() ? "" : "; ") + line;
    log_info("started", {{"version", plan_.options.version},
                         {"commit", cli::build_info().commit},
                         {"model", plan_.options.model.empty() ? "-" : plan_.options.model},
                         {"weights_bytes", plan_.engine() ? plan_.engine()->model->weight_bytes() : size_t{0}},
                         {"dtype", plan_.engine() ? to_string(plan_.engine()->model->dtype()) : "-"},
                         {"kernels", compute_ ? compute_->kernels() : std::string("-")},
                         {"device", plan_.options.device.empty() ? "-" : plan_.options.device},
                         {"attention", plan_.options.kv.attention},
                         {"block_tokens", plan_.options.layout.block_tokens},
                         {"page_bytes", plan_.options.layout.layers ? plan_.options.layout.page_bytes() : size_t{0}},
                         {"kv_bytes", plan_.arena_bytes()},
                         {"kv_tokens", uint64_t{plan_.options.page_count} * plan_.options.layout.block_tokens},
                         {"transports", transports},
                         {"control", plan_.options.control_uri},
                         {"http", plan_.options.http}});
    const DevicePlan& device = plan_.device();
    if (device.device.empty()) return;
    const uint64_t pages = plan_.options.device_pages > 0 ? plan_.options.device_pages : device.pages();
    log_info("memory of the device", {{"device", device.device},
                                      {"free_bytes", device.free_bytes},
                                      {"total_bytes", device.total_bytes},
                                      {"weights_bytes", device.weight_bytes},
                                      {"scratch_bytes", device.scratch_bytes},
                                      {"kv_tokens", pages * plan_.options.layout.block_tokens},
                                      {"kv_on_host_bytes", plan_.arena_bytes()}});
  }

  Result<int> run() {
    log_start();
    watch_.start(SystemClock::instance().now());
    loop_->run();
    notify_service_manager("STOPPING=1");
    const Result<int> outcome = end_.shutdown.outcome();
    if (outcome) log_info("stopped");
    return outcome;
  }

  void after_events() {
    const TimePoint now = SystemClock::instance().now();
    const node::Registration& registration = worker_->registration();
    planes_.offer_keys();
    if (const auto lost = compute_ ? compute_->lost() : std::nullopt) return abandon(*lost);
    const WorkerWatch::Changes changes = watch_.look(registration, worker_->disk().state(), now);
    if (changes.named) {
      planes_.links().set_name(watch_.name());
      log_set_node(watch_.name());
      metrics_->set_label("engine", watch_.name());
      log_info("registered", {{"name", watch_.name()}});
      readiness_->announce(watch_.name(), plan_.options.http, plan_.options.control_uri);
    }
    if (changes.rejoined) log_info("registered again", {{"name", watch_.name()}});
    if (changes.waits) log_info("waiting for the conductor", {{"conductor", planes_.conductor_uri()}});
    if (changes.disk_lost) log_error("the tier on disk is lost", {{"why", worker_->load().last_error}});
    if (planes_.links().fatal() && watch_.name().empty()) return give_up(handshake_failure());
    if (changes.waits_for)
      log_warn("the conductor refuses this node, which goes on asking",
               {{"why", one_line(refusal(*changes.waits_for))}});
    if (changes.refused) return give_up(refusal(*changes.refused));
    if (end_.shutdown.is_due(worker_->idle(), now)) {
      if (!registration.has_left())
        leave("shutdown", "--drain-timeout " + args_.text(flags::kDrainTimeout) + " is over");
      loop_->stop();
    }
    // The pages that tell of tenants are locked before a request of one can come.
    if (now < at_.status && !changes.tenants_changed) return;
    at_.status = now + 100ms;
    loop_->apply([this](TimePoint at, node::Actions& out) { operators_->drop_gone(at, out); });
    if (now >= at_.check && worker_->idle()) {  // promise 3: after quiesce nothing is leased, queued or leaked
      worker_->check();
      at_.check = now + 1s;
    }
    meters_->update();
    process_meter_->update(pages_->stats(), planes_.links().stats());
    pages_->update(worker_->draining()         ? "draining"
                   : !registration.is_member() ? "no conductor"
                                               : "",
                   registration.has_tenants(), watch_.name());
  }

  /// `cut_short`: what ends the writes of blocks to disk, if they have not ended.
  void leave(const std::string& why, const std::string& cut_short) {
    if (const size_t left = worker_->disk().writes().write_out_left(); left > 0)
      log_warn("not all blocks of the memory are on disk",
               {{"left", left},
                {"of", std::max(left, end_.blocks_to_disk)},
                {"why", worker_->disk().state() == node::DiskTier::State::lost ? "the disk is lost" : cut_short},
                {"next",
                 "a prompt that needs them is computed again; a longer --drain-timeout or a higher --ssd-write-budget "
                 "lets a node write more"}});
    loop_->apply([&](TimePoint now, node::Actions& out) { worker_->leave(why, now, out); });
    MC_ASSERT(worker_->registration().has_left());
  }

  Error refusal(const wire::Refused& refused) const {
    if (refused.mc == err::kWrongKey) return wrong_key(refused.message, "registration with the conductor");
    if (refused.mc != err::kKvLayoutMismatch)
      return peer_error(refused.mc, refused.message, "handshake with the conductor, field " + refused.field);
    std::string equal;
    for (const auto& field : refused.equal) equal += (equal.empty() ? "" : " ") + field;
    return user_error(err::kKvLayoutMismatch, refused.message,
                      "handshake with the conductor, field " + refused.field + "; also compared and equal: " + equal);
  }

  /// The error of a refused handshake. It names the key file of this node, because the peer does not send the name of
  /// its own.
  Error handshake_failure() {
    Error error = planes_.links().failure();
    if (error.mc == err::kWrongKey)
      error.what +=
          planes_.key_path().empty() ? "; the node has no keys" : "; the node has the keys of " + planes_.key_path();
    return error;
  }

  /// The compute can do no more work. The run that found out has failed with the reason; the conductor gives the others
  /// to other nodes.
  void abandon(const Error& error) {
    log_error("the device failed; the node leaves the cluster", {{"why", one_line(error)}});
    leave(error.what, "the device failed");
    give_up(error);
  }

  void give_up(Error error) {
    end_.shutdown.fail(std::move(error));
    loop_->stop();
  }

  void on_signal() {
    while (const auto signal = signals_->next()) {
      if (*signal == SIGHUP) {
        if (auto reopened = log_reopen(); !reopened) log_warn("log not reopened", {{"why", reopened.error().what}});
        planes_.reload_keys();
        reload_page_lock(args_, *lock_);
        if (auto loaded = pages_->load_keys(args_); !loaded)
          log_warn("API keys not reloaded, the old ones stay", {{"why", one_line(loaded.error())}});
      } else if (*signal == SIGUSR1) {
        dump();
      } else if (const Duration most = args_.duration(flags::kDrainTimeout);
                 end_.shutdown.ask(*signal, SystemClock::instance().now(), most)) {
        loop_->apply([this](TimePoint now, node::Actions& out) { worker_->start_draining(now, out); });
        const size_t left = worker_->load().running + worker_->load().waiting;
        end_.blocks_to_disk = worker_->disk().writes().write_out_left();
        if (left > 0 || end_.blocks_to_disk > 0)
          log_info("draining; another signal stops now",
                   {{"requests", left}, {"blocks_to_disk", end_.blocks_to_disk}, {"most_s", to_seconds(most)}});
      } else {
        leave("shutdown", "another signal stopped the node");
        loop_->stop();
      }
    }
  }

  /// Writes the state for SIGUSR1; the log level does not suppress it.
  void dump() const {
    const wire::Load load = worker_->load();
    std::string text = std::string(cli::build_info().program) + " " + watch_.name() + ": state at SIGUSR1:";
    const auto put = [&](const char* key, const auto& value) {
      text += " " + std::string(key) + "=";
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>)
        text += "\"" + value + "\"";
      else
        text += Json(value).dump();
    };
    put("registered", worker_->registration().is_member());
    put("running", load.running), put("waiting", load.waiting), put("queue_s", load.queue_s);
    put("kv_tokens", load.kv_tokens), put("pages_free", load.pages_free), put("pages_private", load.pages_private);
    put("pages_cached", load.pages_cached), put("pages_pinned", load.pages_pinned), put("leases", load.leases);
    put("last_error", load.last_error);
    for (const auto& [name, peer] : worker_->peers().all())
      text += "\n  peer " + name + " control=" + peer.control_uri + " via=" + planes_.data().transport(peer.instance);
    log_print(text + "\n");
  }

  const cli::Args& args_;
  Heartbeat heartbeat_;
  DescriptorPlan descriptors_;
  std::unique_ptr<Signals> signals_;
  WorkerPlan plan_;
  WorkerPlanes planes_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<ProcessMeter> process_meter_;
  std::unique_ptr<node::Compute> compute_;
  std::unique_ptr<BlockDisk> disk_;  // writes from and reads into the planes' memory until it is destroyed
  std::unique_ptr<node::Worker> worker_;
  std::unique_ptr<WorkerMetrics> meters_;
  std::unique_ptr<door::PageLock> lock_;
  std::unique_ptr<StatusPages> pages_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Operators> operators_;
  std::unique_ptr<Readiness> readiness_;
  WorkerWatch watch_;
  struct {
    Shutdown shutdown;
    size_t blocks_to_disk = 0;  // blocks left to write when the shutdown was asked for
  } end_;
  struct {
    TimePoint status{}, check{};
  } at_;
};

}  // namespace

Result<int> serve_worker(wire::Role role, const cli::Args& args) {
  return WorkerProcess(role, args).serve();
}

}  // namespace mc::host
