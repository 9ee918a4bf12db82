// The HTTP server's loop over Asio: accepting, readiness, one tick timer. Sockets are non-blocking. Reads go into one
// scratch buffer of the loop, so a silent connection holds no read buffer. A pending wait-for-readable on every
// connection notices when a client leaves.
#include "http/server.h"

#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <new>
#include <thread>

#include "base/assert.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/metric_names.h"
#include "http/asio.h"
#include "http/connection.h"

namespace mc::http {
using Acceptor = asio::basic_socket_acceptor<Protocol, Executor>;

namespace {

constexpr size_t kScratchBytes = size_t{64} << 10;
constexpr Duration kTickMax = 200ms;  // how late a timeout may be noticed
constexpr int kAcceptsMax = 64;       // accepted in a row before connections are served
constexpr size_t kRefusalsMax = 64;   // connections beyond the limit that get an answer; others are closed at once

std::string endpoint_text(const asio::ip::tcp::endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  return (endpoint.address().is_v6() ? "[" + host + "]" : host) + ":" + std::to_string(endpoint.port());
}

/// "127.0.0.1:51234", or "" for an address of another family.
std::string endpoint_text(const Protocol::endpoint& endpoint) {
  asio::ip::tcp::endpoint tcp;
  const int family = endpoint.protocol().family();
  if ((family != AF_INET && family != AF_INET6) || endpoint.size() > tcp.capacity()) return "";
  std::memcpy(tcp.data(), endpoint.data(), endpoint.size());
  return endpoint_text(tcp);
}

/// "user 1000" for a Unix socket whose other end is this process's user or root, otherwise "".
std::string trusted_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return "";
  return peer.uid == ::geteuid() || peer.uid == 0 ? "user " + std::to_string(peer.uid) : "";
}

/// Removes the socket of a process that was killed. True when the path is free now.
bool remove_dead_socket(const asio::local::stream_protocol::endpoint& endpoint) {
  struct stat found {};
  if (::lstat(endpoint.path().c_str(), &found) != 0 || !S_ISSOCK(found.st_mode)) return false;
  const Fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe || ::connect(probe.get(), endpoint.data(), static_cast<socklen_t>(endpoint.size())) == 0) return false;
  return errno == ECONNREFUSED && ::unlink(endpoint.path().c_str()) == 0;
}

/// Sets keep-alive probes after 30 s and a bound on unacknowledged data, so that a dead host is noticed even on a
/// silent connection.
void tune(Socket& socket) {
  error_code ignored;
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const int idle_s = 30, interval_s = 10, probes = 3;
  const unsigned user_timeout_ms = 60'000;
  const int fd = socket.native_handle();
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof user_timeout_ms);
}

constexpr Duration kTicks = 20ms;  // the kernel counts the age of input in ticks of a few milliseconds

/// The age of the last received bytes by the kernel's account; 0 when it gives none.
Duration age_of_input(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  if (size < offsetof(tcp_info, tcpi_last_ack_recv)) return {};
  const Duration age = std::chrono::milliseconds(info.tcpi_last_data_recv);
  return age < kTicks ? Duration{} : age;
}

}  // namespace

/// A connection with its socket. Pending waits hold a shared_ptr, so it outlives close() until they have been
/// cancelled.
struct Peer final : detail::Connection, std::enable_shared_from_this<Peer> {
  Peer(Socket accepted, detail::ConnectionHost& host, const ServerOptions& options, std::string name, uint64_t number)
      : Connection(host, options, std::move(name)), socket(std::move(accepted)), id(number) {}
  Socket socket;
  uint64_t id;
  bool read_waiting = false;
  bool error_waiting = false;
  bool write_waiting = false;
  bool half_closed = false;
  bool is_refusal = false;  // a connection beyond the limit, which is only refused
  bool is_listed = true;    // in Loop::peers
  bool is_dirty = false;    // in Loop::dirty
};
using PeerPtr = std::shared_ptr<Peer>;

