// The HTTP client's loop over Asio. Sockets are non-blocking and share one scratch buffer. Every connection has a
// pending wait-for-readable, so an idle connection that the server closes is dropped before it is reused.
#include "http/client.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <vector>

#include "base/assert.h"
#include "http/asio.h"
#include "http/body_reader.h"

namespace mc::http {
namespace {

constexpr size_t kClientScratchBytes = size_t{64} << 10;

/// Whether the target has no character that ends its line early.
bool is_target(std::string_view target) {
  return target.starts_with('/') &&
         std::all_of(target.begin(), target.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

TimePoint now() {
  return SystemClock::instance().now();
}

struct Link;
using LinkPtr = std::shared_ptr<Link>;

using Tasks = std::multimap<TimePoint, std::function<void()>>;

/// One call, in Loop::calls from start() to done. The frame that runs its callbacks shares it, because a callback may
/// end the call.
struct Call {
  uint64_t id = 0;
  ClientCall request;
  ClientEvents events;
  ClientTimes times;
  LinkPtr link;
  Tasks::iterator deadline;
  bool has_deadline = false;
  bool was_retried = false;
};

/// One connection. Pending waits hold a shared_ptr, so it outlives being closed.
struct Link {
  explicit Link(asio::io_context& io) : socket(io) {}
  Socket socket;
  Call* call = nullptr;       // null: idle
  std::string out;            // head of the request, with a small body
  std::string_view body_out;  // a larger body, of the request of `call`
  size_t out_done = 0;        // bytes of both that are written
  std::unique_ptr<ResponseParser> parser;
  std::unique_ptr<SseParser> events;
  std::string body;
  Tasks::iterator connect_guard;
  bool has_connect_guard = false;
  bool is_connected = false;
  bool is_closed = false;
  bool read_waiting = false;
  bool write_waiting = false;
  bool was_used = false;    // an answer came over it before
  bool is_tainted = false;  // the server sent more than the answer, so the connection is not reused
  bool head_seen = false;

  std::string_view unsent() const {
    return out_done < out.size() ? std::string_view(out).substr(out_done) : body_out.substr(out_done - out.size());
  }
};

}  // namespace

struct Client::Loop {
  Loop(Url base, const ClientOptions& given) : url(std::move(base)), options(given) {}
  ~Loop();
  Result<void> resolve();
  void assign(Call& call);
  void connect(const LinkPtr& link, size_t endpoint, error_code last);
  void begin(const LinkPtr& link);
  void flush(const LinkPtr& link);
  void wait_read(const LinkPtr& link);
  void on_readable(const LinkPtr& link);
  void take_bytes(const LinkPtr& link, std::string_view bytes, TimePoint when);
  void on_lost(const LinkPtr& link, Error error);
  void complete(const LinkPtr& link, bool ended);
  void close(const LinkPtr& link);
  void finish(Call& call, Result<void> status);
  Error no_connection() const;
  void arm_timer();
  Tasks::iterator add_guard(TimePoint when, std::function<void()> on_time);
  void remove_guard(bool& has_guard, Tasks::iterator at);
  Call* find(uint64_t id);

  Url url;
  ClientOptions options;
  asio::io_context io{1};
  Timer timer{io};
  TimePoint timer_at = kNever;
  std::vector<Protocol::endpoint> endpoints;
  Tasks tasks;
  size_t guards = 0;  // tasks that only enforce deadlines of calls
  std::map<uint64_t, std::shared_ptr<Call>> calls;
  std::vector<LinkPtr> idle;
  size_t connections = 0;
  uint64_t next_id = 1;
  std::atomic<bool> is_stopped{false};
  std::array<char, kClientScratchBytes> scratch;
};

Client::Loop::~Loop() {
  for (auto& [id, call] : calls)
    if (call->link) close(call->link);
  for (const LinkPtr& link : std::exchange(idle, {})) close(link);
}

Result<void> Client::Loop::resolve() {
  if (!url.socket.empty()) {
    endpoints.emplace_back(asio::local::stream_protocol::endpoint(url.socket));
    return {};
  }
  error_code error;
  asio::ip::tcp::resolver resolver(io);
  const auto found =
      resolver.resolve(url.host, std::to_string(url.port), asio::ip::resolver_base::numeric_service, error);
  for (const auto& entry : found) endpoints.emplace_back(entry.endpoint());
  if (error || endpoints.empty())
    return user_error(err::kPeerUnreachable, "http: cannot resolve " + url.host + ": " + error.message());
  return {};
}

Call* Client::Loop::find(uint64_t id) {
  const auto at = calls.find(id);
  return at == calls.end() ? nullptr : at->second.get();
}

Error Client::Loop::no_connection() const {
  return user_error(err::kPeerUnreachable, "http: connect " + url.place() + ": no answer in time");
}

void Client::Loop::arm_timer() {
  const TimePoint next = tasks.empty() ? kNever : tasks.begin()->first;
  // A timer that is due earlier sets itself again when it fires. So a call that ends before its deadline, as most do,
  // costs no system call here.
  if (next >= timer_at) return;
  timer_at = next;
  timer.expires_at(next);
  timer.async_wait([this](error_code stopped) {
    if (stopped) return;
    timer_at = kNever;
    const TimePoint until = now();
    while (!tasks.empty() && tasks.begin()->first <= until) {
      auto node = tasks.extract(tasks.begin());
      node.mapped()();
    }
    arm_timer();
  });
}

Tasks::iterator Client::Loop::add_guard(TimePoint when, std::function<void()> on_time) {
  ++guards;
  const auto at = tasks.emplace(when, [this, on_time = std::move(on_time)] {
    --guards;
    on_time();
  });
  arm_timer();
  return at;
}

void Client::Loop::remove_guard(bool& has_guard, Tasks::iterator at) {
  if (!std::exchange(has_guard, false)) return;
  tasks.erase(at);
  --guards;
}

void Client::Loop::assign(Call& call) {
  LinkPtr link;
  if (!idle.empty() && !call.was_retried) {
    link = std::move(idle.back());
    idle.pop_back();
  } else {
    link = std::make_shared<Link>(io);
    ++connections;
  }
  link->call = &call;
  call.link = link;
  link->out.clear();
  link->out_done = 0;
  append_request_head(link->out, call.request.method, url.path + call.request.target, url.authority(),
                      call.request.headers, call.request.body.size() + call.request.lent.size(), options.keep_alive);
  constexpr size_t kJoinMax = size_t{16} << 10;  // a copy of so many bytes costs less than a second write
  const bool has_lent = !call.request.lent.empty();
  if (has_lent) link->out += call.request.body;
  link->body_out = has_lent ? call.request.lent : std::string_view(call.request.body);
  if (link->body_out.size() <= kJoinMax) link->out += std::exchange(link->body_out, {});
  ParserLimits limits;
  limits.header_bytes = options.header_bytes_max;
  limits.body_bytes = SIZE_MAX;  // bounded where the body is stored
  link->parser = std::make_unique<ResponseParser>(limits, call.request.method == Method::head);
  link->events.reset();
  link->body.clear();
  link->head_seen = false;
  if (link->is_connected) return begin(link);
  link->connect_guard = add_guard(after(now(), options.connect_timeout), [this, link] {
    link->has_connect_guard = false;
    if (link->call) finish(*link->call, no_connection());
  });
  link->has_connect_guard = true;
  connect(link, 0, {});
}

void Client::Loop::connect(const LinkPtr& link, size_t endpoint, error_code last) {
  if (link->is_closed) return;
  if (endpoint == endpoints.size()) {
    const uint64_t id = link->call->id;
    const std::string what = "http: connect " + url.place() + ": " + last.message();
    asio::post(io, [this, id, what] {  // never from inside start()
      if (Call* call = find(id)) finish(*call, user_error(err::kPeerUnreachable, what));
    });
    return;
  }
  error_code error;
  if (link->socket.is_open()) link->socket.close(error);
  const Protocol protocol = endpoints[endpoint].protocol();
  const int fd = ::socket(protocol.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);  // Asio does not set close-on-exec
  if (fd < 0) return connect(link, endpoints.size(), error_code(errno, boost::system::system_category()));
  link->socket.assign(protocol, fd, error);
  if (error) {
    ::close(fd);
    return connect(link, endpoint + 1, error);
  }
  link->socket.non_blocking(true, error);
  link->socket.set_option(asio::ip::tcp::no_delay(true), error);
  link->socket.async_connect(endpoints[endpoint], [this, link, endpoint](error_code failed) {
    if (link->is_closed || !link->call) return;
    if (failed) return connect(link, endpoint + 1, failed);
    link->is_connected = true;
    remove_guard(link->has_connect_guard, link->connect_guard);
    begin(link);
  });
}

void Client::Loop::begin(const LinkPtr& link) {
  link->call->times.connected = now();
  wait_read(link);
  flush(link);
}

void Client::Loop::flush(const LinkPtr& link) {
  while (!link->write_waiting && !link->is_closed && !link->unsent().empty()) {
    error_code error;
    const std::string_view bytes = link->unsent();
    const size_t count = link->socket.write_some(asio::const_buffer(bytes.data(), bytes.size()), error);
    if (error == asio::error::would_block) {
      link->write_waiting = true;
      link->socket.async_wait(Socket::wait_write, [this, link](error_code failed) {
        link->write_waiting = false;
        if (!failed && !link->is_closed) flush(link);
      });
      return;
    }
    // The server may have answered and closed without reading everything, so a read for the answer follows.
    if (error) return;
    link->out_done += count;
    if (link->unsent().empty() && link->call) link->call->times.sent = now();
  }
}

void Client::Loop::wait_read(const LinkPtr& link) {
  if (link->read_waiting || link->is_closed) return;
  link->read_waiting = true;
  link->socket.async_wait(Socket::wait_read, [this, link](error_code error) {
    link->read_waiting = false;
    if (error == asio::error::operation_aborted || link->is_closed) return;
    on_readable(link);
  });
}

void Client::Loop::on_readable(const LinkPtr& link) {
  error_code error;
  const size_t count = link->socket.read_some(asio::buffer(scratch), error);
  if (error == asio::error::would_block) return wait_read(link);
  if (!link->call) {  // idle: the server closed it, or sent bytes without a request
    idle.erase(std::remove(idle.begin(), idle.end(), link), idle.end());
    return close(link);
  }
  if (error == asio::error::eof) {
    const auto ended = link->parser->finish();
    if (ended) return complete(link, true);
    return on_lost(link, ended.error());
  }
  if (error)
    return on_lost(link, {Code::peer_lost, "http: connection to " + url.place() + " lost: " + error.message()});
  take_bytes(link, {scratch.data(), count}, now());
  if (!link->is_closed) wait_read(link);
}

void Client::Loop::take_bytes(const LinkPtr& link, std::string_view bytes, TimePoint when) {
  const std::shared_ptr<Call> held = calls.at(link->call->id);
  Call& call = *held;
  if (call.times.first_byte == TimePoint{}) call.times.first_byte = when;
  Result<void> kept;
  const auto on_head = [&] {
    if (std::exchange(link->head_seen, true)) return;
    const ResponseHead& head = link->parser->head();
    if (find_header(head.headers, "content-type").starts_with("text/event-stream"))
      link->events = std::make_unique<SseParser>(options.event_bytes_max);
    if (call.events.head) call.events.head(head, when);
  };
  const auto used = link->parser->feed(bytes, [&](std::string_view piece) {
    on_head();
    // A callback may have cancelled this call.
    if (!kept || link->is_closed) return;
    if (link->events) {
      kept = link->events->feed(piece, [&](std::string_view data) {
        if (!link->is_closed && call.events.event) call.events.event(data, when);
      });
    } else if (link->body.size() + piece.size() > options.body_bytes_max) {
      kept = Error{Code::invalid, "http: the answer exceeds " + std::to_string(options.body_bytes_max) + " bytes"};
    } else {
      const size_t room = options.body_bytes_max - link->body.size();
      append_body(link->body, piece, std::min<uint64_t>(link->parser->body_left(), room));
    }
  });
  if (link->is_closed) return;
  if (!used) return finish(call, used.error());
  if (!kept) return finish(call, kept.error());
  if (link->parser->head_done()) on_head();
  if (link->is_closed || !link->parser->done()) return;
  link->is_tainted = *used < bytes.size();
  complete(link, false);
}

/// Handles a broken connection. A server may close an idle connection while the client writes to it. So a call on a
/// reused connection moves to a new one, once, and only if no byte of an answer came.
void Client::Loop::on_lost(const LinkPtr& link, Error error) {
  Call& call = *link->call;
  if (!link->was_used || link->parser->started() || call.was_retried) return finish(call, std::move(error));
  call.was_retried = true;
  call.link.reset();
  close(link);
  assign(call);
}

void Client::Loop::complete(const LinkPtr& link, bool ended) {
  Call& call = *link->call;
  const bool is_reusable =
      options.keep_alive && link->parser->head().keep_alive && link->unsent().empty() && !link->is_tainted && !ended;
  if (!is_reusable) return finish(call, {});
  // finish() closes the call's connection, so the answer is moved out first.
  ClientOutcome outcome{
      {}, link->parser->head().status, link->parser->head().headers, std::move(link->body), call.times, link->was_used};
  link->call = nullptr;
  link->out_done = link->out.size();
  link->body_out = {};
  link->was_used = true;
  link->parser.reset();
  link->events.reset();
  std::string().swap(link->body);
  idle.push_back(link);
  wait_read(link);
  call.link.reset();
  outcome.times.ended = now();
  remove_guard(call.has_deadline, call.deadline);
  auto node = calls.extract(call.id);
  node.mapped()->events.done(std::move(outcome));
}

void Client::Loop::close(const LinkPtr& link) {
  if (std::exchange(link->is_closed, true)) return;
  --connections;
  remove_guard(link->has_connect_guard, link->connect_guard);
  link->call = nullptr;
  link->body_out = {};
  error_code ignored;
  link->socket.close(ignored);
}

void Client::Loop::finish(Call& call, Result<void> status) {
  ClientOutcome outcome;
  outcome.status = std::move(status);
  outcome.times = call.times;
  outcome.times.ended = now();
  if (call.link) {
    outcome.reused_connection = call.link->was_used;
    if (call.link->parser && call.link->parser->head_done()) {
      outcome.http_status = call.link->parser->head().status;
      outcome.headers = call.link->parser->head().headers;
    }
    outcome.body = std::move(call.link->body);
    close(call.link);
  }
  remove_guard(call.has_deadline, call.deadline);
  auto node = calls.extract(call.id);
  node.mapped()->link.reset();
  node.mapped()->events.done(std::move(outcome));
}

Client::Client(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
Client::~Client() = default;

Result<std::unique_ptr<Client>> Client::open(std::string_view base_url, const ClientOptions& options) {
  MC_TRY(url, parse_url(base_url));
  auto loop = std::make_unique<Loop>(std::move(url), options);
  MC_CHECK(loop->resolve());
  return std::unique_ptr<Client>(new Client(std::move(loop)));
}

uint64_t Client::start(ClientCall request, ClientEvents events) {
  MC_ASSERT(events.done != nullptr);
  MC_ASSERT(is_target(request.target));
  const uint64_t id = loop_->next_id++;
  auto& call = loop_->calls[id] = std::make_shared<Call>();
  call->id = id;
  call->request = std::move(request);
  call->events = std::move(events);
  call->times.started = now();
  if (call->request.deadline != kNever) {
    call->deadline = loop_->add_guard(call->request.deadline, [loop = loop_.get(), id] {
      Call* late = loop->find(id);
      MC_ASSERT(late != nullptr);  // the guard is removed with the call
      late->has_deadline = false;
      const bool connected = late->link && late->link->is_connected;
      loop->finish(*late, connected ? Error{Code::timeout, "http: no complete answer before the deadline"}
                                    : loop->no_connection());
    });
    call->has_deadline = true;
  }
  loop_->assign(*call);
  return id;
}

void Client::cancel(uint64_t id) {
  if (Call* call = loop_->find(id)) loop_->finish(*call, {Code::cancelled, "http: the call was cancelled"});
}

void Client::at(TimePoint when, std::function<void()> task) {
  loop_->tasks.emplace(when, std::move(task));
  loop_->arm_timer();
}

bool Client::run(TimePoint deadline) {
  Loop& loop = *loop_;
  const auto is_done = [&] { return loop.calls.empty() && loop.tasks.size() == loop.guards; };
  while (!is_done() && !loop.is_stopped.exchange(false)) {
    loop.io.restart();
    if (deadline == kNever)
      loop.io.run_one();
    else if (loop.io.run_one_until(deadline) == 0 && now() >= deadline)
      break;
  }
  return is_done();
}

void Client::stop() {
  loop_->is_stopped.store(true);
  asio::post(loop_->io, [] {});
}

size_t Client::calls() const {
  return loop_->calls.size();
}
size_t Client::connections() const {
  return loop_->connections;
}

Result<Response> fetch(Method method, std::string_view url, const Headers& headers, std::string body,
                       TimePoint deadline) {
  std::string_view base = url, target = "/";
  const size_t scheme = url.find("://");
  if (const size_t slash = url.find('/', scheme == std::string_view::npos ? 0 : scheme + 3);
      slash != std::string_view::npos) {
    base = url.substr(0, slash);
    target = url.substr(slash);
  }
  return fetch(method, base, target, headers, std::move(body), deadline);
}

Result<Response> fetch(Method method, std::string_view base, std::string_view target, const Headers& headers,
                       std::string body, TimePoint deadline) {
  if (!is_target(target)) return {Code::invalid, "url: the path must be printable ASCII without spaces"};
  MC_TRY(client, Client::open(base, {.keep_alive = false}));
  std::optional<ClientOutcome> result;
  client->start({method, std::string(target), headers, std::move(body), deadline},
                {.done = [&](ClientOutcome&& outcome) { result = std::move(outcome); }});
  client->run();
  MC_ASSERT(result.has_value());
  MC_CHECK(std::move(result->status));
  return Response{result->http_status, std::move(result->headers), std::move(result->body)};
}

}  // namespace mc::http
