// The bodies of POST /blocks/evict, /blocks/pin and /blocks/unpin, and the way of an order to the machine and back.

#include "host/block_calls.h"

#include <deque>
#include <mutex>
#include <thread>

#include "base/errors.h"
#include "node/decode.h"
#include "test.h"
#include "unit/http/raw_client.h"
#include "unit/node/bench.h"

namespace block_calls_test {

using namespace mc;
using namespace mc::host;

namespace {

const std::string kHash = "00112233445566778899aabbccddeeff";

/// Runs the tasks on a decode node, as its loop does.
struct Node final : node::MachineLoop {
  void post(Task task) override {
    const std::lock_guard lock(mutex);
    tasks.push_back(std::move(task));
  }
  void deliver(const node::Event&) override {}
  void run_tasks(node::Actions& actions) {
    const std::lock_guard lock(mutex);
    for (; !tasks.empty(); tasks.pop_front()) tasks.front()(SystemClock::instance().now(), actions);
  }
  void run() {
    node::Actions actions;
    run_tasks(actions);
    bench.machine.handle(node::Tick{}, SystemClock::instance().now(), actions);
    for (const auto& answer : node::bench::all<node::OrderAnswer>(actions)) calls.answer(answer);
  }
  size_t waiting() {
    const std::lock_guard lock(mutex);
    return tasks.size();
  }

