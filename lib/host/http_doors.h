// The two HTTP servers of a conductor: the public door of --http, and the Unix socket for the operators of this host.
// Both answer with one handler. The socket has a thread of its own, so clients that crowd the door leave it free.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/cli.h"
#include "base/metrics.h"
#include "http/server.h"
#include "product/descriptors.h"

namespace mc::host {

class HttpDoors {
 public:
  struct Options {
    std::string socket_path;
    bool has_keys = false;  // clients must give an API key
    http::Server::Handler handler;
    std::function<std::optional<http::Response>(const http::Request& head)> refuse_head;  // of the public door
    Metrics* metrics = nullptr;
  };
  /// MC1005 when --http is off loopback and has neither API keys nor consent. `options.metrics` and what the handlers
  /// use outlive the object.
  static Result<std::unique_ptr<HttpDoors>> open(const cli::Args& args, const Options& options,
                                                 const DescriptorPlan& descriptors);
  /// The host of --http and the port in use.
  std::string address() const;
  /// The public door for a client on this host.
  std::string url() const;
  /// Counters of the public door.
  http::ServerStats stats() const { return server_->stats(); }
  /// Closes both, after a moment for answers under way. Idempotent.
  void stop();

 private:
  explicit HttpDoors(std::string host) : host_(std::move(host)) {}

  std::string host_;
  std::unique_ptr<http::Server> socket_, server_;
};

}  // namespace mc::host
