#include "host/conductor_process.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "base/assert.h"
#include "base/errors.h"
#include "base/log.h"
#include "door/frontend.h"
#include "host/conductor_flags.h"
#include "host/conductor_settings.h"
#include "host/daemon.h"
#include "host/daemon_flags.h"
#include "host/key_file.h"
#include "host/links.h"
#include "host/local_cluster.h"
#include "host/loop.h"
#include "host/membership_log.h"
#include "node/worker.h"
#include "product/doors.h"
#include "product/flags.h"
#include "product/metric_names.h"
#include "wire/codec.h"

namespace mc::host {
namespace {

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
    MC_CHECK(open_control());
    MC_CHECK(open_http());
    if (args_.on(flags::kCheck)) {
      if (local_) MC_CHECK(local_->check(control_));
      log_info("check passed", {{"control", control_}, {"http", http_address_}});
      return 0;
    }
    if (local_) MC_CHECK(local_->start(control_));
    return run();
  }

 private:
  Result<void> open_machine() {
    MC_TRY(settings, read_conductor_flags(args_));
    settings_ = std::move(settings);
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
    auto keys = door::ApiKeys::open(args_.text(flags::kApiKeys));
    if (!keys) return log_warn("API keys not reloaded, the old ones stay", {{"why", one_line(keys.error())}});
    conductor_->tenants().set(keys->tenants());
    settings_.api_keys = std::make_shared<const door::ApiKeys>(std::move(*keys));
    frontend_->set_keys(settings_.api_keys);
    log_info("API keys reloaded", {{"tenants", settings_.api_keys->tenants().size()}});
  }

  Result<void> open_control() {
    MC_TRY(run_dir, ctl::run_dir(from_environment));
    socket_path_ = run_dir + "/" + std::string(kOperatorsSocket);
    ctl::sweep_run_dir(run_dir);
    MC_TRY(keys, KeyFile::of(args_, run_dir));
    keys_ = std::move(keys);
    ctl::HubOptions hub;
    hub.name = std::string(node::kConductor);
    hub.instance = settings_.machine.instance;
    hub.epoch = static_cast<uint64_t>(SystemClock::instance().unix_ms());
    hub.seed = args_.count(flags::kSeed);
    hub.insecure = insecure(args_, Door::control);
    hub.connections_max = descriptors_.control;
    hub.keys = keys_.keys(Door::control);
    hub.local_keys = keys_.lock(Door::control) == ctl::Keys::machine;
    for (const auto& text : args_.list(flags::kListen)) {
      MC_TRY(uri, ctl::resolve_endpoint(text, from_environment));
      MC_CHECK(ctl::check_exposure(Door::control, uri, keys_.lock(Door::control), hub.insecure));
      if (!is_local(uri) && keys_.lock(Door::control) != ctl::Keys::cluster) warn_no_lock(Door::control, uri.text());
      hub.listen.push_back(uri);
    }
    if (hub.listen.empty()) return user_error(err::kBadValue, "--listen names no endpoint", "--listen");
    MC_TRY(links, Links::open(std::move(hub), std::nullopt));
    links_ = std::move(links);
    MC_ASSERT(!links_->bound().empty());
    control_ = links_->bound().front().text();
    return {};
  }

  Result<void> open_http() {
    Loop::Parts parts;
    parts.machine = conductor_.get();
    parts.links = links_.get();
    parts.on_reply = [this](const node::Reply& reply) { frontend_->on_reply(reply); };
    parts.after_events = [this] { after_events(); };
    parts.signal_fd = signals_->fd();
    parts.on_signal = [this] { on_signal(); };
    parts.heartbeat = &heartbeat_;
    MC_TRY(loop, Loop::open(std::move(parts)));
    loop_ = std::move(loop);
    frontend_->attach(*loop_, [this] { return livez_response(heartbeat_); });
    const HostPort at = args_.host_port(flags::kHttp);
    if (!is_loopback(at.host) && !insecure(args_, Door::http) && !settings_.api_keys)
      return no_lock(Door::http, at.text());
    if (!is_loopback(at.host) && !settings_.api_keys) warn_no_lock(Door::http, at.text());
    MC_TRY(socket, http::Server::open(socket_options(socket_path_, descriptors_), frontend_->handler()));
    socket_ = std::move(socket);
    http::ServerOptions options = server_options(args_, metrics_.get(), descriptors_);
    options.deadline_header = "x-mc-deadline-ms";
    options.refuse_head = [this](const http::Request& head) { return frontend_->refuse_head(head); };
    MC_TRY(server, http::Server::open(options, frontend_->handler()));
    server_ = std::move(server);
    MC_ASSERT(server_->port() != 0);
    http_address_ = HostPort{at.host, server_->port()}.text();
    const std::string host = at.host == "0.0.0.0" ? "127.0.0.1" : at.host == "::" ? "::1" : at.host;
    frontend_->set_url("http://" + HostPort{host, server_->port()}.text());
    if (at.port != 0 && at.port != server_->port())
      log_warn("the default port is in use: this conductor listens on the next free port",
               {{"taken", at.text()}, {"http", http_address_}});
    readiness_ = std::make_unique<Readiness>("mc-conductor", args_.on(flags::kJson),
                                             args_.present(flags::kReadyFile) ? args_.text(flags::kReadyFile) : "");
    return {};
  }

