#include "http/client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <optional>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "base/fd.h"
#include "http/server.h"
#include "test.h"
#include "unit/http/raw_client.h"

using namespace mc;
using namespace mc::http;

namespace {

TimePoint now() {
  return SystemClock::instance().now();
}

std::unique_ptr<Server> open_server(Server::Handler handler, ServerOptions options = {}) {
  auto server = Server::open(options, std::move(handler));
  REQUIRE_OK(server);
  return std::move(*server);
}

std::unique_ptr<Client> open_client(const std::string& url, ClientOptions options = {}) {
  auto client = Client::open(url, options);
  REQUIRE_OK(client);
  return std::move(*client);
}

void echo(Request request, Responder out) {
  out.respond({200, {{"Content-Type", "text/plain"}}, request.target + "|" + request.body});
}

/// A listening socket whose connections answer with scripted bytes and then close.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::vector<std::string> answers) : answers_(std::move(answers)) {
    listener_ = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(listener_.get(), 16) == 0);
    socklen_t size = sizeof address;
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { run(); });
  }
  ~ScriptedServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  const std::string& url() const { return url_; }

 private:
  void run() {
    for (const std::string& answer : answers_) {
      Fd connection(::accept(listener_.get(), nullptr, nullptr));
      if (!connection) return;
      char request[4096];
      if (::read(connection.get(), request, sizeof request) <= 0) continue;
      (void)write_all(connection.get(), answer, test::patience());
      ::shutdown(connection.get(), SHUT_WR);
      // Closing with unread input would reset the connection under the client.
      while (::read(connection.get(), request, sizeof request) > 0) {
      }
    }
  }

  std::vector<std::string> answers_;
  Fd listener_;
  std::string url_;
  std::thread thread_;
};

ClientOutcome call(Client& client, ClientCall request, ClientEvents events = {}) {
  std::optional<ClientOutcome> outcome;
  events.done = [&](ClientOutcome&& result) { outcome = std::move(result); };
  client.start(std::move(request), std::move(events));
  client.run(test::patience());
  REQUIRE(outcome.has_value());
  return std::move(*outcome);
}

ClientOutcome answered_with(std::string bytes, ClientOptions options = {}) {
  ScriptedServer server({std::move(bytes)});
  auto client = open_client(server.url(), options);
  return call(*client, {.deadline = test::patience()});
}

}  // namespace

TEST_CASE("http/client: a call brings status, headers and body, and the next one reuses the connection") {
  auto server = open_server(echo);
  auto client = open_client(server->url() + "/base/");
  for (int i = 0; i < 3; ++i) {
    const auto outcome = call(*client, {.method = Method::post, .target = "/x?y=1", .body = "hello"});
    REQUIRE_OK(outcome.status);
    CHECK(outcome.http_status == 200);
    CHECK(outcome.body == "/base/x?y=1|hello");
    CHECK(find_header(outcome.headers, "content-type") == "text/plain");
    CHECK(outcome.reused_connection == (i > 0));
    CHECK(outcome.times.started <= outcome.times.connected);
    CHECK(outcome.times.connected <= outcome.times.sent);
    CHECK(outcome.times.sent <= outcome.times.first_byte);
    CHECK(outcome.times.first_byte <= outcome.times.ended);
  }
  CHECK(client->connections() == 1);
  CHECK(server->stats().accepted == 1);
}

TEST_CASE("http/client: bodies that are lent by both sides arrive whole, and the connection is used again") {
  const auto large = std::make_shared<const std::string>((size_t{5} << 20) + 3, 'v');
  auto server = open_server([&](Request request, Responder out) {
    Response answer{200, {}, request.body == "head" + *large ? "yes" : "no"};
    answer.held = large;
    answer.lent = *large;
    out.respond(std::move(answer));
  });
  auto client = open_client(server->url());
  for (int i = 0; i < 3; ++i) {
    const auto outcome = call(*client, {.method = Method::put, .target = "/", .body = "head", .lent = *large});
    REQUIRE_OK(outcome.status);
    CHECK((outcome.body == "yes" + *large));
    CHECK(outcome.reused_connection == (i > 0));
  }
  const auto head = call(*client, {.method = Method::head, .target = "/", .body = "head", .lent = *large});
  REQUIRE_OK(head.status);
  CHECK(head.body.empty());
  CHECK_EQ(find_header(head.headers, "content-length"), std::to_string(large->size() + 3));
  CHECK(client->connections() == 1);
}

