#include "host/conductor_process.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "base/assert.h"
#include "base/errors.h"
#include "base/log.h"
#include "door/frontend.h"
#include "host/conductor_flags.h"
#include "host/conductor_settings.h"
#include "host/control_door.h"
#include "host/daemon.h"
#include "host/daemon_flags.h"
#include "host/http_doors.h"
#include "host/local_cluster.h"
#include "host/loop.h"
#include "host/membership_log.h"
#include "host/shutdown.h"
#include "product/flags.h"
#include "product/metric_names.h"
#include "wire/codec.h"

namespace mc::host {
namespace {
constexpr Duration kNodesEnd = 5s;       // of a node that was told to stop at once
constexpr Duration kNodesAsked = 300ms;  // between two SIGTERMs, so that a node takes both

const char* from_environment(const char* name) {
  return std::getenv(name);
}

class ConductorProcess {
 public:
  explicit ConductorProcess(const cli::Args& args) : args_(args) {}

  Result<int> serve() {
    if (args_.present(flags::kLocal)) {
      MC_TRY(local, LocalCluster::open(args_));
      local_.emplace(std::move(local));
    }
    if (args_.on(flags::kPrintCommands)) return print_commands();
    MC_TRY(signals, Signals::open());
    signals_ = std::make_unique<Signals>(std::move(signals));
    MC_TRY(descriptors, prepare_process(false));
    descriptors_ = descriptors;
    if (args_.on(flags::kDieWithParent)) die_with_parent();
    MC_CHECK(open_machine());
    MC_TRY(run_dir, ctl::run_dir(from_environment));
    ctl::sweep_run_dir(run_dir);
    const auto epoch = static_cast<uint64_t>(SystemClock::instance().unix_ms());
    MC_TRY(control, ControlDoor::open(args_, run_dir, settings_.machine.instance, epoch, descriptors_));
    control_ = std::move(control);
    MC_CHECK(open_http(run_dir + "/" + std::string(kOperatorsSocket)));
    if (args_.on(flags::kCheck)) {
      if (local_) MC_CHECK(local_->check(control_.uri()));
      log_info("check passed", {{"control", control_.uri()}, {"http", doors_->address()}});
      return 0;
    }
    if (local_) MC_CHECK(local_->start(control_.uri()));
    return run();
  }

 private:
  Result<void> open_machine() {
    MC_TRY(settings, read_conductor_flags(args_));
    settings_ = std::move(settings);
    settings_.machine.keys = [this](const InstanceId& node) { return control_.key_mark(node); };
    conductor_ = std::make_unique<node::Conductor>(settings_.machine);
    metrics_ = std::make_unique<Metrics>(
        Metrics::Labels{{"model_name", settings_.front.served_name}, {"engine", "conductor"}});
    metrics_->gauge(metric::kBuildInfo, {cli::build_info().version, cli::build_info().commit, "mc-conductor"}).set(1);
    meter_ = std::make_unique<ProcessMeter>(*metrics_);
    MC_TRY(lock, open_page_lock(args_));
    lock_ = std::move(lock);
    settings_.front.lock = lock_.get();
    MC_TRY(frontend, door::Frontend::open(settings_.front, *conductor_, *metrics_));
    frontend_ = std::move(frontend);
    frontend_->set_keys(settings_.api_keys);
    return {};
  }

  /// Requests under way keep their tenant. A file that cannot be read changes nothing.
  void reload_api_keys() {
    if (!settings_.api_keys) return;
    MC_ASSERT(args_.present(flags::kApiKeys));
    auto keys = door::ApiKeys::open(args_.text(flags::kApiKeys));
    if (!keys) return log_warn("API keys not reloaded, the old ones stay", {{"why", one_line(keys.error())}});
    conductor_->tenants().set(keys->tenants());
    settings_.api_keys = std::make_shared<const door::ApiKeys>(std::move(*keys));
    frontend_->set_keys(settings_.api_keys);
    log_info("API keys reloaded", {{"tenants", settings_.api_keys->tenants().size()}});
  }

