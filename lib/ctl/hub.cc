// The caller's side of the hub: rings, ids, and opening the sockets.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/errors.h"
#include "ctl/hub_loop.h"

namespace mc::ctl {

class Hub::State {
 public:
  State(HubOptions options) : shared(std::move(options)) {}
  ~State() {
    // libzmq leaves socket files. They are removed before the sockets close, so that no file of a successor is removed.
    for (const Uri& uri : bound)
      if (uri.scheme == "ipc" && !uri.path.empty()) ::unlink(uri.path.c_str());
    shared.stopping.store(true, std::memory_order_release);  // pairs with Loop::run
    shared.wake.signal();
    if (thread.joinable()) thread.join();
  }

  Shared shared;
  std::vector<Uri> bound;
  std::unique_ptr<Loop> loop;
  std::thread thread;
};

namespace {

/// libzmq unlinks a socket file before it binds, so a second program would take it over from a live one. A connection
/// attempt is the only test for a live one.
Result<void> check_ipc_free(const Uri& uri) {
  if (uri.path.empty()) return {};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (uri.path.size() >= sizeof address.sun_path)
    return user_error(err::kCannotListen,
                      "the socket path has " + std::to_string(uri.path.size()) + " bytes; at most " +
                          std::to_string(sizeof address.sun_path - 1) + " are possible",
                      uri.text(), "set MCT_RUN_DIR to a shorter directory");
  std::memcpy(address.sun_path, uri.path.data(), uri.path.size());
  const Fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return errno_error("socket");
  const int rc = ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  if (rc == 0 || errno == EAGAIN)
    return user_error(err::kPortInUse, "another program listens on " + uri.text(), "control endpoint",
                      "stop that program, or start this one with another MCT_RUN_DIR or --listen");
  return {};
}

Result<Socket> open_router(Context& context, const HubOptions& options, const Uri& uri, Uri& bound) {
  const Keys keys = !options.keys ? Keys::none : options.local_keys ? Keys::machine : Keys::cluster;
  MC_CHECK(check_exposure(Door::control, uri, keys, options.insecure));
  if (uri.scheme == "ipc")
    MC_CHECK(check_ipc_free(uri));
  else if (uri.scheme != "tcp")
    return user_error(err::kCannotListen, "control endpoints are ipc:// or tcp://, not " + uri.text(), "--listen",
                      "write --listen tcp://ADDR:7700, or leave it out for a socket in MCT_RUN_DIR");
  MC_TRY(socket, Socket::open(context, SocketKind::router, router_options(options, options.keys, uri)));
  if (auto done = socket.bind(uri.text()); !done) {
    const bool taken = done.error().code == Code::busy;
    if (uri.scheme == "ipc")
      return user_error(
          err::kCannotListen, done.error().what, uri.text(),
          "the folder of the socket must exist and belong to this user: set MCT_RUN_DIR, or choose another path");
    return user_error(taken ? err::kPortInUse : err::kCannotListen, done.error().what, "control endpoint");
  }
  MC_TRY(real, parse_uri(socket.bound()));
  bound = uri;
  bound.port = real.port;
  return socket;
}

Result<void> check_options(const HubOptions& options) {
  if (options.instance.is_zero()) return {Code::invalid, "hub: the instance id is zero"};
  if (options.name.size() > wire::kEnvelopeTextMax) return {Code::invalid, "hub: name is longer than 64 bytes"};
  if (options.heartbeat <= Duration::zero() || options.dead_after <= options.heartbeat)
    return {Code::invalid, "hub: dead_after must be longer than heartbeat"};
  return {};
}

}  // namespace

Hub::Hub(std::unique_ptr<State> state) : state_(std::move(state)) {}
Hub::Hub(Hub&&) noexcept = default;
Hub& Hub::operator=(Hub&&) noexcept = default;
Hub::~Hub() = default;

Result<Hub> Hub::open(HubOptions options) {
  MC_CHECK(check_options(options));
  auto state = std::make_unique<State>(std::move(options));
  Shared& shared = state->shared;
  shared.name = shared.options.name;
  MC_TRY(wake, EventFd::open());
  MC_TRY(event_ready, EventFd::open());
  shared.wake = std::move(wake);
  shared.event_ready = std::move(event_ready);
  MC_TRY(context, Context::open());
  std::optional<Socket> zap;
  if (shared.options.keys) {
    // Bound before the routers, because a handshake without its ZAP handler would be admitted.
    MC_TRY(socket, Socket::open(context, SocketKind::zap, {}));
    MC_CHECK(socket.bind("inproc://zeromq.zap.01"));
    zap = std::move(socket);
  }
  std::vector<Socket> routers;
  for (const Uri& uri : shared.options.listen) {
    Uri bound;
    MC_TRY(router, open_router(context, shared.options, uri, bound));
    routers.push_back(std::move(router));
    state->bound.push_back(std::move(bound));
  }
  state->loop = std::make_unique<Loop>(shared, std::move(context), std::move(routers), std::move(zap));
  state->thread = std::thread([loop = state->loop.get()] { loop->run(); });
  return Hub(std::move(state));
}

const std::vector<Uri>& Hub::bound() const {
  return state_->bound;
}

Result<LinkId> Hub::connect(const Uri& uri) {
  if ((uri.scheme != "ipc" && uri.scheme != "tcp") || (uri.scheme == "tcp" && uri.port.value_or(0) == 0))
    return {Code::invalid, "control endpoints are ipc://PATH or tcp://HOST:PORT, not " + uri.text()};
  Shared& shared = state_->shared;
  const LinkId id = shared.next_link.fetch_add(1, std::memory_order_relaxed);  // a plain counter
  if (!shared.commands.push(Command(ConnectCommand{id, uri})))
    return {Code::busy, "the control command ring is full (" + std::to_string(shared.commands.capacity()) +
                            " commands); try again"};
  shared.wake.signal();
  return id;
}

Result<void> Hub::disconnect(LinkId link) {
  Shared& shared = state_->shared;
  if (!shared.commands.push(Command(DisconnectCommand{link})))
    return {Code::busy, "the control command ring is full (" + std::to_string(shared.commands.capacity()) +
                            " commands); try again"};
  shared.wake.signal();
  return {};
}

namespace {

Result<uint64_t> enqueue(Shared& shared, LinkId link, wire::Envelope envelope, Bytes body, bool request) {
  if (body.size() > shared.options.message_bytes_max)
    return user_error(err::kMessageTooLarge, envelope.type + " of " + std::to_string(body.size()) + " bytes, at most " +
                                                 std::to_string(shared.options.message_bytes_max) + " may be sent");
  // relaxed: a plain counter; the ring publishes the message
  envelope.id = shared.next_message.fetch_add(1, std::memory_order_relaxed) * 2 + (request ? 1 : 0);
  envelope.from = shared.name_now();
  envelope.instance = shared.options.instance;
  envelope.epoch = shared.options.epoch;
  SendCommand command{link, envelope.id, kNever, wire::encode(envelope, shared.options.version), std::move(body)};
  if (request) command.expires = after(SystemClock::instance().now(), *envelope.deadline);
  if (!shared.commands.push(Command(std::move(command))))
    return {Code::busy, "the control command ring is full (" + std::to_string(shared.commands.capacity()) +
                            " commands); try again"};
  shared.wake.signal();
  return envelope.id;
}

}  // namespace

Result<uint64_t> Hub::send(LinkId link, std::string_view type, Bytes body, InstanceId to,
                           std::optional<Duration> deadline) {
  return enqueue(state_->shared, link, {.type = std::string(type), .to = to, .deadline = deadline}, std::move(body),
                 false);
}

Result<uint64_t> Hub::request(LinkId link, std::string_view type, Bytes body, Duration deadline, InstanceId to) {
  return enqueue(state_->shared, link, {.type = std::string(type), .to = to, .deadline = deadline}, std::move(body),
                 true);
}

Result<uint64_t> Hub::reply(const Received& to, std::string_view type, Bytes body) {
  return enqueue(state_->shared, to.link, {.type = std::string(type), .re = to.envelope.id, .to = to.envelope.instance},
                 std::move(body), false);
}

Result<void> Hub::set_keys(const KeySet& keys) {
  Shared& shared = state_->shared;
  if (!shared.options.keys) return {Code::invalid, "control was opened without keys: start with a key file"};
  if (!shared.commands.push(Command(KeysCommand{keys})))
    return {Code::busy, "the control command ring is full (" + std::to_string(shared.commands.capacity()) +
                            " commands); try again"};
  shared.wake.signal();
  return {};
}

void Hub::set_name(const NodeId& name) {
  MC_ASSERT_LE(name.size(), wire::kEnvelopeTextMax);
  const std::lock_guard lock(state_->shared.mutex);
  state_->shared.name = name;
}

int Hub::event_fd() const {
  return state_->shared.event_ready.fd();
}

std::optional<Event> Hub::next() {
  Shared& shared = state_->shared;
  if (auto event = shared.events.pop()) return event;
  // The descriptor is cleared only when the ring is empty, and the ring is then checked again, so an event pushed in
  // between keeps the descriptor set.
  shared.event_ready.drain();
  return shared.events.pop();
}

std::optional<Event> Hub::wait(TimePoint deadline) {
  for (;;) {
    if (auto event = next()) return event;
    if (!state_->shared.event_ready.wait(deadline)) return next();
  }
}

HubStats Hub::stats() const {
  const std::lock_guard lock(state_->shared.mutex);
  return state_->shared.stats;
}

}  // namespace mc::ctl
