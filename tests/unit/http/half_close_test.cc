// Clients that shut their sending side down and go on reading (RFC 9112, 9.6).
#include "http/server.h"
#include "test.h"
#include "unit/http/inbox.h"
#include "unit/http/raw_client.h"

namespace half_close_test {

using namespace mc;
using namespace mc::http;
using mc::test::Inbox;
using mc::test::Promise;
using mc::test::RawClient;

namespace {

constexpr const char* kGet = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

std::unique_ptr<Server> open_server(Server::Handler handler) {
  auto server = Server::open({}, std::move(handler));
  REQUIRE_OK(server);
  return std::move(*server);
}

/// A client that sends `request`, does `before` and closes while the answer is made: its handler is called back.
template <class Before>
void check_departure(const char* request, bool is_streaming, Before before) {
  CAPTURE(is_streaming);
  Inbox inbox;
  auto server = open_server(inbox.handler());
  RawClient client(server->port());
  client.send(request);
  auto item = inbox.pop();
  Promise<CloseReason> closed;
  item.out.on_close([&](CloseReason reason) { closed.set(reason); });
  if (is_streaming) {
    item.out.start_stream();
    client.read_through("\r\n\r\n");
  }
  before(client);
  client.close();
  CHECK(closed.get() == CloseReason::client_gone);
}

}  // namespace

TEST_CASE("http/server: a client that closed only its sending side still gets a complete answer that was given") {
  auto server = open_server([](Request, Responder out) { out.respond({200, {}, std::string(1 << 20, 'x')}); });
  RawClient client(server->port());
  client.send(kGet);
  client.half_close();
  CHECK(client.read_to_end().ends_with("\r\n\r\n" + std::string(1 << 20, 'x')));
}

TEST_CASE("http/server: a client that closed only its sending side gets an answer that is made later") {
  for (const std::string version : {"1.1", "1.0"})
    for (const bool is_streaming : {false, true}) {
      CAPTURE(version);
      CAPTURE(is_streaming);
      Inbox inbox;
      auto server = open_server(inbox.handler());
      RawClient client(server->port());
      client.send("GET / HTTP/" + version + "\r\nHost: x\r\n\r\n");
      auto item = inbox.pop();
      if (is_streaming) {
        item.out.start_stream();
        client.read_through("\r\n\r\n");
      }
      client.half_close();
      // The server asks whether the client is there: it has read the end of input by then.
      CHECK_FALSE(client.read_through(is_streaming ? ": ping\n\n" : "H").empty());
      CHECK(item.out.is_open());
      if (is_streaming) {
        CHECK(item.out.send_event("{\"x\":1}") == Code::ok);
        item.out.finish();
      } else {
        item.out.respond({200, {}, "late"});
      }
      const std::string rest = client.read_to_end();
      CHECK(rest.find(is_streaming ? "data: {\"x\":1}" : "late") != std::string::npos);
      if (!is_streaming) CHECK(rest.starts_with("TTP/1.1 200 OK\r\n"));
    }
}

TEST_CASE("http/server: pipelined requests are all answered after the end of input, and half a request is dropped") {
  auto server = open_server([](Request request, Responder out) { out.respond({200, {}, request.path}); });
  RawClient client(server->port());
  client.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\n\r\nGET /3 HTTP/1.1\r\nHo");
  client.half_close();
  const std::string all = client.read_to_end();
  CHECK(all.find("\r\n\r\n/1HTTP/1.1 ") != std::string::npos);
  CHECK(all.ends_with("/2"));
}

TEST_CASE("http/server: a client that half-closes, takes the first bytes and then goes is noticed") {
  for (const bool is_streaming : {false, true})
    check_departure(kGet, is_streaming, [&](RawClient& client) {
      client.half_close();
      CHECK_FALSE(client.read_through(is_streaming ? ": ping\n\n" : "HT").empty());
    });
}

TEST_CASE("http/server: a client that is gone is noticed over HTTP/1.0 too") {
  for (const bool is_streaming : {false, true})
    check_departure("GET / HTTP/1.0\r\n\r\n", is_streaming, [](RawClient&) {});
}

}  // namespace half_close_test
