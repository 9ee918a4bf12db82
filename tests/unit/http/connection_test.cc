// One connection without a socket, in virtual time: its phases, its deadlines, and the bytes that the client gets.
#include "http/connection.h"

#include <algorithm>
#include <deque>

#include "base/rng.h"
#include "test.h"

namespace connection_test {
using namespace mc;
using namespace mc::http;
using namespace mc::http::detail;

namespace {

constexpr std::string_view kGet = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n";

struct TestConnection final : Connection {
  using Connection::Connection;
};

/// A connection, and the loop around it: the handler's commands are applied at once, and `received` is what the client
/// has taken.
class Bench final : public ConnectionHost {
 public:
  explicit Bench(ServerOptions given = {}) : options(std::move(given)), connection(*this, options, "client") {
    outbox_->wake = [] {};
  }
  ~Bench() override {
    connection.close(CloseReason::shutdown);
    CHECK(answers == 0);
    CHECK(budget.bytes() == 0);
    // A command that nobody takes holds its link, which holds the outbox.
    std::vector<Command> left;
    const std::lock_guard lock(outbox_->mutex);
    outbox_->wake = nullptr;
    left.swap(outbox_->commands);
  }

  TimePoint now() const override { return clock.now(); }
  std::shared_ptr<Outbox> outbox() override { return outbox_; }
  void dispatch(Request request, Responder responder) override {
    ++answers;
    requests.push_back(std::move(request));
    responders.push_back(std::move(responder));
  }
  BodyBudget& bodies() override { return budget; }
  std::optional<Response> refuse_head(Request) override { return std::nullopt; }
  bool draining() const override { return false; }
  void count_response(int status) override { statuses.push_back(status); }
  void end_answer() override { --answers; }

  /// Applies the commands that the handler gave.
  void apply() {
    for (Command& command : std::exchange(outbox_->commands, {}))
      if (command.link && command.link->connection) command.link->connection->apply(command);
  }
  /// The client takes everything that waits for it.
  std::string take() {
    apply();
    std::string bytes;
    while (!connection.unsent().empty()) {
      bytes += connection.unsent();
      connection.on_written(connection.unsent().size());
    }
    return bytes;
  }
  void pass(Duration time) {
    clock.advance(time);
    connection.on_tick();
  }

  VirtualClock clock;
  ServerOptions options;
  BodyBudget budget{1000};
  int answers = 0;  // under way
  std::vector<int> statuses;
  std::deque<Request> requests;
  std::deque<Responder> responders;

 private:
  std::shared_ptr<Outbox> outbox_ = std::make_shared<Outbox>();

