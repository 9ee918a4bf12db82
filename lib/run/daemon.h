// What every daemon does the same way: the ready line, the ready file, signals, worker HTTP pages.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/cli.h"
#include "base/json.h"
#include "base/metrics.h"
#include "http/route.h"
#include "http/server.h"
#include "run/signals.h"

namespace mc::run {

/// Says "ready" once, where the user asked for it: one line on stdout (an object with --json), systemd,
/// --ready-file. The destructor removes the file.
class Readiness {
 public:
  Readiness(std::string program, bool json, std::string ready_file)
      : program_(std::move(program)), json_(json), file_(std::move(ready_file)) {}
  ~Readiness();
  Readiness(const Readiness&) = delete;
  void announce(const std::string& name, const std::string& http, const std::string& control);
  bool announced() const { return announced_; }

 private:
  std::string program_;
  bool json_;
  std::string file_;
  bool announced_ = false;
};

/// /livez /readyz /health /version /metrics of a worker. The control loop updates what they say.
class StatusPages {
 public:
  /// `explicit_port`: the user named the port, so it is never changed.
  static Result<std::unique_ptr<StatusPages>> open(HostPort at, bool explicit_port, Metrics& metrics);
  std::string address() const;
  /// `unready` empty = ready; any thread.
  void update(std::string unready);

 private:
  StatusPages() = default;
  void handle(const http::Request& request, const http::Responder& out);

  std::mutex mutex_;
  std::string unready_ = "starting";  // guarded by mutex_
  Metrics* metrics_ = nullptr;
  std::string host_;
  std::unique_ptr<http::Server> server_;  // last: its thread uses the rest
};

/// Where a listening HTTP server of this daemon starts looking for a port.
http::ServerOptions server_options(const HostPort& at, bool explicit_port, Metrics* metrics);

}  // namespace mc::run
