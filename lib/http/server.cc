// The HTTP server's loop over Asio: readiness of the connections, the handlers' commands, one tick timer. Sockets are
// non-blocking. Reads go into one scratch buffer of the loop, so a silent connection holds no read buffer. A pending
// wait-for-readable on every connection notices when a client leaves.
#include "http/server.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <new>
#include <thread>

#include "base/assert.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "http/asio.h"
#include "http/connection.h"
#include "http/counters.h"
#include "http/listener.h"

namespace mc::http {
namespace {

constexpr size_t kScratchBytes = size_t{64} << 10;
constexpr Duration kTickMax = 200ms;  // a timeout may be noticed this much later
constexpr size_t kRefusalsMax = 64;   // connections beyond the limit that get an answer; others are closed at once
constexpr Duration kTicks = 20ms;     // the kernel counts the age of input in ticks of a few milliseconds

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

/// Opens once, and then lets every waiting thread pass.
class Gate {
 public:
  void open() {
    {
      const std::lock_guard lock(mutex_);
      is_open_ = true;
    }
    opened_.notify_all();
  }
  bool wait(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    return opened_.wait_until(lock, deadline, [this] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = false;  // guarded
};

struct Server::Loop final : detail::ConnectionHost {
  Loop(const ServerOptions& given, Handler given_handler);
  void start();
  void stop();
  bool drain(Duration wait_max);

  // detail::ConnectionHost
  TimePoint now() const override { return SystemClock::instance().now(); }
  std::shared_ptr<detail::Outbox> outbox() override { return outbox_; }
  void dispatch(Request request, Responder responder) override;
  detail::BodyBudget& bodies() override { return bodies_; }
  std::optional<Response> refuse_head(Request head) override;
  bool draining() const override { return is_draining; }
  void count_response(int status) override { counters.count_response(status); }
  void end_answer() override { counters.end_answer(); }

  template <class Work>
  void guarded(const PeerPtr& peer, Work work);
  template <class Work>
  void for_each_peer(Work work);
  void on_accept(Socket socket, const std::string& name);
  void wait_read(const PeerPtr& peer);
  void wait_error(const PeerPtr& peer);
  void on_readable(const PeerPtr& peer);
  void flush(const PeerPtr& peer);
  void settle(const PeerPtr& peer);
  void run_commands();
  void arm_tick();
  void begin_draining();
  void forget(const PeerPtr& peer);

  ServerOptions options;
  Handler handler;
  asio::io_context io{1};
  detail::Listener listener{io, options};
  Timer tick{io};
  Duration tick_interval = kTickMax;
  bool is_ticking = false;
  bool is_draining = false;
  std::map<uint64_t, PeerPtr> peers;  // all connections that are not closed
  uint64_t next_id = 1;
  size_t refusals = 0;
  detail::BodyBudget bodies_;
  detail::Counters counters;
  std::vector<detail::Command> batch;
  std::vector<PeerPtr> dirty;
  std::array<char, kScratchBytes> scratch;
  std::shared_ptr<detail::Outbox> outbox_ = std::make_shared<detail::Outbox>();
  Gate is_empty;  // opens when the server drains and the last connection has ended
  std::thread thread;
};

Server::Loop::Loop(const ServerOptions& given, Handler given_handler)
    : options(given), handler(std::move(given_handler)), bodies_(options.bodies_bytes_max), counters(options.metrics) {
  const Duration shortest = std::min(
      {options.head_timeout, options.body_timeout, options.idle_timeout, options.write_timeout, options.ping_interval});
  tick_interval = std::clamp<Duration>(shortest / 4, 5ms, options.deadline_header.empty() ? kTickMax : kTickMax / 4);
}

void Server::Loop::start() {
  outbox_->wake = [this] { asio::post(io, [this] { run_commands(); }); };
  listener.start([this](Socket socket, const std::string& name) { on_accept(std::move(socket), name); },
                 [this](const char* why) {
                   counters.add_accept_pause();
                   log_warn("http accept paused", {{"why", why}, {"connections", peers.size()}});
                 });
  thread = std::thread([this] {
    const auto keep = asio::make_work_guard(io);
    io.run();
  });
}

/// Calls the handler. When it runs out of memory, only its own request fails.
void Server::Loop::dispatch(Request request, Responder responder) {
  counters.begin_answer();
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

void Server::Loop::on_accept(Socket socket, const std::string& name) {
  counters.add_accepted();
  const bool is_full = peers.size() >= options.connections_max;
  if (name.empty() || (is_full && refusals >= std::min(kRefusalsMax, options.connections_max)))
    return counters.add_turned_away();
  auto peer = std::make_shared<Peer>(std::move(socket), *this, options, name, next_id++);
  peers.emplace(peer->id, peer);
  counters.set_connections(peers.size());
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
    // The time of a request begins when its first bytes reached the kernel, even if this process read them later.
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
  counters.add_closed(reason);
  if (peer->is_refusal) --refusals;
  error_code ignored;
  // For a slow reader the bytes in the kernel's buffer are dropped too.
  if (reason == CloseReason::slow_reader) peer->socket.set_option(asio::socket_base::linger(true, 0), ignored);
  peer->socket.close(ignored);
  peers.erase(peer->id);
  counters.set_connections(peers.size());
  if (is_draining && peers.empty()) is_empty.open();
}

/// Calls `work` with each connection; it may forget that connection.
template <class Work>
void Server::Loop::for_each_peer(Work work) {
  for (auto at = peers.begin(); at != peers.end();) {
    const PeerPtr peer = (at++)->second;
    work(peer);
  }
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
    for_each_peer([this](const PeerPtr& peer) {
      const bool had_output = !peer->unsent().empty();
      guarded(peer, [&] {
        peer->on_tick();
        if (peer->is_closed() || (!had_output && !peer->unsent().empty())) settle(peer);
      });
    });
    arm_tick();
  });
}

void Server::Loop::begin_draining() {
  is_draining = true;
  listener.close();
  if (peers.empty()) is_empty.open();
}

bool Server::Loop::drain(Duration wait_max) {
  outbox_->push({nullptr, detail::command::Task{[this] {
                   begin_draining();
                   for_each_peer([this](const PeerPtr& peer) {
                     if (peer->is_waiting()) peer->close(CloseReason::shutdown);
                     if (peer->is_closed()) forget(peer);
                   });
                 }}});
  return is_empty.wait(after(now(), wait_max));
}

void Server::Loop::stop() {
  if (!thread.joinable()) return;
  MC_ASSERT(std::this_thread::get_id() != thread.get_id());
  asio::post(io, [this] {
    begin_draining();
    run_commands();
    for_each_peer([this](const PeerPtr& peer) {
      peer->close(CloseReason::shutdown);
      forget(peer);
    });
    MC_ASSERT_EQ(bodies_.bytes(), 0u);
    io.stop();
  });
  thread.join();
  listener.remove_path();
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
  MC_CHECK(loop->listener.open());
  loop->start();
  return std::unique_ptr<Server>(new Server(std::move(loop)));
}

Server::Server(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
Server::~Server() {
  stop();
}

uint16_t Server::port() const {
  return loop_->listener.port();
}
std::string Server::url() const {
  return loop_->listener.url();
}
bool Server::drain(Duration wait_max) {
  return loop_->drain(wait_max);
}
void Server::stop() {
  loop_->stop();
}
void Server::post(std::function<void()> task) {
  loop_->outbox_->push({nullptr, detail::command::Task{std::move(task)}});
}

ServerStats Server::stats() const {
  return loop_->counters.stats();
}

}  // namespace mc::http
