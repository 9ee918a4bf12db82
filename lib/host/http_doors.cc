#include "host/http_doors.h"

#include "base/assert.h"
#include "base/log.h"
#include "host/daemon.h"
#include "host/daemon_flags.h"
#include "product/doors.h"
#include "product/flags.h"

namespace mc::host {

Result<std::unique_ptr<HttpDoors>> HttpDoors::open(const cli::Args& args, const Options& options,
                                                   const DescriptorPlan& descriptors) {
  const HostPort at = args.host_port(flags::kHttp);
  if (!is_loopback(at.host) && !insecure(args, Door::http) && !options.has_keys) return no_lock(Door::http, at.text());
  if (!is_loopback(at.host) && !options.has_keys) warn_no_lock(Door::http, at.text());
  auto doors = std::unique_ptr<HttpDoors>(new HttpDoors(at.host));
  MC_TRY(socket, http::Server::open(socket_options(options.socket_path, descriptors), options.handler));
  doors->socket_ = std::move(socket);
  http::ServerOptions http = server_options(args, options.metrics, descriptors);
  http.deadline_header = "x-mc-deadline-ms";
  http.refuse_head = options.refuse_head;
  MC_TRY(server, http::Server::open(http, options.handler));
  doors->server_ = std::move(server);
  MC_ASSERT(doors->server_->port() != 0);
  if (at.port != 0 && at.port != doors->server_->port())
    log_warn("the default port is in use: this conductor listens on the next free port",
             {{"taken", at.text()}, {"http", doors->address()}});
  return doors;
}

std::string HttpDoors::address() const {
  return HostPort{host_, server_->port()}.text();
}

std::string HttpDoors::url() const {
  const std::string host = host_ == "0.0.0.0" ? "127.0.0.1" : host_ == "::" ? "::1" : host_;
  return "http://" + HostPort{host, server_->port()}.text();
}

void HttpDoors::stop() {
  (void)server_->drain(500ms);
  server_->stop();
  socket_->stop();
}

}  // namespace mc::host
