// A daemon goes on when descriptors, memory or readers of its output run out; counters report it. See mc(7).
#pragma once

#include "base/metrics.h"
#include "ctl/ctl.h"
#include "host/heartbeat.h"
#include "http/server.h"
#include "product/descriptors.h"

namespace mc::host {

/// Every daemon calls this first, once its signals are blocked and before it starts threads: log lines get a thread,
/// the limit on descriptors is raised and divided, memory gets a reserve. MC5003 and MC5006 when the machine gives
/// too little to run at all.
Result<DescriptorPlan> prepare_process(bool has_data_plane, uint64_t disk_files = 0);

/// Connections that the HTTP door and the operators' socket may each have; with those that are told that there are too
/// many, they stay within the plan's share.
size_t http_connections(const DescriptorPlan& descriptors);
size_t socket_connections(const DescriptorPlan& descriptors);

/// Counters of what a process refused or lost because something ran out.
class ProcessMeter {
 public:
  explicit ProcessMeter(Metrics& metrics);
  /// A few times a second; also fills the reserve of memory again.
  void update(const http::ServerStats& http, const ctl::HubStats& control);

 private:
  struct Total {
    metric::Counter counter;
    uint64_t seen = 0;
    void set(uint64_t value);
  };
  Total log_dropped_, log_suppressed_, http_refused_, control_refused_, accept_pauses_;
  metric::Gauge memory_short_;
};

/// The answer to /livez: 200 while the control loop turns, else 503 with since when it does not.
http::Response livez_response(const Heartbeat& heartbeat);

/// Prints a line on stdout and never waits for its reader: where that has stopped, a thread waits.
void print_line(std::string line);

}  // namespace mc::host
