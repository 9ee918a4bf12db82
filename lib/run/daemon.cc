#include "run/daemon.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "base/fd.h"
#include "base/log.h"

namespace mc::run {
namespace {
constexpr int kPortTries = 100;  // USERS 2: the default port, else the next free one up to +99
}

Readiness::~Readiness() {
  if (!announced_ || file_.empty()) return;
  struct stat found {};  // a FIFO or a device was there before
  if (::lstat(file_.c_str(), &found) == 0 && S_ISREG(found.st_mode)) ::unlink(file_.c_str());
}

void Readiness::announce(const std::string& name, const std::string& http, const std::string& control) {
  if (announced_) return;
  announced_ = true;
  const std::string url = "http://" + http;
  if (json_) {
    Json line = Json::object();
    line.set("type", "ready").set("program", program_).set("name", name).set("http", url).set("control", control);
    line.set("pid", static_cast<int64_t>(::getpid()));
    std::printf("%s\n", line.dump().c_str());
  } else {
    std::printf("%s %s ready http=%s control=%s\n", program_.c_str(), name.c_str(), url.c_str(), control.c_str());
  }
  std::fflush(stdout);
  notify_service_manager("READY=1");
  if (!file_.empty())
    if (auto written = write_file_atomic(file_, url + "\n"); !written)
      log_warn("ready file not written", {{"file", file_}, {"why", written.error().what}});
}

http::ServerOptions server_options(const HostPort& at, bool explicit_port, Metrics* metrics) {
  http::ServerOptions options;
  options.address = at.host;
  options.port = at.port;
  options.port_tries = explicit_port || at.port == 0 ? 1 : kPortTries;
  options.metrics = metrics;
  return options;
}

Result<std::unique_ptr<StatusPages>> StatusPages::open(HostPort at, bool explicit_port, Metrics& metrics) {
  auto pages = std::unique_ptr<StatusPages>(new StatusPages);
  pages->metrics_ = &metrics;
  pages->host_ = at.host;
  MC_TRY(server, http::Server::open(
                     server_options(at, explicit_port, &metrics),
                     [p = pages.get()](http::Request request, http::Responder out) { p->handle(request, out); }));
  pages->server_ = std::move(server);
  return pages;
}

std::string StatusPages::address() const {
  return HostPort{host_, server_->port()}.text();
}

void StatusPages::update(std::string unready) {
  std::lock_guard lock(mutex_);
  unready_ = std::move(unready);
}

void StatusPages::handle(const http::Request& request, const http::Responder& out) {
  const auto found = http::find_route(http::worker_routes(), request.method, request.path);
  if (const auto* answer = std::get_if<http::Response>(&found)) return out.respond(*answer);
  switch (std::get<http::RouteMatch>(found).route) {
    case http::Route::livez: return out.respond({.status = 200});
    case http::Route::metrics:
      return out.respond({.status = 200,
                          .headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}},
                          .body = metrics_->expose()});
    case http::Route::version: {
      Json body = Json::object();
      body.set("version", cli::build_info().version).set("commit", cli::build_info().commit);
      body.set("program", cli::build_info().program);
      return out.respond({.status = 200, .headers = {{"Content-Type", "application/json"}}, .body = body.dump()});
    }
    default: {
      std::lock_guard lock(mutex_);
      return out.respond({.status = unready_.empty() ? 200 : 503, .headers = {}, .body = unready_});
    }
  }
}

}  // namespace mc::run