  node::bench::Bench<node::Decode, node::DecodeOptions> bench{wire::Role::decode, 16, node::DecodeOptions{}};
  std::vector<std::byte> memory = std::vector<std::byte>(16 * node::bench::layout_of(2).page_bytes());
  BlockCalls calls{*this, bench.machine, "d7", memory.data()};
  std::mutex mutex;
  std::deque<Task> tasks;  // guarded by mutex
};

std::string post(const std::string& path, const std::string& body) {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

}  // namespace

TEST_CASE("host/block_calls: every condition of an eviction is read, and without one it must say all") {
  for (const char* body : {"{}", "{\"all\":false}", "{\"dry_run\":true}", "{\"prefix\":null}"}) {
    const auto nothing = parse_evict(body);
    REQUIRE_FALSE(nothing);
    for (const char* field : {"prefix", "tenant", "model", "older_ms", "\"all\":true"})
      CHECK_MESSAGE(nothing.error().what.find(field) != std::string::npos, body);
  }
  const auto both = parse_evict("{\"all\":true,\"tenant\":\"alice\"}");
  REQUIRE_FALSE(both);
  CHECK(both.error().where == "all");
  const auto all = parse_evict("{\"all\":true}");
  REQUIRE_OK(all);
  CHECK_FALSE(all->filter.prefix.has_value());
  CHECK_FALSE(all->dry_run);
  const auto order =
      parse_evict(R"({"prefix":")" + kHash + R"(","tenant":"alice","model":"q3","older_ms":7200000,"dry_run":true})");
  REQUIRE_OK(order);
  REQUIRE(order->filter.prefix.has_value());
  CHECK(order->filter.prefix->hex() == kHash);
  CHECK(order->filter.tenant == "alice");
  CHECK(order->filter.model == "q3");
  CHECK(order->filter.older == 7200s);
  CHECK(order->dry_run);
}

TEST_CASE("host/block_calls: a body that is no order is refused by the name of its field") {
  const std::pair<const char*, const char*> wrong[] = {
      {"", "body"},
      {"[]", "body"},
      {"{\"prefixes\":1}", "body"},
      {"{\"prefix\":\"12\"}", "prefix"},
      {"{\"prefix\":7}", "prefix"},
      {"{\"prefix\":\"00000000000000000000000000000000\"}", "prefix"},
      {"{\"tenant\":\"\"}", "tenant"},
      {"{\"tenant\":3}", "tenant"},
      {"{\"older_ms\":0}", "older_ms"},
      {"{\"older_ms\":99999999999999}", "older_ms"},
      {"{\"all\":1}", "all"},
      {"{\"dry_run\":1,\"all\":true}", "dry_run"},
  };
  for (const auto& [body, field] : wrong) {
    const auto order = parse_evict(body);
    REQUIRE_FALSE(order);
    CHECK(order.error().mc == err::kInvalidField);
    CHECK_MESSAGE(order.error().where == field, body);
  }
  CHECK_FALSE(parse_evict("{\"model\":\"" + std::string(5000, 'm') + "\"}"));
  CHECK_FALSE(parse_pin("{\"prefix\":\"" + kHash + "\"}"));
  CHECK_FALSE(parse_pin("{\"prefix\":\"" + kHash + "\",\"for_ms\":2592000001}"));
  CHECK_FALSE(parse_pin("{\"for_ms\":1}"));
  CHECK_FALSE(parse_unpin("{}"));
  const auto pin = parse_pin("{\"prefix\":\"" + kHash + "\",\"for_ms\":60000}");
  REQUIRE_OK(pin);
  CHECK(pin->time == 60s);
}

TEST_CASE("host/block_calls: the query of an export names a block, and may name the first one of the part") {
  const auto order = parse_export("prefix=" + kHash + "&first=20");
  REQUIRE_OK(order);
  CHECK(order->prefix.hex() == kHash);
  CHECK(order->first == 20);
  CHECK(order->bytes_max == kStreamPartBytes);
  for (const std::string& query :
       std::vector<std::string>{"", "first=1", "prefix=12", "prefix=" + kHash + "&last=1",
                                "prefix=" + kHash + "&first=-1", "prefix=" + kHash + "&first=4294967296"})
    CHECK_FALSE(parse_export(query).has_value());
}

TEST_CASE("host/block_calls: the end of the node answers the orders that are under way") {
  auto node = std::make_unique<Node>();
  const auto server = http::Server::open(
      {}, [&](const http::Request& request, const http::Responder& out) { node->calls.evict(request, out); });
  REQUIRE_OK(server);
  test::RawClient client((*server)->port());
  client.send(post("/blocks/evict", "{\"all\":true}"));
  const TimePoint deadline = test::patience();
  while (node->waiting() == 0 && SystemClock::instance().now() < deadline) std::this_thread::yield();
  node::Actions actions;
  node->run_tasks(actions);
  REQUIRE(actions.empty());  // the eviction waits for its turn
  node.reset();
  const std::string answer = client.read_response();
  CHECK(answer.starts_with("HTTP/1.1 503 "));
  CHECK(answer.find("the node is stopping") != std::string::npos);
}

TEST_CASE("host/block_calls: an order goes to the machine, and its result is the answer of the call") {
  Node node;
  const auto server = http::Server::open({}, [&](const http::Request& request, const http::Responder& out) {
    if (request.path == "/blocks/evict") return node.calls.evict(request, out);
    if (request.path == "/blocks/pin") return node.calls.pin(request, out);
    node.calls.unpin(request, out);
  });
  REQUIRE_OK(server);
  const TimePoint deadline = test::patience();
  const auto wait_for = [&](auto is_true) {
    while (!is_true() && SystemClock::instance().now() < deadline) std::this_thread::yield();
    REQUIRE(is_true());
  };
  const auto ask = [&](const std::string& path, const std::string& body) {
    test::RawClient client((*server)->port());
    client.send(post(path, body));
    wait_for([&] { return node.waiting() > 0; });
    for (int i = 0; i < 8; ++i) node.run();
    return client.read_response();
  };
  const std::string evicted = ask("/blocks/evict", "{\"all\":true}");
  CHECK(evicted.starts_with("HTTP/1.1 200 "));
  CHECK(evicted.find(R"("node":"me","memory_blocks":0,"memory_bytes":0,"disk_blocks":0)") != std::string::npos);
  const std::string pinned = ask("/blocks/pin", R"({"prefix":")" + kHash + R"(","for_ms":1000})");
  CHECK(pinned.starts_with("HTTP/1.1 404 "));
  CHECK(pinned.find(kHash) != std::string::npos);
  CHECK(pinned.find(R"("next":"mc-cache ls shows the blocks of the node")") != std::string::npos);
  CHECK(ask("/blocks/unpin", R"({"prefix":")" + kHash + R"("})").starts_with("HTTP/1.1 404 "));
}

TEST_CASE("host/block_calls: the order of a client that left is cancelled") {
  Node node;
  const auto server = http::Server::open(
      {}, [&](const http::Request& request, const http::Responder& out) { node.calls.evict(request, out); });
  REQUIRE_OK(server);
  const TimePoint deadline = test::patience();
  const auto wait_for = [&](auto is_true) {
    while (!is_true() && SystemClock::instance().now() < deadline) std::this_thread::yield();
    REQUIRE(is_true());
  };
  {
    test::RawClient client((*server)->port());
    client.send(post("/blocks/evict", "{\"all\":true}"));
    wait_for([&] { return node.waiting() > 0; });
  }
  wait_for([&] { return (*server)->stats().connections == 0; });
  node.run();
  CHECK_FALSE(node.bench.machine.orders().idle());
  node::Actions actions;
  node.calls.drop_gone(SystemClock::instance().now(), actions);
  CHECK(node.bench.machine.orders().idle());
}

}  // namespace block_calls_test