TEST_CASE("http/client: fetch is one blocking call") {
  auto server = open_server(echo);
  const auto response = fetch(Method::post, server->url() + "/a", {{"X-A", "1"}}, "body", test::patience());
  REQUIRE_OK(response);
  CHECK(response->body == "/a|body");
  const auto bare = fetch(Method::get, "127.0.0.1:" + std::to_string(server->port()), {}, {}, test::patience());
  REQUIRE_OK(bare);
  CHECK(bare->body == "/|");
  CHECK_FALSE(fetch(Method::get, server->url() + "/a b", {}, {}, test::patience()));
}

TEST_CASE("http/client: nobody listening is peer-unreachable, naming address and reason") {
  uint16_t port;
  {
    auto server = open_server(echo);
    port = server->port();
  }
  const std::string url = "http://127.0.0.1:" + std::to_string(port);
  const auto response = fetch(Method::get, url, {}, {}, test::patience());
  REQUIRE_FALSE(response);
  CHECK(response.error().mc == err::kPeerUnreachable);
  CHECK(response.error().what.find("127.0.0.1:" + std::to_string(port) + ": Connection refused") != std::string::npos);
}

TEST_CASE("http/client: urls are checked and the error quotes them") {
  CHECK(parse_url("http://localhost:8000/v1/")->path == "/v1");
  CHECK(parse_url("http://[::1]:9")->authority() == "[::1]:9");
  CHECK(parse_url("http://[::1]")->port == 80);
  CHECK(parse_url("10.0.0.1:7")->port == 7);
  CHECK(parse_url("http://host")->port == 80);
  for (const char* bad : {"", "https://x", "ftp://x", "http://", "http://x:99999", "http://x:y", "http://a b",
                          "http://x/?q", "http://user@x", "http://x/\r\nEvil: 1"}) {
    INFO(bad);
    CHECK_FALSE(parse_url(bad));
  }
}

TEST_CASE("http/client: events of a stream arrive one by one with pings skipped") {
  auto server = open_server([](Request, Responder out) {
    out.start_stream();
    (void)out.send(kSsePing);
    for (int i = 0; i < 3; ++i) (void)out.send_event("{\"i\":" + std::to_string(i) + "}");
    (void)out.send(kSseDone);
    out.finish();
  });
  auto client = open_client(server->url());
  std::vector<std::string> events;
  int heads = 0;
  for (int round = 0; round < 2; ++round) {
    const auto outcome = call(*client, {},
                              {.head = [&](const ResponseHead& head, TimePoint) { heads += head.status == 200; },
                               .event = [&](std::string_view data, TimePoint) { events.emplace_back(data); }});
    REQUIRE_OK(outcome.status);
    CHECK(outcome.body.empty());
  }
  CHECK(heads == 2);
  CHECK(events.size() == 8);
  CHECK(events[2] == "{\"i\":2}");
  CHECK(events[3] == "[DONE]");
  CHECK(client->connections() == 1);
}

TEST_CASE("http/client: a call ends at its deadline whether or not the server answers") {
  std::vector<Responder> kept;
  auto server = open_server([&](Request request, Responder out) {
    if (request.path == "/stream") out.start_stream();
    kept.push_back(std::move(out));
  });
  auto client = open_client(server->url());
  for (const char* target : {"/", "/stream"}) {
    const auto outcome = call(*client, {.target = target, .deadline = after(now(), 30ms)});
    REQUIRE_FALSE(outcome.status);
    CHECK(outcome.status.error().code == Code::timeout);
  }
  CHECK(client->connections() == 0);
  server->stop();
}