  Result<void> open_http(std::string socket_path) {
    MC_ASSERT(conductor_ && frontend_ && !loop_);
    Loop::Parts parts;
    parts.machine = conductor_.get();
    parts.links = &control_.links();
    parts.on_reply = [this](const node::Reply& reply) { frontend_->on_reply(reply); };
    parts.after_events = [this] { after_events(); };
    parts.signal_fd = signals_->fd();
    parts.on_signal = [this] { on_signal(); };
    parts.heartbeat = &heartbeat_;
    MC_TRY(loop, Loop::open(std::move(parts)));
    loop_ = std::move(loop);
    frontend_->attach(*loop_, [this] { return livez_response(heartbeat_); });
    MC_TRY(doors,
           HttpDoors::open(args_,
                           {.socket_path = std::move(socket_path),
                            .has_keys = settings_.api_keys != nullptr,
                            .handler = frontend_->handler(),
                            .refuse_head = [this](const http::Request& head) { return frontend_->refuse_head(head); },
                            .metrics = metrics_.get()},
                           descriptors_));
    doors_ = std::move(doors);
    frontend_->set_url(doors_->url());
    readiness_ = std::make_unique<Readiness>("mc-conductor", args_.on(flags::kJson),
                                             args_.present(flags::kReadyFile) ? args_.text(flags::kReadyFile) : "");
    return {};
  }

  Result<int> print_commands() {
    if (!local_) return user_error(err::kUsage, "--print-commands shows what --local would run; give --local");
    MC_TRY(control, ctl::resolve_endpoint(args_.list(flags::kListen).front(), from_environment));
    std::fputs(local_->command_lines(control.text()).c_str(), stdout);
    return 0;
  }

  Result<int> run() {
    log_info("started", {{"version", cli::build_info().version},
                         {"commit", cli::build_info().commit},
                         {"model", settings_.front.served_name},
                         {"policy", args_.text(flags::kPolicy)},
                         {"fetch_rule", args_.text(flags::kFetchRule)},
                         {"control", control_.uri()},
                         {"http", doors_->address()}});
    if (!local_) readiness_->announce("conductor", doors_->address(), control_.uri());
    loop_->run();
    MC_ASSERT(shutdown_.asked() || !shutdown_.outcome());  // nothing else stops the loop
    notify_service_manager("STOPPING=1");
    frontend_->fail_all();
    cancel_requests();
    doors_->stop();
    if (local_) stop_nodes();
    const Result<int> outcome = shutdown_.outcome();
    if (outcome && shutdown_.asked()) log_info("stopped");
    return outcome;
  }

  /// The nodes of --local write their blocks to disk for at most --drain-timeout. Another signal stops them at once, as
  /// a second SIGTERM does.
  void stop_nodes() {
    const auto now = [] { return SystemClock::instance().now(); };
    Children& nodes = local_->children();
    const bool may_take_time = shutdown_.outcome() && !shutdown_.is_urgent();
    const TimePoint until = now() + (may_take_time ? args_.duration(flags::kDrainTimeout) + kNodesEnd : kNodesAsked);
    nodes.terminate();
    while (!nodes.wait_all(until, signals_->fd()) && now() < until && !asks_again()) {
    }
    nodes.stop(now() + kNodesEnd);
  }

  bool asks_again() {
    bool again = false;
    while (const auto signal = signals_->next()) again = again || *signal == SIGTERM || *signal == SIGINT;
    return again;
  }

  /// The nodes give up the requests of clients that have their error. They would go on until they miss the conductor,
  /// and those of --local are waited for.
  void cancel_requests() {
    loop_->apply([this](TimePoint now, node::Actions& out) {
      for (const RequestId& id : conductor_->flights().ids([](const node::Request&) { return true; }))
        conductor_->handle(node::ClientCancel{id, node::CancelReason::failed}, now, out);
    });
  }

