#include "host/daemon.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <system_error>

#include "base/assert.h"
#include "base/errors.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/thread_limit.h"
#include "base/units.h"
#include "host/conductor_flags.h"
#include "host/daemon_flags.h"
#include "host/store_flags.h"
#include "host/worker_process.h"
#include "product/doors.h"
#include "product/flags.h"

namespace mc::host {
namespace {
constexpr int kPortTries = 100;                    // the default port, else the next free one up to +99
constexpr size_t kPageBodyMax = size_t{64} << 10;  // of a request for a page, or of an order about blocks
}  // namespace

namespace {

/// Temporary files of write_file_atomic beside `path` that a killed program left. A young one may be in the making.
void remove_half_written(const std::string& path) {
  constexpr time_t kInTheMaking = 60;  // seconds
  constexpr size_t kRandomLetters = 6;
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const std::string prefix = path.substr(slash == std::string::npos ? 0 : slash + 1) + ".tmp.";
  DIR* listing = ::opendir(folder.c_str());
  if (listing == nullptr) return;
  while (const dirent* entry = ::readdir(listing)) {
    const std::string name = entry->d_name;
    if (!name.starts_with(prefix) || name.size() != prefix.size() + kRandomLetters) continue;
    const std::string temporary = folder + "/" + name;
    struct stat info {};
    if (::lstat(temporary.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != ::geteuid()) continue;
    if (::time(nullptr) - info.st_mtime >= kInTheMaking) ::unlink(temporary.c_str());
  }
  ::closedir(listing);
}

/// An order about the node's blocks.
bool is_order(http::Route route) {
  return route == http::Route::block_evict || route == http::Route::block_pin || route == http::Route::block_unpin ||
         route == http::Route::block_export || route == http::Route::block_import;
}

/// Pages that hand out prompts and KV, or take them.
bool moves_kv(http::Route route) {
  return is_order(route) || route == http::Route::prefill;
}

http::Response no_prompts() {
  return http::error_response(err::kNotFound,
                              "this " + std::string(cli::build_info().program) +
                                  " node computes no prompts: ask an mc-prefill node, and of a pipeline its leader");
}

}  // namespace

Readiness::~Readiness() {
  if (!announced_ || file_.empty()) return;
  struct stat found {};  // a FIFO or a device was there before
  if (::lstat(file_.c_str(), &found) == 0 && S_ISREG(found.st_mode)) ::unlink(file_.c_str());
}

void Readiness::announce(const std::string& name, const std::string& http, const std::string& control) {
  if (announced_) return;
  announced_ = true;
  MC_ASSERT(!name.empty() && !http.empty() && !control.empty());
  const std::string url = "http://" + http;
  if (json_) {
    Json line = Json::object();
    line.set("type", "ready").set("program", program_).set("name", name).set("http", url).set("control", control);
    line.set("pid", static_cast<int64_t>(::getpid()));
    print_line(line.dump() + "\n");
  } else {
    print_line(program_ + " " + name + " ready http=" + url + " control=" + control + "\n");
  }
  notify_service_manager("READY=1");
  if (!file_.empty()) remove_half_written(file_);
  if (!file_.empty())
    if (auto written = write_file_atomic(file_, url + "\n"); !written)
      log_warn("ready file not written", {{"file", file_}, {"why", one_line(written.error())}});
}

http::ServerOptions server_options(const cli::Args& args, Metrics* metrics, const DescriptorPlan& descriptors) {
  const HostPort at = args.host_port(flags::kHttp);
  http::ServerOptions options;
  options.address = at.host;
  options.port = at.port;
  options.port_tries = args.given(flags::kHttp) || at.port == 0 ? 1 : kPortTries;
  options.site.own_hosts = args.list(flags::kAllowedHost);
  options.site.checks_host = is_loopback(at.host) || !options.site.own_hosts.empty();
  options.site.own_hosts.push_back(at.host);
  options.site.own_origins = args.list(flags::kAllowedOrigin);
  options.metrics = metrics;
  options.connections_max = http_connections(descriptors);
  return options;
}

http::ServerOptions socket_options(const std::string& path, const DescriptorPlan& descriptors) {
  MC_ASSERT(!path.empty());
  http::ServerOptions options;
  options.socket_path = path;
  options.connections_max = socket_connections(descriptors);
  return options;
}

Result<std::unique_ptr<door::PageLock>> open_page_lock(const cli::Args& args) {
  auto lock = std::make_unique<door::PageLock>(insecure(args, Door::pages));
  if (args.present(flags::kAdminKeyFile)) MC_CHECK(lock->load(args.text(flags::kAdminKeyFile)));
  return lock;
}

void reload_page_lock(const cli::Args& args, door::PageLock& lock) {
  if (!args.present(flags::kAdminKeyFile)) return;
  if (auto loaded = lock.load(args.text(flags::kAdminKeyFile)); !loaded)
    log_warn("admin key not reloaded, the old one stays", {{"why", one_line(loaded.error())}});
}

Result<std::unique_ptr<StatusPages>> StatusPages::open(const cli::Args& args, const std::string& socket_path,
                                                       const door::PageLock& lock, Metrics& metrics,
                                                       const Heartbeat& heartbeat, const DescriptorPlan& descriptors,
                                                       const Bodies& bodies, std::unique_ptr<node::ValueDisk> values) {
  auto pages = std::unique_ptr<StatusPages>(new StatusPages);
  pages->metrics_ = &metrics;
  pages->lock_ = &lock;
  pages->heartbeat_ = &heartbeat;
  const HostPort at = args.host_port(flags::kHttp);
  pages->host_ = at.host;
  pages->socket_name_ = socket_path.substr(socket_path.rfind('/') + 1);
  if (!is_loopback(at.host) && !lock.has_key() && !insecure(args, Door::pages)) return no_lock(Door::pages, at.text());
  if (!is_loopback(at.host) && !lock.has_key()) warn_no_lock(Door::pages, at.text());
  const auto handler = [p = pages.get()](http::Request request, const http::Responder& out) {
    p->handle(std::move(request), out);
  };
  pages->prompt_bytes_ = bodies.prompt_bytes;
  pages->import_bytes_ = bodies.import_bytes;
  if (bodies.value_bytes > 0) {
    using node::ValueTenants;
    const node::ValueLimits limits{.memory_bytes = bodies.value_bytes,
                                   .tenants = args.present(flags::kApiKeys) ? ValueTenants::several : ValueTenants::one,
                                   .lease_max = args.duration(flags::kLeaseTime)};
    try {
      pages->store_ = std::make_unique<door::StoreApi>(lock, limits, SystemClock::instance(), std::move(values));
      if (bodies.replicas != nullptr)
        pages->store_->join(*bodies.replicas, {.grace = args.duration(flags::kReplicaGrace)});
    } catch (const std::system_error& error) {
      return thread_limit_error(error.code().value());
    }
    MC_CHECK(pages->load_keys(args));
  }
  const auto with_limits = [p = pages.get()](http::ServerOptions options) {
    options.limits.body_bytes = std::max(
        {p->store_ ? p->store_->body_bytes_max() : size_t{0}, p->prompt_bytes_, p->import_bytes_, kPageBodyMax});
    options.deadline_header = "x-mc-deadline-ms";
    options.refuse_head = [p](const http::Request& head) { return p->refuse_head(head); };
    return options;
  };
  MC_TRY(server, http::Server::open(with_limits(server_options(args, &metrics, descriptors)), handler));
  pages->server_ = std::move(server);
  MC_TRY(socket, http::Server::open(with_limits(socket_options(socket_path, descriptors)), handler));
  pages->socket_ = std::move(socket);
  return pages;
}

Result<void> StatusPages::load_keys(const cli::Args& args) {
  if (!store_ || !args.present(flags::kApiKeys)) return {};
  MC_TRY(keys, door::ApiKeys::open(args.text(flags::kApiKeys)));
  store_->set_keys(std::make_shared<const door::ApiKeys>(std::move(keys)));
  return {};
}

/// A request without its key, or with a body that nothing takes, ends before its body is read.
std::optional<http::Response> StatusPages::refuse_head(const http::Request& head) const {
  const auto found = http::find_route(http::worker_routes(), head.method, head.path);
  const auto* match = std::get_if<http::RouteMatch>(&found);
  if (match && match->route == http::Route::store && store_) return store_->refuse_head(head);
  if (match && moves_kv(match->route) && !lock_->admits_to_kv(head))
    return http::operators_error(lock_->refusal(head.path));
  const bool asks = match && match->route == http::Route::prefill;
  if (asks && prompt_bytes_ == 0) return no_prompts();
  const bool imports = match && match->route == http::Route::block_import;
  const size_t most = asks ? prompt_bytes_ : imports ? import_bytes_ : kPageBodyMax;
  const auto length = parse_u64(http::find_header(head.headers, "content-length", "0"), 0, most);
  if (length && (asks || http::find_header(head.headers, "transfer-encoding").empty())) return std::nullopt;
  return http::error_response(err::kBodyTooLarge,
                              "this path takes no body of more than " + std::to_string(most) + " bytes");
}

std::string StatusPages::address() const {
  MC_ASSERT(server_ != nullptr && server_->port() != 0);
  return HostPort{host_, server_->port()}.text();
}

void StatusPages::update(std::string unready, bool has_tenants, const std::string& name) {
  if (store_) store_->update(*metrics_);
  const std::lock_guard lock(mutex_);
  unready_ = std::move(unready);
  has_tenants_ = has_tenants;
  if (name_ != name) name_ = name;
}

void StatusPages::answer_with(LoopAnswers answers) {
  const std::unique_lock lock(answers_mutex_);
  loop_ = std::move(answers);
}

void StatusPages::ask_loop(Answer LoopAnswers::*answer, http::Request request, const http::Responder& out) {
  const std::shared_lock lock(answers_mutex_);  // until the answer has returned: its owner may take it away and go
  if (!(loop_.*answer)) return out.respond({.status = 503, .headers = {}, .body = "starting or stopping"});
  (loop_.*answer)(std::move(request), out);
}

/// Counts of requests tell what each tenant does; without tenants only those who are not on this host are kept out.
bool StatusPages::is_locked() {
  if (!is_loopback(host_) || lock_->has_key() || (store_ && store_->has_keys())) return true;
  const std::lock_guard lock(mutex_);
  return has_tenants_;
}

void StatusPages::handle(http::Request request, const http::Responder& out) {
  const auto found = http::find_route(http::worker_routes(), request.method, request.path);
  if (const auto* answer = std::get_if<http::Response>(&found)) return out.respond(*answer);
  const http::Route route = std::get<http::RouteMatch>(found).route;
  const bool is_counted = route == http::Route::metrics || route == http::Route::version;
  const bool lists = route == http::Route::blocks || route == http::Route::block_lookup;
  const bool for_operators = moves_kv(route) || lists || (is_counted && is_locked());
  if (for_operators && !(moves_kv(route) ? lock_->admits_to_kv(request) : lock_->admits(request)))
    return out.respond(http::operators_error(lock_->refusal(request.path)));
  switch (route) {
    case http::Route::livez: {
      http::Response response = livez_response(*heartbeat_);
      response.headers.push_back({std::string(kPagesSocketHeader), socket_name_});
      return out.respond(std::move(response));
    }
    case http::Route::blocks: return ask_loop(&LoopAnswers::blocks, std::move(request), out);
    case http::Route::block_lookup: return ask_loop(&LoopAnswers::lookup, std::move(request), out);
    case http::Route::block_evict: return ask_loop(&LoopAnswers::evict, std::move(request), out);
    case http::Route::block_pin: return ask_loop(&LoopAnswers::pin, std::move(request), out);
    case http::Route::block_unpin: return ask_loop(&LoopAnswers::unpin, std::move(request), out);
    case http::Route::block_export: return ask_loop(&LoopAnswers::give, std::move(request), out);
    case http::Route::block_import: return ask_loop(&LoopAnswers::take, std::move(request), out);
    case http::Route::prefill:
      if (prompt_bytes_ == 0) return out.respond(no_prompts());
      return ask_loop(&LoopAnswers::prefill, std::move(request), out);
    case http::Route::store:
      if (store_) {
        std::string key(std::get<http::RouteMatch>(found).rest);  // a view into the request, which moves on
        return store_->handle(std::move(request), std::move(key), out);
      }
      return out.respond(http::error_response(user_error(
          err::kNotFound, "this node has no store of values: it is no cache node, has --values 0B, or a --dram of 8MiB",
          "", "name a cache node with --values above 0B: mc-conductor ps shows the role of each node")));
    case http::Route::metrics:
      return out.respond({.status = 200,
                          .headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}},
                          .body = metrics_->expose()});
    case http::Route::version: {
      Json body = Json::object();
      body.set("version", cli::build_info().version).set("commit", cli::build_info().commit);
      body.set("program", cli::build_info().program);
      {
        const std::lock_guard lock(mutex_);
        if (!name_.empty()) body.set("node", name_);
      }
      return out.respond({.status = 200, .headers = {{"Content-Type", "application/json"}}, .body = body.dump()});
    }
    default: {
      std::lock_guard lock(mutex_);
      return out.respond({.status = unready_.empty() ? 200 : 503, .headers = {}, .body = unready_});
    }
  }
}

}  // namespace mc::host