struct Server::Loop final : detail::ConnectionHost {
  Loop(const ServerOptions& given, Handler given_handler);
  Result<void> listen();
  Result<void> listen_tcp();
  Result<void> listen_socket();
  void start();
  void stop();
  bool drain(Duration patience);

  // detail::ConnectionHost
  TimePoint now() const override { return SystemClock::instance().now(); }
  std::shared_ptr<detail::Outbox> outbox() override { return outbox_; }
  void dispatch(Request request, Responder responder) override;
  detail::BodyBudget& bodies() override { return bodies_; }
  std::optional<Response> refuse_head(Request head) override;
  bool draining() const override { return is_draining; }
  void count_response(int status) override;
  void end_answer() override { streams.fetch_sub(1, std::memory_order_relaxed); }

  template <class Work>
  void guarded(const PeerPtr& peer, Work work);
  void accept_next();
  bool accept_some();
  void on_accept(int fd);
  void wait_read(const PeerPtr& peer);
  void wait_error(const PeerPtr& peer);
  void on_readable(const PeerPtr& peer);
  void flush(const PeerPtr& peer);
  void settle(const PeerPtr& peer);
  void run_commands();
  void arm_tick();
  void close_acceptor();
  void forget(const PeerPtr& peer);

  ServerOptions options;
  Handler handler;
  asio::io_context io{1};
  Acceptor acceptor{io};
  Protocol acceptor_protocol{AF_INET, IPPROTO_TCP};
  Timer tick{io};
  Timer accept_pause{io};
  Duration tick_interval = kTickMax;
  bool owns_socket_path = false;
  bool is_ticking = false;
  bool is_draining = false;
  std::map<uint64_t, PeerPtr> peers;  // all that are not closed
  uint64_t next_id = 1;
  size_t refusals = 0;
  detail::BodyBudget bodies_;
  std::vector<detail::Command> batch;
  std::vector<PeerPtr> dirty;
  std::array<char, kScratchBytes> scratch;
  std::shared_ptr<detail::Outbox> outbox_ = std::make_shared<detail::Outbox>();
  std::string url;
  uint16_t port = 0;
  std::thread thread;

  // Read by other threads.
  std::atomic<size_t> connections{0}, streams{0};
  std::atomic<uint64_t> accepted{0}, requests{0}, accept_pauses{0};
  std::array<std::atomic<uint64_t>, kCloseReasonCount> closed{};
  std::mutex empty_mutex;
  std::condition_variable empty;  // connections became 0
  std::atomic<bool> has_drained_idle{false};

  metric::Gauge connections_gauge;
  std::array<metric::Counter, 6> responses_counters;
  std::array<metric::Counter, kCloseReasonCount> closed_counters;
};

Server::Loop::Loop(const ServerOptions& given, Handler given_handler)
    : options(given), handler(std::move(given_handler)), bodies_(options.bodies_bytes_max) {
  const Duration shortest = std::min(
      {options.head_timeout, options.body_timeout, options.idle_timeout, options.write_timeout, options.ping_interval});
  tick_interval = std::clamp<Duration>(shortest / 4, 5ms, options.deadline_header.empty() ? kTickMax : kTickMax / 4);
  if (Metrics* metrics = options.metrics) {
    static constexpr const char* kClasses[] = {"", "1xx", "2xx", "3xx", "4xx", "5xx"};
    connections_gauge = metrics->gauge(metric::kHttpConnections);
    for (size_t i = 2; i < 6; ++i) responses_counters[i] = metrics->counter(metric::kHttpResponses, {kClasses[i]});
    for (size_t i = 0; i < kCloseReasonCount; ++i)
      closed_counters[i] = metrics->counter(metric::kHttpClosed, {to_string(static_cast<CloseReason>(i))});
  }
}

Result<void> Server::Loop::listen() {
  if (!options.socket_path.empty()) {
    MC_CHECK(listen_socket());
  } else {
    MC_CHECK(listen_tcp());
  }
  error_code error;
  acceptor.non_blocking(true, error);
  if (error) return user_error(err::kCannotListen, "http: " + url + ": " + error.message(), "--http");
  return {};
}