TEST_CASE("http/client: a call without a connection at its deadline is told from one without an answer") {
  // A queue of one connection that is full: the kernel drops further attempts.
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  REQUIRE(::bind(listener.get(), name, size) == 0);
  REQUIRE(::listen(listener.get(), 0) == 0);
  REQUIRE(::getsockname(listener.get(), name, &size) == 0);
  std::vector<Fd> waiting;
  for (int i = 0; i < 3; ++i) {
    waiting.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    (void)::connect(waiting.back().get(), name, size);
  }
  auto client = open_client("http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)));
  const auto outcome = call(*client, {.deadline = after(now(), 30ms)});
  REQUIRE_FALSE(outcome.status);
  CHECK(outcome.status.error().mc == err::kPeerUnreachable);
  CHECK(client->connections() == 0);
}

TEST_CASE("http/client: cancelling from inside an event ends the call at once, with no event after it") {
  auto server = open_server([](Request, Responder out) {
    out.start_stream();
    for (int i = 0; i < 100; ++i) (void)out.send_event("{}");
    out.finish();
  });
  auto client = open_client(server->url());
  int events = 0;
  uint64_t id = 0;
  std::optional<ClientOutcome> outcome;
  id = client->start({}, {.event =
                              [&](std::string_view, TimePoint) {
                                ++events;
                                client->cancel(id);
                              },
                          .done = [&](ClientOutcome&& result) { outcome = std::move(result); }});
  CHECK(client->run(test::patience()));
  REQUIRE(outcome.has_value());
  CHECK(outcome->status.error().code == Code::cancelled);
  CHECK(events == 1);
  client->cancel(id);
  client->cancel(12345);
}

TEST_CASE("http/client: a kept connection that the server closed is replaced without an error") {
  auto server = open_server(echo, {.idle_timeout = 20ms});
  auto client = open_client(server->url());
  REQUIRE_OK(call(*client, {.body = "1"}).status);
  // The server's idle timeout closes it; whether the client has noticed or not must not matter.
  const TimePoint deadline = test::patience();
  while (server->stats().connections > 0 && now() < deadline) std::this_thread::yield();
  const auto outcome = call(*client, {.method = Method::post, .body = "2"});
  REQUIRE_OK(outcome.status);
  CHECK(outcome.body == "/|2");
}

TEST_CASE("http/client: an answer cut short, malformed or too large is an error, never half a body") {
  CHECK(answered_with("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345").status.error().code == Code::peer_lost);
  CHECK(answered_with("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n").status.error().code ==
        Code::peer_lost);
  CHECK(answered_with("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n").status.error().code ==
        Code::invalid);
  CHECK(answered_with("").status.error().code == Code::peer_lost);
  CHECK(answered_with("SSH-2.0-OpenSSH_9.2\r\n").status.error().code == Code::invalid);
  CHECK(answered_with("HTTP/1.1 200 OK\r\nA: " + std::string(100000, 'a')).status.error().code == Code::invalid);
  CHECK(
      answered_with("HTTP/1.1 200 OK\r\n\r\n" + std::string(1000, 'a'), {.body_bytes_max = 999}).status.error().code ==
      Code::invalid);
  CHECK(answered_with("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: " + std::string(1000, 'a'),
                      {.event_bytes_max = 500})
            .status.error()
            .code == Code::invalid);
  CHECK(answered_with("HTTP/1.1 101 Switching Protocols\r\n\r\n").status.error().code == Code::invalid);
}

TEST_CASE("http/client: 1xx is skipped, a body may end with the connection, 204 has none") {
  CHECK(answered_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").body == "ok");
  CHECK(answered_with("HTTP/1.0 200 OK\r\n\r\nuntil the end").body == "until the end");
  CHECK(answered_with("HTTP/1.1 204 No Content\r\n\r\n").http_status == 204);
}

TEST_CASE("http/client: tasks run in order of time, and run() returns when nothing is left") {
  auto server = open_server(echo);
  auto client = open_client(server->url());
  std::vector<int> order;
  const TimePoint start = now();
  client->at(start + 10ms, [&] { order.push_back(2); });
  client->at(start, [&] {
    order.push_back(0);
    client->at(start + 5ms, [&] { order.push_back(1); });
  });
  client->at(start + 10ms, [&] { order.push_back(3); });
  CHECK(client->run(test::patience()));
  CHECK(order == std::vector<int>{0, 1, 2, 3});
  client->at(now() + 100s, [] {});
  CHECK_FALSE(client->run(now() + 1ms));
  std::thread other([&] { client->stop(); });
  CHECK_FALSE(client->run(test::patience()));
  other.join();
}

TEST_CASE("http/client: three hundred concurrent streams all finish on one thread a side") {
  auto server = open_server([](Request, Responder out) {
    out.start_stream();
    for (int i = 0; i < 20; ++i) (void)out.send_event("{\"choices\":[{\"text\":\"token\"}]}");
    (void)out.send(kSseDone);
    out.finish();
  });
  auto client = open_client(server->url());
  int finished = 0;
  size_t events = 0;
  for (int i = 0; i < 300; ++i)
    client->start({.method = Method::post, .body = "{}", .deadline = test::patience()},
                  {.event = [&](std::string_view, TimePoint) { ++events; },
                   .done = [&](ClientOutcome&& outcome) { finished += outcome.status.has_value(); }});
  CHECK(client->run(test::patience()));
  CHECK(finished == 300);
  CHECK(events == 300 * 21);
}