 public:
  TestConnection connection;
};

}  // namespace

TEST_CASE("http/connection: a request in single bytes is given to the handler once, with the time of its first byte") {
  Bench bench;
  bench.clock.advance(1s);
  const TimePoint first = bench.clock.now();
  for (const char c : kGet) {
    CHECK(bench.requests.empty());
    bench.connection.on_bytes({&c, 1});
    bench.clock.advance(1ms);
  }
  REQUIRE(bench.requests.size() == 1);
  CHECK(bench.requests[0].path == "/a");
  CHECK(bench.requests[0].received == first);
  CHECK(bench.requests[0].peer == "client");
}

TEST_CASE("http/connection: pipelined requests are given to the handler one after the other") {
  Bench bench;
  bench.connection.on_bytes(std::string(kGet) + "GET /b HTTP/1.1\r\nHost: x\r\n\r\n");
  REQUIRE(bench.requests.size() == 1);
  bench.responders[0].respond({200, {}, "one"});
  bench.apply();
  CHECK(bench.requests.size() == 1);  // the first answer is not written
  CHECK(bench.take().ends_with("\r\n\r\none"));
  REQUIRE(bench.requests.size() == 2);
  CHECK(bench.requests[1].path == "/b");
}

TEST_CASE("http/connection: a client that never sends a byte is closed without an answer") {
  Bench bench;
  bench.pass(bench.options.head_timeout);
  CHECK(bench.connection.is_closed());
  CHECK(bench.connection.close_reason() == CloseReason::head_timeout);
  CHECK(bench.statuses.empty());
}

TEST_CASE("http/connection: half a head is answered 408 at its deadline, and the client gets time to read it") {
  Bench bench;
  bench.connection.on_bytes(kGet.substr(0, 10));
  bench.pass(bench.options.head_timeout - 1ms);
  CHECK(bench.statuses.empty());
  bench.pass(1ms);
  CHECK(bench.statuses == std::vector{408});
  CHECK(bench.take().starts_with("HTTP/1.1 408 "));
  CHECK(bench.connection.want_half_close());
  CHECK_FALSE(bench.connection.is_closed());
  bench.pass(2s);
  CHECK(bench.connection.is_closed());
  CHECK(bench.connection.close_reason() == CloseReason::head_timeout);
}

TEST_CASE("http/connection: memory for a body is given back when the request is complete or the client has left") {
  for (const bool is_complete : {true, false}) {
    CAPTURE(is_complete);
    Bench bench;
    bench.connection.on_bytes("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n" + std::string(60, 'x'));
    CHECK(bench.budget.bytes() == 100);  // memory for the whole body
    if (is_complete)
      bench.connection.on_bytes(std::string(40, 'x'));
    else
      bench.connection.on_lost();
    CHECK(bench.budget.bytes() == 0);
    CHECK(bench.requests.size() == (is_complete ? 1 : 0));
  }
}

TEST_CASE("http/connection: an unfinished body takes at most four times the memory of its bytes") {
  const ServerOptions options;
  BodyBudget budget(size_t{64} << 20);
  Intake intake(options, budget, TimePoint{});
  const std::string head = "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4194304\r\n\r\n";
  CHECK(intake.feed(head) == head.size());
  size_t sent = 0;
  for (const size_t bytes : {1, 99, 15'900, 1'000, 3'000, 50'000, 600'000, 3'000'000}) {
    const std::string piece(bytes, 'x');
    CHECK(intake.feed(piece) == bytes);
    CHECK(intake.reserve() == BodyBudget::Room::taken);
    sent += bytes;
    CAPTURE(sent);
    CHECK(budget.bytes() >= sent);
    CHECK(budget.bytes() <= std::max(4 * sent, std::string().capacity()));
  }
}

TEST_CASE("http/connection: bodies that count with their memory are refused beyond the limit") {
  const ServerOptions options;
  const std::string text = "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4194304\r\n\r\n" + std::string(25'000, 'x');
  BodyBudget budget(400'000);  // 300,000 for bodies that take 100,000 bytes each
  std::vector<std::unique_ptr<Intake>> intakes;
  for (int i = 1; i <= 4; ++i) {
    intakes.push_back(std::make_unique<Intake>(options, budget, TimePoint{}));
    CHECK(intakes.back()->feed(text) == text.size());
    CHECK(intakes.back()->reserve() == (i < 4 ? BodyBudget::Room::taken : BodyBudget::Room::none));
  }
  CHECK(budget.bytes() == 300'000);
  intakes.clear();
  CHECK(budget.bytes() == 0);
}

TEST_CASE("http/connection: large bodies that never end leave memory to small requests") {
  constexpr size_t kLarge = size_t{100} << 10, kSmall = size_t{64} << 10, kMax = size_t{4} << 20;
  BodyBudget budget(kMax);
  while (budget.reserve(kLarge, kLarge) == BodyBudget::Room::taken) CHECK(budget.bytes() <= kMax);
  const size_t large = budget.bytes();
  CHECK(large <= kMax / 4 * 3);
  size_t small = 0;
  while (budget.reserve(kSmall, kSmall) == BodyBudget::Room::taken) small += kSmall;
  CHECK(small >= kMax / 4);
  budget.release(large + small);
}

TEST_CASE("http/connection: a body beyond the memory for all bodies is answered 429") {
  Bench bench;
  CHECK(bench.budget.reserve(950, 950) == BodyBudget::Room::taken);
  bench.connection.on_bytes("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n" + std::string(60, 'x'));
  CHECK(bench.statuses == std::vector{429});
  bench.budget.release(950);
}

TEST_CASE("http/connection: a client that takes one byte within each write time-out is not a slow reader") {
  Bench bench;
  bench.connection.on_bytes(kGet);
  bench.responders[0].respond({200, {}, std::string(1000, 'x')});
  bench.apply();
  for (int i = 0; i < 5; ++i) {
    bench.pass(bench.options.write_timeout);
    CHECK_FALSE(bench.connection.is_closed());
    bench.connection.on_written(1);
  }
  bench.pass(bench.options.write_timeout + 1ms);
  CHECK(bench.connection.close_reason() == CloseReason::slow_reader);
}

TEST_CASE("http/connection: a client that takes a lent body below the least rate is a slow reader") {
  for (const size_t least : {size_t{100}, size_t{101}}) {
    Bench bench({.lent_bytes_min = least});
    auto body = std::make_shared<const std::string>(1000, 'x');
    bench.connection.on_bytes(kGet);
    bench.responders[0].respond({.status = 200, .held = body, .lent = *body});
    bench.apply();
    while (bench.connection.unsent().size() != body->size())
      bench.connection.on_written(bench.connection.unsent().size());
    bench.pass(1ms);
    for (int span = 0; span < 3 && !bench.connection.is_closed(); ++span)
      for (int byte = 0; byte < 100; ++byte) {
        bench.connection.on_written(1);
        bench.pass(bench.options.write_timeout / 100 + 1us);
        if (bench.connection.is_closed()) break;
      }
    CAPTURE(least);
    CHECK(bench.connection.is_closed() == (least > 100));
    if (least > 100) CHECK(bench.connection.close_reason() == CloseReason::slow_reader);
  }
}

TEST_CASE("http/connection: a silent event stream gets a ping after each interval, and none while bytes wait") {
  Bench bench;
  bench.connection.on_bytes(kGet);
  bench.responders[0].start_stream();
  CHECK(bench.take().starts_with("HTTP/1.1 200 "));
  bench.pass(bench.options.ping_interval - 1ms);
  CHECK(bench.take().empty());
  bench.pass(1ms);
  CHECK(bench.take() == "8\r\n: ping\n\n\r\n");
  CHECK(bench.responders[0].send("data: 1\n\n") == Code::ok);
  bench.apply();
  bench.pass(bench.options.ping_interval);
  CHECK(bench.take() == "9\r\ndata: 1\n\n\r\n");
}

TEST_CASE("http/connection: a client that has closed its sending side is probed with bytes of the status line") {
  Bench bench;
  bench.connection.on_bytes(kGet);
  bench.connection.on_end_of_input();
  CHECK(bench.take() == "H");
  bench.pass(250ms);
  CHECK(bench.take() == "T");
  bench.pass(249ms);
  CHECK(bench.take().empty());
  bench.responders[0].respond({200, {}, "x"});
  CHECK(bench.take().starts_with("TP/1.1 200 "));
  CHECK(bench.connection.close_reason() == CloseReason::done);
}

TEST_CASE("http/connection: probes before an answer never send a comment of an earlier event stream") {
  Bench bench;
  bench.connection.on_bytes(kGet);
  bench.responders[0].start_stream();
  bench.responders[0].finish();
  (void)bench.take();
  bench.connection.on_bytes(kGet);
  bench.connection.on_end_of_input();
  std::string bytes = bench.take();
  for (int i = 0; i < 20; ++i) {
    bench.pass(3600s);
    bytes += bench.take();
  }
  CHECK(bytes == "HTTP/1.1 ");
}

TEST_CASE("http/connection: a handler learns once that the client has left, and its answer goes nowhere") {
  Bench bench;
  int calls = 0;
  bench.connection.on_bytes(kGet);
  bench.responders[0].on_close([&](CloseReason reason) {
    CHECK(reason == CloseReason::client_gone);
    ++calls;
  });
  bench.apply();
  bench.connection.on_lost();
  bench.responders[0].respond({});
  bench.apply();
  bench.connection.close(CloseReason::shutdown);
  CHECK(calls == 1);
  CHECK_FALSE(bench.responders[0].is_open());
  CHECK(bench.statuses.empty());
}

TEST_CASE("http/connection: output keeps the order of bytes for any pieces that are written") {
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  Output output{TimePoint{}};
  std::string sent, received;
  for (int i = 0; i < 2000; ++i) {
    const std::string piece(rng.below(i % 50 == 0 ? 100'000 : 500), static_cast<char>('a' + i % 26));
    output.append(piece);
    sent += piece;
    const size_t count = rng.below(output.unsent().size() + 1);
    received += output.unsent().substr(0, count);
    output.on_written(count, TimePoint{});
    REQUIRE(received.size() + output.unsent().size() == sent.size());
  }
  CHECK((received + std::string(output.unsent()) == sent));
}

TEST_CASE("http/connection: lent bytes follow those that wait, and are held until the last is written") {
  Output output{TimePoint{}};
  auto bytes = std::make_shared<const std::string>("lent");
  const std::weak_ptr<const std::string> alive = bytes;
  output.append("own");
  output.lend(*bytes);
  output.hold(std::move(bytes));
  CHECK_EQ(output.unsent(), "own");
  output.on_written(3, TimePoint{});
  CHECK_EQ(output.unsent(), "lent");
  output.on_written(3, TimePoint{});
  CHECK_EQ(output.unsent(), "t");
  CHECK_FALSE(output.is_empty());
  CHECK_FALSE(alive.expired());
  output.on_written(1, TimePoint{});
  CHECK(output.is_empty());
  CHECK(alive.expired());
  output.append("next");
  CHECK_EQ(output.unsent(), "next");
}

}  // namespace connection_test