Result<void> Server::Loop::listen_socket() {
  url = "unix:" + options.socket_path;
  const auto fail = [&](err::Number number, const std::string& why) {
    return user_error(number, "http: socket " + options.socket_path + ": " + why, "run directory",
                      "set MCT_RUN_DIR to a directory of this cluster's own");
  };
  if (options.socket_path.size() >= sizeof(sockaddr_un::sun_path))
    return fail(err::kCannotListen, "the path is longer than a Unix socket's may be");
  const asio::local::stream_protocol::endpoint endpoint(options.socket_path);
  acceptor_protocol = endpoint.protocol();
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  error_code error;
  if (fd >= 0) acceptor.assign(acceptor_protocol, fd, error);
  if (fd < 0 || error) return fail(err::kCannotListen, errno_error("socket").what);
  acceptor.bind(endpoint, error);
  if (error == asio::error::address_in_use && remove_dead_socket(endpoint)) acceptor.bind(endpoint, error);
  if (error == asio::error::address_in_use) return fail(err::kPortInUse, "another process listens there");
  if (error) return fail(err::kCannotListen, "bind: " + error.message());
  owns_socket_path = true;
  // Nobody can connect before listen().
  if (::chmod(options.socket_path.c_str(), 0600) != 0) return fail(err::kCannotListen, errno_error("chmod").what);
  acceptor.listen(1024, error);
  if (error) return fail(err::kCannotListen, "listen: " + error.message());
  return {};
}

Result<void> Server::Loop::listen_tcp() {
  error_code error;
  const std::string host = options.address == "localhost" ? "127.0.0.1" : options.address;
  const auto address = asio::ip::make_address(host, error);
  if (error)
    return user_error(err::kCannotListen, "http: \"" + options.address + "\" is not an IP address", "--http",
                      "write --http 127.0.0.1:8000 or --http [::1]:8000");
  const auto fail = [&](std::string_view step, uint16_t tried) {
    const std::string text = endpoint_text({address, tried});
    if (error == asio::error::address_in_use)
      return user_error(err::kPortInUse,
                        "http: " + text + " is in use" +
                            (options.port_tries > 1 ? " and so are the next " + std::to_string(options.port_tries - 1)
                                                    : std::string()),
                        "--http");
    return user_error(err::kCannotListen, "http: " + std::string(step) + " " + text + ": " + error.message(), "--http");
  };
  for (int i = 0; i < std::max(1, options.port_tries) && options.port + i <= 65535; ++i) {
    const asio::ip::tcp::endpoint endpoint(address, static_cast<uint16_t>(options.port + i));
    acceptor.close(error);
    // Asio does not set close-on-exec, and children that kept our sockets would keep clients waiting.
    const int fd = ::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
      error.assign(errno, boost::system::system_category());
      return fail("socket for", endpoint.port());
    }
    acceptor.assign(endpoint.protocol(), fd, error);
    if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(1024, error);
    if (!error) break;
    if (error != asio::error::address_in_use) return fail("bind", endpoint.port());
  }
  if (error) return fail("bind", options.port);
  const auto bound = acceptor.local_endpoint(error);
  if (error) return fail("getsockname", options.port);
  acceptor_protocol = bound.protocol();
  url = "http://" + endpoint_text(bound);
  port = static_cast<uint16_t>(std::stoul(url.substr(url.rfind(':') + 1)));
  return {};
}

void Server::Loop::start() {
  outbox_->wake = [this] { asio::post(io, [this] { run_commands(); }); };
  accept_next();
  thread = std::thread([this] {
    const auto keep = asio::make_work_guard(io);
    io.run();
  });
}