  void after_events() {
    const TimePoint now = SystemClock::instance().now();
    control_.offer_keys();
    if (const uint64_t members = conductor_->members().version(); members != members_) {
      members_ = members;
      frontend_->set_nodes_context(conductor_->members().context_tokens(""));
      membership_.update(conductor_->nodes(now), conductor_->members().lost());  // a node may leave within 200 ms
    }
    if (local_ && !readiness_->announced() && local_ready())
      readiness_->announce("conductor", doors_->address(), control_.uri());
    while (auto ended = local_ ? local_->reap() : std::nullopt) {
      log_error("child ended", {{"child", ended->name}, {"why", ended->text()}});
      if (readiness_->announced()) continue;  // the cluster goes on without it, as it would on many hosts
      shutdown_.fail(
          user_error(err::kChildFailed, ended->name + " " + ended->text() + " before the cluster was ready"));
      loop_->stop();
    }
    if (shutdown_.is_due(frontend_->answers_under_way() == 0, now)) loop_->stop();
    if (now < metrics_at_) return;
    metrics_at_ = now + 200ms;
    membership_.update(conductor_->nodes(now), conductor_->members().lost());
    refusals_.update(conductor_->members(), now);
    conductor_->check();
    frontend_->update(doors_->stats());
    meter_->update(doors_->stats(), control_.links().stats());
  }

  bool local_ready() const {
    MC_ASSERT(local_.has_value());
    const auto nodes = conductor_->nodes(SystemClock::instance().now());
    return nodes.size() >= local_->shape().nodes();
  }

  void on_signal() {
    while (const auto signal = signals_->next()) {
      if (*signal == SIGHUP) {
        if (auto reopened = log_reopen(); !reopened) log_warn("log not reopened", {{"why", reopened.error().what}});
        control_.reload_keys();
        reload_api_keys();
        reload_page_lock(args_, *lock_);
      } else if (*signal == SIGUSR1) {
        dump();
      } else if (const Duration most = args_.duration(flags::kDrainTimeout);
                 shutdown_.ask(*signal, SystemClock::instance().now(), most)) {
        frontend_->start_draining();
        if (const size_t left = frontend_->answers_under_way(); left > 0)
          log_info("draining; another signal stops now", {{"requests", left}, {"most_s", to_seconds(most)}});
      } else {
        loop_->stop();
      }
    }
  }

  /// Writes the state for SIGUSR1; the log level does not suppress it.
  void dump() const {
    const TimePoint now = SystemClock::instance().now();
    std::string text;
    for (const auto& n : conductor_->nodes(now))
      text += "  node " + n.name + " " + std::string(wire::to_string(n.role)) + " " + std::string(to_string(n.state)) +
              " control=" + n.control_uri + " http=" + n.http + " requests=" + std::to_string(n.requests) +
              " running=" + std::to_string(n.load.running) + " waiting=" + std::to_string(n.load.waiting) +
              " blocks=" + std::to_string(n.indexed.count) + " last_error=\"" + n.load.last_error + "\"\n";
    log_print("mc-conductor: state at SIGUSR1: " + std::to_string(conductor_->flights().size()) +
              " requests unfinished\n" + text);
  }

  const cli::Args& args_;
  ConductorSettings settings_;
  Heartbeat heartbeat_;
  DescriptorPlan descriptors_;
  std::unique_ptr<Signals> signals_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<ProcessMeter> meter_;
  std::unique_ptr<node::Conductor> conductor_;
  ControlDoor control_;
  std::unique_ptr<door::PageLock> lock_;
  std::unique_ptr<door::Frontend> frontend_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<HttpDoors> doors_;
  std::unique_ptr<Readiness> readiness_;
  MembershipLog membership_;
  RefusalLog refusals_;
  std::optional<LocalCluster> local_;
  Shutdown shutdown_;
  uint64_t members_ = 0;  // Members::version() when the nodes were looked at
  TimePoint metrics_at_{};
};

}  // namespace

Result<int> serve_conductor(const cli::Args& args) {
  return ConductorProcess(args).serve();
}

}  // namespace mc::host
