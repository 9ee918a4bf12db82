// The body and the deadline of POST /prefill.

#include "host/prefill_asks.h"

#include <algorithm>
#include <thread>

#include "base/errors.h"
#include "node/decode.h"
#include "test.h"
#include "unit/http/raw_client.h"
#include "unit/node/bench.h"

namespace prefill_asks_test {

using namespace mc;
using namespace mc::host;

namespace {

AskedNode node_of(uint32_t context_tokens) {
  AskedNode node;
  node.title = "p0", node.model = "m", node.context_tokens = context_tokens, node.vocab = 100;
  return node;
}

int number_of(const Result<PrefillAsk>& ask) {
  REQUIRE_FALSE(ask);
  return ask.error().mc;
}

http::Request request_with(std::string deadline_ms) {
  http::Request request;
  request.received = TimePoint{} + 3600s;
  if (!deadline_ms.empty()) request.headers.push_back({"x-mc-deadline-ms", std::move(deadline_ms)});
  return request;
}

/// Notes the threads that give it tasks, and runs none.
struct NotingLoop final : node::MachineLoop {
  void post(Task task) override {
    const std::lock_guard lock(mutex);
    tasks.push_back(std::move(task));
    threads.push_back(std::this_thread::get_id());
  }
  void deliver(const node::Event&) override {}
  std::vector<std::thread::id> seen() {
    const std::lock_guard lock(mutex);
    return threads;
  }
  std::mutex mutex;
  std::vector<Task> tasks;               // guarded by mutex
  std::vector<std::thread::id> threads;  // guarded by mutex
};

std::string post_of(size_t ids) {
  std::string body = "{\"prompt\":[1";
  for (size_t i = 1; i < ids; ++i) body += ",1";
  body += "]}";
  return "POST /prefill HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

}  // namespace

TEST_CASE("host/prefill_asks: a prompt of token ids is enough, and every other field has a default") {
  const auto ask = PrefillAsk::parse(R"({"prompt": [5, 17, 9]})", node_of(64));
  REQUIRE_OK(ask);
  CHECK(ask->ids == std::vector<uint32_t>{5, 17, 9});
  CHECK(ask->logprobs == 5);
  CHECK_FALSE(ask->no_cache);
  const auto all = PrefillAsk::parse(R"({"prompt":[99],"model":"m","logprobs":0,"no_cache":true})", node_of(64));
  REQUIRE_OK(all);
  CHECK(all->logprobs == 0);
  CHECK(all->no_cache);
}

TEST_CASE("host/prefill_asks: a body that the node cannot take is refused with the field and the number") {
  const AskedNode node = node_of(4);
  for (const char* body :
       {"", "[", "[]", "{}", R"({"prompt":[]})", R"({"prompt":"text"})", R"({"prompt":[1.5]})", R"({"prompt":[100]})",
        R"({"prompt":[-1]})", R"({"prompt":[true]})", R"({"prompt":[[1]]})", R"({"prompt":[1],"logprobs":21})",
        R"({"prompt":[1],"logprobs":-1})", R"({"prompt":[1],"logprobs":"5"})", R"({"prompt":[1],"no_cache":1})",
        R"({"prompt":[1],"max_tokens":9})", R"({"prompt":[1],"prompt":[2]})"}) {
    CAPTURE(body);
    CHECK(number_of(PrefillAsk::parse(body, node)) == err::kInvalidField);
  }
  CHECK(number_of(PrefillAsk::parse(R"({"prompt":[1],"model":"other"})", node)) == err::kModelNotFound);
  CHECK(number_of(PrefillAsk::parse(R"({"prompt":[1],"model":7})", node)) == err::kModelNotFound);
  CHECK(number_of(PrefillAsk::parse(R"({"prompt":[1,2,3,4,5]})", node)) == err::kContextLength);
  REQUIRE_OK(PrefillAsk::parse(R"({"prompt":[1,2,3,4]})", node));
}

TEST_CASE("host/prefill_asks: a body with more values than a prompt may have is refused before it is parsed") {
  std::string body = "{\"prompt\":[1";
  for (int i = 0; i < 200; ++i) body += ",1";  // no end
  const auto ask = PrefillAsk::parse(body, node_of(100));
  CHECK(number_of(ask) == err::kContextLength);
  CHECK(ask.error().what == "prompt of about 201 tokens, this node holds 100");
  body.resize(body.size() - 2 * 100);
  CHECK(number_of(PrefillAsk::parse(body, node_of(100))) == err::kInvalidField);
}

TEST_CASE("host/prefill_asks: a large body is read by another thread than the server's, and a small one by that one") {
  node::bench::Bench<node::Decode, node::DecodeOptions> b(wire::Role::decode, 4, {});
  NotingLoop loop;
  PrefillAsks asks(loop, b.machine, node_of(100'000));
  std::atomic<std::thread::id> handler;
  auto server = http::Server::open({}, [&](http::Request request, const http::Responder& out) {
    handler = std::this_thread::get_id();
    asks.ask(std::move(request), out);
  });
  REQUIRE_OK(server);
  test::RawClient small((*server)->port()), large((*server)->port());
  const TimePoint deadline = test::patience();
  const auto wait_for = [&](size_t tasks) {
    while (loop.seen().size() < tasks && SystemClock::instance().now() < deadline) std::this_thread::yield();
    REQUIRE(loop.seen().size() == tasks);
  };
  small.send(post_of(3));
  wait_for(1);
  CHECK(loop.seen()[0] == handler.load());
  large.send(post_of(60'000));
  wait_for(2);
  CHECK(loop.seen()[1] != handler.load());
  test::RawClient wrong((*server)->port());
  wrong.send(post_of(100'001));
  CHECK(wrong.read_response().starts_with("HTTP/1.1 400 "));
}

TEST_CASE("host/prefill_asks: the longest prompt fits the body that the door takes") {
  AskedNode node = node_of(1000);
  node.vocab = UINT32_MAX;
  std::string body = R"({"prompt": [4294967294)";
  for (int i = 1; i < 1000; ++i) body += ", 4294967294";
  body += "]}";
  CHECK(body.size() <= node.body_bytes_max());
  REQUIRE_OK(PrefillAsk::parse(body, node));
  CHECK(AskedNode{}.body_bytes_max() == 0);
}

TEST_CASE("host/prefill_asks: the deadline counts from the first byte of the request") {
  const auto left = [](const std::string& deadline_ms, Duration passed) {
    const http::Request request = request_with(deadline_ms);
    return ask_time_left(request, request.received + passed);
  };
  REQUIRE_OK(left("", 10s));
  CHECK(*left("", 10s) == 50s);
  CHECK(*left("2000", 500ms) == 1500ms);
  CHECK(left("2000", 2s).error().mc == err::kDeadlineExceeded);
  for (const char* wrong : {"0", "-5", "soon", "3600001", "1.5"}) {
    CAPTURE(wrong);
    CHECK(left(wrong, 0s).error().mc == err::kInvalidField);
  }
}

}  // namespace prefill_asks_test