/// Calls the handler. When it runs out of memory, only its own request fails.
void Server::Loop::dispatch(Request request, Responder responder) {
  requests.fetch_add(1, std::memory_order_relaxed);
  streams.fetch_add(1, std::memory_order_relaxed);
  const auto refuse = [&] {
    responder.respond(error_response(err::kNotEnoughMemory, "there is not enough memory for this request; retry"));
  };
  if (!detail::BodyBudget::admits(request.body.size())) return refuse();
  request.over_socket = !options.socket_path.empty();
  try {
    const FailsAlone alone;
    if (!request.over_socket)
      if (auto refusal = refuse_foreign(request, options.site)) return responder.respond(std::move(*refusal));
    handler(std::move(request), responder);
    return;
  } catch (const std::bad_alloc&) {
    log_warn("request refused: not enough memory");
  }
  refuse();
}

/// Runs the work of one connection. When memory runs out, only this connection ends.
template <class Work>
void Server::Loop::guarded(const PeerPtr& peer, Work work) {
  try {
    const FailsAlone alone;
    work();
    return;
  } catch (const std::bad_alloc&) {
    log_warn("http connection refused: not enough memory");
  }
  peer->out_of_memory();
  settle(peer);
}

std::optional<Response> Server::Loop::refuse_head(Request head) {
  head.over_socket = !options.socket_path.empty();
  if (!head.over_socket)
    if (auto refusal = refuse_foreign(head, options.site)) return refusal;
  return options.refuse_head ? options.refuse_head(head) : std::nullopt;
}

void Server::Loop::count_response(int status) {
  responses_counters[static_cast<size_t>(status / 100)].add();
}

void Server::Loop::accept_next() {
  acceptor.async_wait(Acceptor::wait_read, [this](error_code stopped) {
    if (stopped || is_draining) return;
    if (accept_some()) return accept_next();
    // Descriptors or memory have run out. Accepting is tried again in a moment, because connections that end free
    // both.
    accept_pauses.fetch_add(1, std::memory_order_relaxed);
    accept_pause.expires_after(kTickMax);
    accept_pause.async_wait([this](error_code cancelled) {
      if (!cancelled) accept_next();
    });
  });
}

/// False when the operating system has no descriptor or memory for the connection that waits.
bool Server::Loop::accept_some() {
  for (int i = 0; i < kAcceptsMax; ++i) {
    const int fd = ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR)) return true;
    if (fd < 0) {
      log_warn("http accept paused", {{"why", std::strerror(errno)}, {"connections", peers.size()}});
      return false;
    }
    try {
      on_accept(fd);
    } catch (const std::bad_alloc&) {  // the socket closed itself
      log_warn("http accept paused", {{"why", "not enough memory"}, {"connections", peers.size()}});
      return false;
    }
  }
  return true;
}

void Server::Loop::on_accept(int fd) {
  accepted.fetch_add(1, std::memory_order_relaxed);
  error_code error;
  Socket socket(io);
  socket.assign(acceptor_protocol, fd, error);
  if (error) ::close(fd);
  socket.non_blocking(true, error);
  const std::string name =
      options.socket_path.empty() ? endpoint_text(socket.remote_endpoint(error)) : trusted_user(fd);
  const bool is_full = peers.size() >= options.connections_max;
  if (error || name.empty() || (is_full && refusals >= std::min(kRefusalsMax, options.connections_max))) {
    closed[static_cast<size_t>(CloseReason::too_many)].fetch_add(1, std::memory_order_relaxed);
    return;
  }
  tune(socket);
  auto peer = std::make_shared<Peer>(std::move(socket), *this, options, name, next_id++);
  peers.emplace(peer->id, peer);
  connections.store(peers.size(), std::memory_order_relaxed);
  connections_gauge.set(static_cast<double>(peers.size()));
  if (is_full) {
    if (++refusals == 1) log_warn("http connections refused: the limit is reached", {{"connections", peers.size()}});
    peer->is_refusal = true;
    peer->refuse(err::kQueueFull, "too many connections (" + std::to_string(options.connections_max) + ")",
                 CloseReason::too_many);
  }
  settle(peer);
  arm_tick();
}

void Server::Loop::wait_read(const PeerPtr& peer) {
  if (peer->read_waiting || !peer->want_read()) return;
  peer->read_waiting = true;
  peer->socket.async_wait(Socket::wait_read, [this, peer](error_code error) {
    peer->read_waiting = false;
    if (error == asio::error::operation_aborted || peer->is_closed()) return;
    guarded(peer, [&] { on_readable(peer); });
  });
}

