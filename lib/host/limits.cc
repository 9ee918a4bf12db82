#include "host/limits.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <thread>

#include "base/assert.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "product/metric_names.h"

namespace mc::host {
namespace {

constexpr size_t kReserveBytes = size_t{16} << 20;
constexpr size_t kStackBytes = size_t{1} << 20;
constexpr size_t kRefusalsMost = 64;  // of an HTTP server: connections that are told so
constexpr size_t kSocketMost = 64;    // connections of operators

/// The main thread's stack grows as it is used, and a process at a limit on its address space ends where it cannot.
void touch_stack() {
  volatile char pages[kStackBytes];
  for (size_t at = 0; at < sizeof pages; at += 4096) pages[at] = 0;
}

}  // namespace

Result<DescriptorPlan> prepare_process(bool has_data_plane, uint64_t disk_files) {
  MC_CHECK(log_to_thread());
  MC_TRY(limit, raise_descriptor_limit());
  MC_TRY(plan, plan_descriptors(limit, has_data_plane, disk_files));
  MC_CHECK(keep_memory_reserve(kReserveBytes));
  touch_stack();
  return plan;
}

size_t socket_connections(const DescriptorPlan& descriptors) {
  return std::clamp<size_t>(descriptors.http / 8, 1, kSocketMost);
}

size_t http_connections(const DescriptorPlan& descriptors) {
  MC_ASSERT_LT(2 * socket_connections(descriptors), descriptors.http);
  const size_t share = descriptors.http - 2 * socket_connections(descriptors);
  return share - std::min(share / 2, kRefusalsMost);
}

ProcessMeter::ProcessMeter(Metrics& metrics)
    : log_dropped_{metrics.counter(metric::kLogLost, {"slow_reader"})},
      log_suppressed_{metrics.counter(metric::kLogLost, {"repeated"})},
      http_refused_{metrics.counter(metric::kConnectionsRefused, {"http"})},
      control_refused_{metrics.counter(metric::kConnectionsRefused, {"control"})},
      accept_pauses_{metrics.counter(metric::kAcceptPauses)},
      memory_short_(metrics.gauge(metric::kMemoryShort)) {}

void ProcessMeter::Total::set(uint64_t value) {
  if (value > seen) counter.add(static_cast<double>(value - seen));
  seen = value;
}

void ProcessMeter::update(const http::ServerStats& http, const ctl::HubStats& control) {
  refill_memory_reserve();
  const LogLosses losses = log_losses();
  log_dropped_.set(losses.dropped);
  log_suppressed_.set(losses.suppressed);
  http_refused_.set(http.closed_for(http::CloseReason::too_many));
  control_refused_.set(control.connections_refused);
  accept_pauses_.set(http.accept_pauses);
  memory_short_.set(memory_is_short() ? 1 : 0);
}

http::Response livez_response(const Heartbeat& heartbeat) {
  std::string trouble = heartbeat.trouble(SystemClock::instance().now());
  return {.status = trouble.empty() ? 200 : 503, .headers = {}, .body = std::move(trouble)};
}

void print_line(std::string line) {
  const bool has_room = wait_fd(STDOUT_FILENO, POLLOUT, TimePoint{}).has_value();  // at least a page, in a pipe
  auto write = [line = std::move(line)] { (void)write_all(STDOUT_FILENO, line); };
  if (has_room) return write();
  try {
    std::thread(std::move(write)).detach();
  } catch (const std::system_error& error) {
    log_warn("ready line not printed", {{"why", error.what()}});
  }
}

}  // namespace mc::host
