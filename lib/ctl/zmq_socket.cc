#include "ctl/zmq_socket.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <string_view>
#include <zmq.hpp>

#include "base/assert.h"
#include "base/thread_limit.h"
#include "ctl/zmq_accept.h"

#if defined(__SANITIZE_THREAD__)
#define MC_THREAD_SANITIZER 1
#elif defined(__has_feature)
#define MC_THREAD_SANITIZER __has_feature(thread_sanitizer)
#else
#define MC_THREAD_SANITIZER 0
#endif

namespace mc::ctl {
namespace {

constexpr int kContextThreads = 2;

}  // namespace

struct Context::State {
  zmq::context_t context{kContextThreads - 1};  // the reaper is one more thread
  uint64_t monitor_count = 0;
};

struct Socket::State {
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  // libzmq's I/O thread and reaper write monitor events with a send that blocks without a reader, and then every socket
  // of the process hangs. So the writing end must be closed before the reading end.
  ~State() {
    if (socket.handle() != nullptr) zmq_socket_monitor(socket.handle(), nullptr, 0);
  }
  zmq::socket_t socket, monitor;
  size_t connections_max = 0;
  std::optional<AcceptGate> gate;  // the gate of a bound router
};

Context::Context(std::unique_ptr<State> state) : state_(std::move(state)) {}
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;
Context::~Context() = default;

Socket::Socket(std::unique_ptr<State> state) : state_(std::move(state)) {}
Socket::Socket(Socket&&) noexcept = default;
Socket& Socket::operator=(Socket&&) noexcept = default;
Socket::~Socket() = default;

namespace {

constexpr int kEvents = ZMQ_EVENT_LISTENING | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CONNECT_RETRIED |
                        ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                        ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

Error zmq_error(std::string_view what, const zmq::error_t& error) {
  const Code code = error.num() == EADDRINUSE ? Code::busy : Code::io;
  return {code, std::string(what) + ": " + error.what()};
}

int as_ms(Duration duration) {
  return static_cast<int>(std::min<int64_t>(duration / 1ms, 1 << 30));
}

void set_curve(zmq::socket_t& socket, const SocketOptions& options) {
  namespace opt = zmq::sockopt;
  if (!options.server_secret.empty()) {
    socket.set(opt::curve_server, true);
    socket.set(opt::curve_publickey, options.server_public);
    socket.set(opt::curve_secretkey, options.server_secret);
    socket.set(opt::zap_domain, "mc");
  } else if (!options.client_secret.empty()) {
    socket.set(opt::curve_serverkey, options.peer_public);
    socket.set(opt::curve_publickey, options.client_public);
    socket.set(opt::curve_secretkey, options.client_secret);
  }
}

void set_options(zmq::socket_t& socket, SocketKind kind, const SocketOptions& options) {
  namespace opt = zmq::sockopt;
  // Long enough for a goodbye to reach a live peer, and short enough for an exit.
  socket.set(opt::linger, 200);
  if (kind == SocketKind::zap) return;
  socket.set(opt::maxmsgsize, static_cast<int64_t>(options.message_bytes_max));
  socket.set(opt::sndhwm, options.high_water);
  socket.set(opt::rcvhwm, options.high_water);
  socket.set(opt::handshake_ivl, as_ms(options.handshake));
  socket.set(opt::ipv6, options.ipv6);
  // Closes connections whose host has vanished, 15 s after. The hub itself watches the liveness of peers. TCP does it,
  // not the heartbeats of ZMTP: those of libzmq 4.3.4 end the process by an assertion when a peer hangs up whose
  // messages wait for the hub.
  socket.set(opt::tcp_keepalive, 1);
  socket.set(opt::tcp_keepalive_idle, 5);
  socket.set(opt::tcp_keepalive_intvl, 5);
  socket.set(opt::tcp_keepalive_cnt, 2);
  socket.set(opt::tcp_maxrt, 15000);
  if (kind == SocketKind::router) {
    socket.set(opt::router_mandatory, true);
    // Only processes of this user may connect over ipc. The 0700 directory already enforces this.
    const int uid = static_cast<int>(::getuid());
    if (zmq_setsockopt(socket.handle(), ZMQ_IPC_FILTER_UID, &uid, sizeof uid) != 0) throw zmq::error_t();
  } else {
    // Messages queue only on finished connections, so none waits for an absent peer.
    socket.set(opt::immediate, true);
    socket.set(opt::reconnect_ivl, std::max(1, as_ms(options.reconnect)));
    socket.set(opt::reconnect_ivl_max, std::max(1, as_ms(options.reconnect) * 16));
  }
  set_curve(socket, options);
}

std::string protocol_error_text(int value) {
  if (value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
    return "one side uses keys and the other does not, or it is no control endpoint";
  if (value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC) return "the keys do not match";
  if ((value & 0xf0000000) == ZMQ_PROTOCOL_ERROR_ZAP_UNSPECIFIED) return "its key check failed";
  char hex[32];
  std::snprintf(hex, sizeof hex, "ZMTP error 0x%x", static_cast<unsigned>(value));
  return hex;
}

std::optional<SocketEvent> translate(uint16_t kind, int value) {
  using Kind = SocketEvent::Kind;
  switch (kind) {
    case ZMQ_EVENT_LISTENING: return SocketEvent{.kind = Kind::listening, .fd = value};
    case ZMQ_EVENT_DISCONNECTED: return SocketEvent{.kind = Kind::disconnected, .fd = value};
    case ZMQ_EVENT_CONNECT_RETRIED: return SocketEvent{.kind = Kind::retrying};
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED: return SocketEvent{.kind = Kind::handshake_done};
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
      return SocketEvent{
          .kind = Kind::handshake_failed, .refused = true, .text = "the key was refused", .by_key = true};
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
      return SocketEvent{.kind = Kind::handshake_failed, .refused = true, .text = protocol_error_text(value)};
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
      return SocketEvent{.kind = Kind::handshake_failed,
                         .text = value == 0 ? "the connection was closed" : zmq_strerror(value)};
    default: return std::nullopt;
  }
}

}  // namespace

Result<Context> Context::open() try {
  auto state = std::make_unique<State>();
  // The first socket starts libzmq's threads, and libzmq aborts when one does not start.
  MC_CHECK(check_thread_room(kContextThreads));
  const zmq::socket_t first(state->context, zmq::socket_type::pair);
  return Context(std::move(state));
} catch (const zmq::error_t& error) {
  return zmq_error("zmq context", error);
}

Result<Socket> Socket::open(Context& context, SocketKind kind, const SocketOptions& options) try {
  static constexpr zmq::socket_type kTypes[] = {zmq::socket_type::router, zmq::socket_type::dealer,
                                                zmq::socket_type::rep};
  auto state = std::make_unique<State>();
  if (kind == SocketKind::router) state->connections_max = options.connections_max;
  state->socket = zmq::socket_t(context.state_->context, kTypes[static_cast<size_t>(kind)]);
  set_options(state->socket, kind, options);
  if (kind != SocketKind::zap) {
    const std::string address = "inproc://monitor-" + std::to_string(++context.state_->monitor_count);
    if (zmq_socket_monitor(state->socket.handle(), address.c_str(), kEvents) != 0) throw zmq::error_t();
    state->monitor = zmq::socket_t(context.state_->context, zmq::socket_type::pair);
    state->monitor.set(zmq::sockopt::linger, 0);
    state->monitor.set(zmq::sockopt::rcvhwm, 0);  // unlimited: a full one would block the writer
    state->monitor.connect(address);
  }
  return Socket(std::move(state));
} catch (const zmq::error_t& error) {
  return zmq_error("zmq socket", error);
}

Result<void> Socket::bind(const std::string& uri) try {
  state_->socket.bind(uri);
  bound_ = state_->socket.get(zmq::sockopt::last_endpoint);
  if (state_->connections_max == 0) return {};
  // The first event of a bound socket names its listening descriptor.
  while (auto event = next_event())
    if (event->kind == SocketEvent::Kind::listening) {
      state_->gate.emplace(event->fd, state_->connections_max);
      return {};
    }
  return {Code::io, "bind " + uri + ": libzmq does not say on which descriptor it listens"};
} catch (const zmq::error_t& error) {
  return zmq_error("bind " + uri, error);
}

void Socket::unbind() {
  state_->gate.reset();                                 // the descriptor's number may be reused
  zmq_unbind(state_->socket.handle(), bound_.c_str());  // a second unbind fails with not found, which is harmless
}

Result<void> Socket::connect(const std::string& uri) try {
  state_->socket.connect(uri);
  return {};
} catch (const zmq::error_t& error) {
  return zmq_error("connect " + uri, error);
}

size_t Socket::connections() const {
  return state_->gate ? state_->gate->connections() : 0;
}

uint64_t Socket::refused() const {
  return state_->gate ? state_->gate->refused() : 0;
}

void Socket::abandon() {
  const int none = 0;
  zmq_setsockopt(state_->socket.handle(), ZMQ_LINGER, &none, sizeof none);
}

Code Socket::send(std::span<const std::span<const uint8_t>> frames) {
  // All frames get their memory before the first is sent: a message that was begun cannot be taken back.
  std::array<zmq::message_t, kFrameMax> parts;
  MC_ASSERT(!frames.empty() && frames.size() <= parts.size());
  try {
    for (size_t i = 0; i < frames.size(); ++i)
      if (!frames[i].empty()) parts[i] = zmq::message_t(frames[i].data(), frames[i].size());
  } catch (const zmq::error_t&) {
    return Code::busy;  // no memory now
  }
  for (size_t i = 0; i < frames.size(); ++i) {
    const int flags = ZMQ_DONTWAIT | (i + 1 < frames.size() ? ZMQ_SNDMORE : 0);
    int rc;
    do {
      rc = zmq_msg_send(parts[i].handle(), state_->socket.handle(), flags);
    } while (rc < 0 && zmq_errno() == EINTR);
    if (rc >= 0) continue;
    // Only the first frame can be refused: the pipe takes the rest of a message it has begun.
    MC_ASSERT_EQ(i, size_t{0});
    return zmq_errno() == EAGAIN ? Code::busy : Code::peer_lost;
  }
  return Code::ok;
}

std::optional<SocketMessage> Socket::receive() try {
  SocketMessage out;
  for (bool more = true; more; ++out.frame_count) {
    zmq::message_t part;
    const auto flags = out.frame_count == 0 ? zmq::recv_flags::dontwait : zmq::recv_flags::none;
    if (!state_->socket.recv(part, flags))
      return std::nullopt;  // a message is delivered whole, so only the first frame can be missing
    more = part.more();
    // The router makes its first frame, which has neither property. The other frames have both.
    if (out.fd <= 0) out.fd = zmq_msg_get(part.handle(), ZMQ_SRCFD);
    if (const char* address = zmq_msg_gets(part.handle(), "Peer-Address")) out.peer_address = address;
    if (out.frames.size() < kFrameMax)
      out.frames.emplace_back(part.data<uint8_t>(), part.data<uint8_t>() + part.size());
  }
  return out;
} catch (const zmq::error_t&) {
  return std::nullopt;  // EINTR, or the context is going down
}

std::optional<SocketEvent> Socket::next_event() try {
  for (;;) {
    zmq::message_t head, address;
    if (!state_->monitor.recv(head, zmq::recv_flags::dontwait)) return std::nullopt;
    if (head.more() && !state_->monitor.recv(address, zmq::recv_flags::none)) return std::nullopt;
    uint16_t kind = 0;
    int32_t value = 0;
    if (head.size() < sizeof kind + sizeof value) continue;
    std::memcpy(&kind, head.data<char>(), sizeof kind);
    std::memcpy(&value, head.data<char>() + sizeof kind, sizeof value);
    auto event = translate(kind, value);
    if (kind == ZMQ_EVENT_DISCONNECTED && state_->gate) event->peer = state_->gate->closed(value);
    if (event) return event;
  }
} catch (const zmq::error_t&) {
  return std::nullopt;
}

Result<void> poll_sockets(std::span<PollItem> items, Duration timeout) {
  // Two slots an item: the socket or descriptor, and the socket's monitor.
  std::vector<zmq_pollitem_t> slots;
  slots.reserve(items.size() * 2);
  for (const PollItem& item : items) {
    const auto events = static_cast<short>((item.want_read ? ZMQ_POLLIN : 0) | (item.want_write ? ZMQ_POLLOUT : 0));
    slots.push_back({item.socket ? item.socket->state_->socket.handle() : nullptr, item.fd, events, 0});
    void* monitor = item.socket ? item.socket->state_->monitor.handle() : nullptr;
    // An unused slot watches its own item for nothing.
    slots.push_back(
        {monitor ? monitor : slots.back().socket, item.fd, static_cast<short>(monitor ? ZMQ_POLLIN : 0), 0});
  }
  const int64_t ms = (timeout.count() + 999'999) / 1'000'000;
  const int rc =
      zmq_poll(slots.data(), static_cast<int>(slots.size()), std::max<int64_t>(0, std::min<int64_t>(ms, 1 << 30)));
  if (rc < 0 && zmq_errno() != EINTR) return {Code::io, std::string("zmq_poll: ") + zmq_strerror(zmq_errno())};
  for (size_t i = 0; i < items.size(); ++i) {
    items[i].readable = rc > 0 && (slots[2 * i].revents & ZMQ_POLLIN) != 0;
    items[i].writable = rc > 0 && (slots[2 * i].revents & ZMQ_POLLOUT) != 0;
    items[i].has_event = rc > 0 && slots[2 * i + 1].events != 0 && (slots[2 * i + 1].revents & ZMQ_POLLIN) != 0;
  }
  return {};
}

Result<CurvePair> new_curve_pair() {
  char public_key[41] = {}, secret_key[41] = {};
  if (zmq_curve_keypair(public_key, secret_key) != 0)
    return {Code::unsupported, std::string("this libzmq cannot make CURVE keys: ") + zmq_strerror(zmq_errno())};
  return CurvePair{public_key, secret_key};
}

Result<std::string> curve_public(const std::string& secret_key) {
  char public_key[41] = {};
  if (secret_key.size() != 40 || zmq_curve_public(public_key, secret_key.c_str()) != 0)
    return {Code::invalid, "not a CURVE secret key"};
  return std::string(public_key);
}

std::string z85_text(std::span<const uint8_t> bytes) {
  MC_ASSERT_EQ(bytes.size(), size_t{32});
  char text[41] = {};
  zmq_z85_encode(text, bytes.data(), bytes.size());
  return text;
}

}  // namespace mc::ctl

// libzmq 4.3.4 sends a monitor event between a frame that CURVE refuses and its own look at errno, and the send leaves
// EAGAIN there. The engine then takes the refusal for a full pipe: it neither reads nor closes the connection any more.
// So a send that succeeds must not change errno. libzmq calls this function through the dynamic linker, which prefers
// this definition to libzmq's own.
extern "C" int zmq_msg_send(zmq_msg_t* message, void* socket, int flags) {
  using Send = int (*)(zmq_msg_t*, void*, int);
  static const Send send = reinterpret_cast<Send>(::dlsym(RTLD_NEXT, "zmq_msg_send"));
  MC_ASSERT(send != nullptr);
  const int before = errno;
  const int sent = send(message, socket, flags);
  if (sent >= 0) errno = before;
  return sent;
}

#if !MC_THREAD_SANITIZER  // which has its own definitions of both functions

// libzmq 4.3.4 stops polling a connection for input while the hub has no room for its messages. epoll reports a hang-up
// all the same. The engine then keeps the rest of the input for later. When it finds a PING there, it answers at once,
// and an assertion fails, because the connection has ended. So libzmq's I/O thread learns of the end of a connection
// when it reads again: a hang-up that comes without input is kept from it while input is paused, and one that comes
// with input is reported as input, whose last read finds the end.
namespace {

bool is_io_thread() {
  thread_local const bool is = [] {
    char name[16] = "";
    return ::pthread_getname_np(::pthread_self(), name, sizeof name) == 0 &&
           std::string_view(name).find("ZMQbg/IO") != std::string_view::npos;
  }();
  return is;
}

/// A descriptor that has been polled for input since its registration.
struct Polled {
  bool is_paused = false;  // not polled for input now, and armed for one event alone
  bool is_spent = false;   // that event came, it was room for output, and the next is wanted
  epoll_event event{};     // what libzmq asked last
};
/// An I/O thread has one epoll set.
thread_local std::map<int, Polled> polled;
thread_local bool some_are_paused = false;  // spares the walk over all of them

/// Null without memory: libzmq then sees what epoll reports.
Polled* polled_for_input(int fd) noexcept try {
  return &polled[fd];
} catch (const std::bad_alloc&) {
  return nullptr;
}

int epoll_ctl_now(int set, int operation, int fd, epoll_event* event) {
  using Control = int (*)(int, int, int, epoll_event*);
  static const Control control = reinterpret_cast<Control>(::dlsym(RTLD_NEXT, "epoll_ctl"));
  MC_ASSERT(control != nullptr);
  return control(set, operation, fd, event);
}

/// epoll reports a hang-up whatever it is asked. With EPOLLONESHOT it does so once, not without pause.
int arm_without_input(int set, int fd, Polled& at) {
  some_are_paused = at.is_paused = true;
  at.is_spent = false;
  epoll_event once = at.event;
  once.events |= EPOLLONESHOT;
  return epoll_ctl_now(set, EPOLL_CTL_MOD, fd, &once);
}

void arm_again(int set) {
  if (!some_are_paused) return;
  some_are_paused = false;
  for (auto& [fd, at] : polled) {
    some_are_paused |= at.is_paused;
    if (at.is_spent) arm_without_input(set, fd, at);
  }
}

/// Takes the hang-up out of an event of a paused descriptor.
void hide_hangup(epoll_event& event) {
  if (!some_are_paused) return;
  const auto at = std::find_if(polled.begin(), polled.end(), [&](const auto& entry) {
    return entry.second.is_paused && entry.second.event.data.ptr == event.data.ptr;
  });
  if (at == polled.end()) return;
  if ((event.events & (EPOLLERR | EPOLLHUP)) != 0) event.events = 0;
  at->second.is_spent = event.events != 0;
}

}  // namespace

extern "C" int epoll_ctl(int set, int operation, int fd, epoll_event* event) noexcept {
  if (!is_io_thread()) return epoll_ctl_now(set, operation, fd, event);
  if (operation != EPOLL_CTL_MOD) {
    polled.erase(fd);
    return epoll_ctl_now(set, operation, fd, event);
  }
  if ((event->events & EPOLLIN) != 0) {
    if (Polled* at = polled_for_input(fd)) *at = Polled{.event = *event};
    return epoll_ctl_now(set, operation, fd, event);
  }
  const auto at = polled.find(fd);
  if (at == polled.end()) return epoll_ctl_now(set, operation, fd, event);  // a connection under way
  at->second.event = *event;
  return arm_without_input(set, fd, at->second);
}

extern "C" int epoll_wait(int set, epoll_event* events, int events_max, int timeout_ms) {
  using Wait = int (*)(int, epoll_event*, int, int);
  static const Wait wait = reinterpret_cast<Wait>(::dlsym(RTLD_NEXT, "epoll_wait"));
  MC_ASSERT(wait != nullptr);
  if (!is_io_thread()) return wait(set, events, events_max, timeout_ms);
  arm_again(set);
  const int count = wait(set, events, events_max, timeout_ms);
  for (int i = 0; i < count; ++i) {
    if ((events[i].events & EPOLLIN) != 0)
      events[i].events &= ~static_cast<uint32_t>(EPOLLERR | EPOLLHUP);
    else
      hide_hangup(events[i]);
  }
  return count;
}

#endif
