// A request's own deadline, told by a header: its body is there by then, or the answer is 504.
#include "http/server.h"
#include "test.h"
#include "unit/http/inbox.h"
#include "unit/http/raw_client.h"

using namespace mc;
using namespace mc::http;
using mc::test::Inbox;
using mc::test::RawClient;

namespace {

std::unique_ptr<Server> open_server(Inbox& inbox, Duration body_timeout = 60s) {
  ServerOptions options;
  options.deadline_header = "x-deadline-ms";
  options.body_timeout = body_timeout;
  auto server = Server::open(options, inbox.handler());
  REQUIRE_OK(server);
  return std::move(*server);
}

/// The head of a request with a body of 8 bytes.
std::string head(const std::string& deadline) {
  return "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\nX-Deadline-Ms: " + deadline + "\r\n\r\n";
}

bool is_504_of_the_body(const std::string& answer, const std::string& deadline) {
  return answer.starts_with("HTTP/1.1 504 ") &&
         answer.find("deadline of " + deadline + " ms passed in stage body") != std::string::npos;
}

}  // namespace

TEST_CASE("http/server: a body that is not there by the request's own deadline is a 504 that names the stage") {
  Inbox inbox;
  auto server = open_server(inbox);
  RawClient client(server->port());
  client.send(head("100") + "half");
  CHECK(is_504_of_the_body(client.read_to_end(), "100"));
  CHECK(inbox.is_empty());
}

TEST_CASE("http/server: a body that is there by the request's own deadline reaches the handler") {
  Inbox inbox;
  auto server = open_server(inbox);
  RawClient client(server->port());
  for (int i = 0; i < 2; ++i) {  // on a kept connection each request has its own
    client.send(head("60000") + "half");
    client.send("more");
    auto item = inbox.pop();
    CHECK(item.request.body == "halfmore");
    item.out.respond({200, {}, "answer"});
    CHECK(client.read_response().ends_with("answer"));
  }
  client.send(head("100") + "half");
  CHECK(is_504_of_the_body(client.read_to_end(), "100"));
}

TEST_CASE("http/server: a deadline that is no number of milliseconds is ignored") {
  for (const std::string value : {"", "soon", "0", "-5", "1.5", "1 2", "99999999999999999999", "2147483648"}) {
    CAPTURE(value);
    Inbox inbox;
    auto server = open_server(inbox, 100ms);
    RawClient client(server->port());
    client.send(head(value) + "halfmore");
    inbox.pop().out.respond({200, {}, "answer"});
    CHECK(client.read_response().ends_with("answer"));
    client.send(head(value) + "half");  // the server's own limit ends it
    CHECK(client.read_to_end().starts_with("HTTP/1.1 408 "));
  }
}

TEST_CASE("http/server: a request's own deadline counts from its first byte") {
  Inbox inbox;
  auto server = open_server(inbox);
  RawClient slow(server->port()), quick(server->port());
  const std::string whole = head("3000") + "half";
  const TimePoint first = SystemClock::instance().now();
  slow.send(whole.substr(0, 1));
  (void)wait_fd(slow.fd(), POLLIN, after(first, 3000ms));  // nothing comes: this is the time that passes
  slow.send(whole.substr(1));
  quick.send(head("1500") + "half");
  // From its first byte the slow request's deadline has passed, from the end of its head it is the later one.
  CHECK(is_504_of_the_body(quick.read_to_end(), "1500"));
  CHECK(wait_fd(slow.fd(), POLLIN, after(SystemClock::instance().now(), 750ms)));
  CHECK(is_504_of_the_body(slow.read_to_end(), "3000"));
}