  Result<int> print_commands() {
    if (!local_) return user_error(err::kUsage, "--print-commands shows what --local would run; give --local");
    std::fputs(local_->command_lines(args_.list(flags::kListen).front()).c_str(), stdout);
    return 0;
  }

  Result<int> run() {
    log_info("started", {{"version", cli::build_info().version},
                         {"commit", cli::build_info().commit},
                         {"model", settings_.front.served_name},
                         {"policy", args_.text(flags::kPolicy)},
                         {"fetch_rule", args_.text(flags::kFetchRule)},
                         {"control", control_},
                         {"http", http_address_}});
    if (!local_) readiness_->announce("conductor", http_address_, control_);
    loop_->run();
    notify_service_manager("STOPPING=1");
    frontend_->fail_all();
    (void)server_->drain(500ms);
    server_->stop();
    socket_->stop();
    if (local_) local_->stop(SystemClock::instance().now() + 5s);
    if (failure_) return *failure_;
    if (stop_.asked) log_info("stopped");
    return stop_.exit_code;
  }

  void after_events() {
    const TimePoint now = SystemClock::instance().now();
    keys_.offer([this](const ctl::KeySet& keys) {
      return keys_.lock(Door::control) == ctl::Keys::none ? Result<void>() : links_->set_keys(keys);
    });
    if (const uint64_t members = conductor_->members().version(); members != members_) {
      members_ = members;
      frontend_->set_nodes_context(conductor_->members().context_tokens(""));
    }
    if (local_ && !readiness_->announced() && local_ready()) readiness_->announce("conductor", http_address_, control_);
    while (auto ended = local_ ? local_->reap() : std::nullopt) {
      log_error("child ended", {{"child", ended->name}, {"why", ended->text()}});
      if (readiness_->announced()) continue;  // the cluster goes on without it, as it would on many hosts
      failure_ = user_error(err::kChildFailed, ended->name + " " + ended->text() + " before the cluster was ready");
      loop_->stop();
    }
    if (stop_.asked && (frontend_->answers_under_way() == 0 || now >= stop_.until)) loop_->stop();
    if (now < metrics_at_) return;
    metrics_at_ = now + 200ms;
    membership_.update(conductor_->nodes(now), conductor_->members().lost());
    conductor_->check();
    frontend_->update(server_->stats());
    meter_->update(server_->stats(), links_->stats());
  }

  bool local_ready() const {
    const auto nodes = conductor_->nodes(SystemClock::instance().now());
    return nodes.size() >= local_->shape().nodes();
  }

  void on_signal() {
    while (const auto signal = signals_->next()) {
      if (*signal == SIGHUP) {
        if (auto reopened = log_reopen(); !reopened) log_warn("log not reopened", {{"why", reopened.error().what}});
        keys_.reload();
        reload_api_keys();
        reload_page_lock(args_, *lock_);
      } else if (*signal == SIGUSR1) {
        dump();
      } else {
        stop_.exit_code = *signal == SIGINT ? kExitInterrupted : 0;
        if (stop_.asked) loop_->stop();
        stop_.asked = true;
        frontend_->start_draining();
        const Duration most = args_.duration(flags::kDrainTimeout);
        stop_.until = SystemClock::instance().now() + most;
        if (const size_t left = frontend_->answers_under_way(); left > 0)
          log_info("draining; another signal stops now", {{"requests", left}, {"most_s", to_seconds(most)}});
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
              " blocks=" + std::to_string(n.blocks) + " last_error=\"" + n.load.last_error + "\"\n";
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
  KeyFile keys_;
  std::unique_ptr<Links> links_;
  std::unique_ptr<door::PageLock> lock_;
  std::unique_ptr<door::Frontend> frontend_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<http::Server> socket_, server_;  // operators of this host, everybody
  std::unique_ptr<Readiness> readiness_;
  MembershipLog membership_;
  std::optional<LocalCluster> local_;
  std::string control_, http_address_, socket_path_;
  std::optional<Error> failure_;
  uint64_t members_ = 0;  // Conductor::memberships() when the nodes' context was looked at
  struct {
    bool asked = false;
    int exit_code = 0;
    TimePoint until = kNever;
  } stop_;
  TimePoint metrics_at_{};
};

}  // namespace

Result<int> serve_conductor(const cli::Args& args) {
  return ConductorProcess(args).serve();
}

}  // namespace mc::host