/// Waits for errors only, because a socket whose input has ended is always readable.
void Server::Loop::wait_error(const PeerPtr& peer) {
  if (peer->error_waiting || !peer->want_errors()) return;
  peer->error_waiting = true;
  peer->socket.async_wait(Socket::wait_error, [this, peer](error_code error) {
    peer->error_waiting = false;
    if (error == asio::error::operation_aborted || peer->is_closed()) return;
    peer->on_lost();
    settle(peer);
  });
}

void Server::Loop::on_readable(const PeerPtr& peer) {
  error_code error;
  const size_t count = peer->socket.read_some(asio::buffer(scratch), error);
  if (error == asio::error::eof) {
    peer->on_end_of_input();
  } else if (error && error != asio::error::would_block) {
    peer->on_lost();
  } else if (count > 0) {
    // A request's time begins when its first bytes reached the kernel, even if this thread or process read them later.
    const bool may_be_old = peer->is_waiting() && now() - peer->waiting_since() >= kTicks;
    const Duration age = may_be_old ? age_of_input(peer->socket.native_handle()) : Duration{};
    peer->on_bytes({scratch.data(), count}, age);
  }
  settle(peer);
}

/// Writes the unsent bytes, then sets up the waits for the connection's next event.
void Server::Loop::settle(const PeerPtr& peer) {
  flush(peer);
  if (peer->is_closed()) return forget(peer);
  if (peer->want_half_close() && !std::exchange(peer->half_closed, true)) {
    error_code ignored;
    peer->socket.shutdown(Socket::shutdown_send, ignored);
  }
  wait_read(peer);
  wait_error(peer);
}

void Server::Loop::flush(const PeerPtr& peer) {
  while (!peer->write_waiting && !peer->is_closed() && !peer->unsent().empty()) {
    error_code error;
    const std::string_view bytes = peer->unsent();
    const size_t count = peer->socket.write_some(asio::const_buffer(bytes.data(), bytes.size()), error);
    if (error == asio::error::would_block) {
      peer->write_waiting = true;
      peer->socket.async_wait(Socket::wait_write, [this, peer](error_code failed) {
        peer->write_waiting = false;
        if (failed == asio::error::operation_aborted || peer->is_closed()) return;
        guarded(peer, [&] { settle(peer); });
      });
      return;
    }
    if (error) return peer->close(CloseReason::client_gone);
    peer->on_written(count);
  }
}

void Server::Loop::forget(const PeerPtr& peer) {
  if (!std::exchange(peer->is_listed, false)) return;
  const CloseReason reason = peer->close_reason();
  closed[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  closed_counters[static_cast<size_t>(reason)].add();
  if (peer->is_refusal) --refusals;
  error_code ignored;
  // For a slow reader the bytes in the kernel's buffer are dropped too.
  if (reason == CloseReason::slow_reader) peer->socket.set_option(asio::socket_base::linger(true, 0), ignored);
  peer->socket.close(ignored);
  peers.erase(peer->id);
  connections_gauge.set(static_cast<double>(peers.size()));
  {
    const std::lock_guard lock(empty_mutex);
    connections.store(peers.size(), std::memory_order_relaxed);
  }
  if (peers.empty()) empty.notify_all();
}

void Server::Loop::run_commands() {
  {
    const std::lock_guard lock(outbox_->mutex);
    batch.swap(outbox_->commands);
  }
  for (detail::Command& command : batch) {
    if (auto* task = std::get_if<detail::command::Task>(&command.what)) {
      task->run();
    } else if (detail::Connection* connection = command.link->connection) {
      const PeerPtr peer = static_cast<Peer*>(connection)->shared_from_this();
      guarded(peer, [&] { peer->apply(command); });
      if (!std::exchange(peer->is_dirty, true)) dirty.push_back(peer);
    } else if (auto* hook = std::get_if<detail::command::OnClose>(&command.what)) {
      if (command.link->is_lost) hook->callback(command.link->lost_reason);
    }
  }
  batch.clear();
  for (const PeerPtr& peer : std::exchange(dirty, {})) {
    peer->is_dirty = false;
    guarded(peer, [&] { settle(peer); });
  }
}

void Server::Loop::arm_tick() {
  if (is_ticking || peers.empty()) return;
  is_ticking = true;
  tick.expires_after(tick_interval);
  tick.async_wait([this](error_code stopped) {
    is_ticking = false;
    if (stopped) return;
    for (auto at = peers.begin(); at != peers.end();) {
      const PeerPtr peer = (at++)->second;  // settle() may remove it
      const bool had_output = !peer->unsent().empty();
      guarded(peer, [&] {
        peer->on_tick();
        if (peer->is_closed() || (!had_output && !peer->unsent().empty())) settle(peer);
      });
    }
    arm_tick();
  });
}

void Server::Loop::close_acceptor() {
  is_draining = true;
  error_code ignored;
  acceptor.close(ignored);
  accept_pause.cancel();
}

bool Server::Loop::drain(Duration patience) {
  outbox_->push({nullptr, detail::command::Task{[this] {
                   close_acceptor();
                   for (auto at = peers.begin(); at != peers.end();) {
                     const PeerPtr peer = (at++)->second;
                     if (peer->is_waiting()) peer->close(CloseReason::shutdown);
                     if (peer->is_closed()) forget(peer);
                   }
                   has_drained_idle.store(true, std::memory_order_release);
                   empty.notify_all();
                 }}});
  std::unique_lock lock(empty_mutex);
  return empty.wait_until(lock, after(now(), patience), [this] {
    return has_drained_idle.load(std::memory_order_acquire) && connections.load(std::memory_order_relaxed) == 0;
  });
}

void Server::Loop::stop() {
  if (!thread.joinable()) return;
  MC_ASSERT(std::this_thread::get_id() != thread.get_id());
  asio::post(io, [this] {
    close_acceptor();
    run_commands();
    for (auto at = peers.begin(); at != peers.end();) {
      const PeerPtr peer = (at++)->second;
      peer->close(CloseReason::shutdown);
      forget(peer);
    }
    io.stop();
  });
  thread.join();
  if (std::exchange(owns_socket_path, false)) ::unlink(options.socket_path.c_str());
  std::vector<detail::Command> late;
  {
    const std::lock_guard lock(outbox_->mutex);
    outbox_->wake = nullptr;
    late.swap(outbox_->commands);
  }
  for (detail::Command& command : late)
    if (auto* hook = std::get_if<detail::command::OnClose>(&command.what)) hook->callback(CloseReason::shutdown);
}

Result<std::unique_ptr<Server>> Server::open(const ServerOptions& options, Handler handler) {
  auto loop = std::make_unique<Loop>(options, std::move(handler));
  MC_CHECK(loop->listen());
  loop->start();
  return std::unique_ptr<Server>(new Server(std::move(loop)));
}

Server::Server(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
Server::~Server() {
  stop();
}

uint16_t Server::port() const {
  return loop_->port;
}
std::string Server::url() const {
  return loop_->url;
}
bool Server::drain(Duration patience) {
  return loop_->drain(patience);
}
void Server::stop() {
  loop_->stop();
}
void Server::post(std::function<void()> task) {
  loop_->outbox_->push({nullptr, detail::command::Task{std::move(task)}});
}

ServerStats Server::stats() const {
  ServerStats stats;
  stats.connections = loop_->connections.load(std::memory_order_relaxed);
  stats.streams = loop_->streams.load(std::memory_order_relaxed);
  stats.accepted = loop_->accepted.load(std::memory_order_relaxed);
  stats.requests = loop_->requests.load(std::memory_order_relaxed);
  stats.accept_pauses = loop_->accept_pauses.load(std::memory_order_relaxed);
  for (size_t i = 0; i < kCloseReasonCount; ++i) stats.closed[i] = loop_->closed[i].load(std::memory_order_relaxed);
  return stats;
}

}  // namespace mc::http
