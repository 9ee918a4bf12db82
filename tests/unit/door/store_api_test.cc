#include "door/store_api.h"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "http/client.h"
#include "test.h"
#include "wire/value_group.h"

namespace store_api_test {
using namespace mc;
using namespace mc::door;
using http::Method;

namespace {

/// A disk in memory, whose writes first do what a test wants.
class FakeDisk final : public node::ValueDisk {
 public:
  std::atomic<int> loads{0};
  std::function<void()> on_load = [] {};
  std::atomic<const node::ValueBytes*> written{nullptr};  // the last value, which the store of values owns
  /// Tenants of the records that were written, in the order in which the writes began.
  std::vector<std::string> writers() {
    const std::lock_guard lock(mutex_);
    return writers_;
  }

  explicit FakeDisk(std::function<void()> on_write) : on_write_(std::move(on_write)) {}
  uint64_t new_number() override { return ++number_; }
  std::vector<wire::ValueRecord> take_found() override { return {}; }
  Result<void> write(const wire::ValueRecord& record, const node::ValueBytes* value) override {
    {
      const std::lock_guard lock(mutex_);
      writers_.push_back(record.tenant);
    }
    on_write_();
    const std::lock_guard lock(mutex_);
    if (value != nullptr) bytes_[record.data] = value->view(), written = value;
    return {};
  }
  Result<void> move(const wire::ValueRecord& record, const node::ValueKey&, uint64_t) override {
    return write(record, nullptr);
  }
  Result<void> drop(uint64_t) override { return {}; }
  Result<void> drop_key(const node::ValueKey&) override { return {}; }
  Result<void> take_back(uint64_t) override { return {}; }
  Result<node::SharedValue> load(const node::DiskCopy& copy, uint64_t, uint32_t) override {
    ++loads;
    on_load();
    const std::lock_guard lock(mutex_);
    return node::SharedValue(std::make_shared<const node::ValueBytes>(bytes_.at(copy.data)));
  }
  void keep_room() override {}
  uint64_t used_bytes() const override { return 0; }
  uint64_t capacity_bytes() const override { return 1 << 20; }

 private:
  const std::function<void()> on_write_;
  std::atomic<uint64_t> number_{0};
  std::mutex mutex_;
  std::map<uint64_t, std::string> bytes_;
  std::vector<std::string> writers_;
};

/// Calls of arrive() wait until open(), but for as many as let_pass() says.
class Gate {
 public:
  void arrive() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return is_open_ || passes_ > 0; });
    if (!is_open_) --passes_;
  }
  void let_pass(int count) {
    const std::lock_guard lock(mutex_);
    passes_ += count;
    changed_.notify_all();
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  int arrived() {
    const std::lock_guard lock(mutex_);
    return arrived_;
  }
  bool wait_for(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 30s, [&] { return arrived_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0, passes_ = 0;
  bool is_open_ = false;
};

/// Another cache node, c1, which alone holds the value of "shared" with replicas.
class Neighbour final : public ReplicaLink {
 public:
  Members members() const override {
    if (awaits_list) return {.self = "c0", .others = {}, .awaits_list = true};
    return is_gone ? Members{.self = "c0", .others = {}} : Members{.self = "c0", .others = {{"c1", {}}}};
  }
  Answers call_all(std::span<const Node> to, const wire::ReplicaCall& call, Duration, const Suffices&) override {
    wire::ReplicaAnswer answer;
    const bool is_offer = call.op == static_cast<uint32_t>(wire::ReplicaOp::offer);
    if (call.name != "shared" && !is_offer) answer.mc = err::kNotFound, answer.what = "no value";
    if (is_offer) ++offers;
    if (is_offer && !call.replaces) answer.mc = err::kValueDiffers, answer.what = "another value";
    answer.value = {.bytes = 5, .set = {.version = 1, .copies = 1, .holders = {"c1"}}};
    answer.changed = answer.replaced = true;
    return Answers(to.size(), answer);
  }
  void serve(Handler) override {}
  std::atomic<int> offers{0};
  std::atomic<bool> is_gone{false};
  std::atomic<bool> awaits_list{false};
};

/// A store behind a real HTTP server on loopback, whose page lock is `is_open`.
class Door {
 public:
  explicit Door(bool is_open = true, uint64_t memory = 1 << 20, std::unique_ptr<node::ValueDisk> disk = nullptr)
      : lock_(is_open) {
    api_.emplace(lock_, node::ValueLimits{.memory_bytes = memory, .value_bytes_max = 512 << 10}, clock_,
                 std::move(disk));
    http::ServerOptions options;
    options.metrics = &metrics_;
    options.limits.body_bytes = api_->body_bytes_max();
    options.refuse_head = [this](const http::Request& head) { return api_->refuse_head(head); };
    auto server = http::Server::open(options, [this](http::Request request, const http::Responder& out) {
      std::string key = request.path.size() > kRoot.size() ? request.path.substr(kRoot.size() + 1) : "";
      api_->handle(std::move(request), std::move(key), out);
      const std::lock_guard lock(handled_mutex_);
      ++handled_;
      handled_changed_.notify_all();
    });
    REQUIRE_OK(server);
    server_ = std::move(*server);
  }

  http::Response ask(Method method, const std::string& rest, std::string body = "", http::Headers headers = {}) {
    auto got = http::fetch(method, server_->url(), std::string(kRoot) + rest, headers, std::move(body),
                           SystemClock::instance().now() + 30s);
    REQUIRE_OK(got);
    return *got;
  }
  http::Response as(const std::string& key, Method method, const std::string& rest, std::string body = "") {
    return ask(method, rest, std::move(body), {{"Authorization", "Bearer " + key}});
  }

  /// Until the server has seen that others closed theirs.
  bool wait_for_connections(int count) {
    const std::string line = "mc_http_connections " + std::to_string(count) + "\n";
    const TimePoint end = SystemClock::instance().now() + 30s;
    while (metrics_.expose().find(line) == std::string::npos)
      if (SystemClock::instance().now() > end) return false;
    return true;
  }
  /// Until so many calls have been answered, refused or handed to the pool.
  bool wait_for_handled(int count) {
    std::unique_lock lock(handled_mutex_);
    return handled_changed_.wait_for(lock, 30s, [&] { return handled_ >= count; });
  }
  StoreApi& api() { return *api_; }
  /// Waits for the calls under way.
  void stop() {
    server_.reset();
    api_.reset();
  }
  std::string url() const { return server_->url(); }
  VirtualClock& clock() { return clock_; }

 private:
  static constexpr std::string_view kRoot = "/v1/store";
  Metrics metrics_;
  VirtualClock clock_;
  PageLock lock_;
  std::optional<StoreApi> api_;
  std::mutex handled_mutex_;
  std::condition_variable handled_changed_;
  int handled_ = 0;                       // calls that the API has taken in
  std::unique_ptr<http::Server> server_;  // last: its thread uses the rest
};

Json json_of(const http::Response& response) {
  auto json = Json::parse(response.body.substr(0, response.body.find('\n')));
  REQUIRE_OK(json);
  return *json;
}

std::string code_of(const http::Response& response) {
  return std::string(json_of(response)["error"]["code"].as_string());
}

/// Every byte value, so that nothing takes a value for text.
std::string binary(size_t size) {
  std::string out(size, 0);
  for (size_t i = 0; i < size; ++i) out[i] = static_cast<char>(i * 7 + i / 256);
  return out;
}

}  // namespace

TEST_CASE("door/store_api: a value comes back byte for byte with its checksum, and HEAD gives its size alone") {
  Door door;
  const std::string value = binary(300'000);
  const auto put = door.ask(Method::put, "/a%2Fb%20c?ttl=10m", value);
  CHECK(put.status == 201);
  CHECK(json_of(put)["outcome"].as_string() == "created");
  const auto got = door.ask(Method::get, "/a/b%20c");
  CHECK(got.status == 200);
  CHECK(got.body == value);
  CHECK(http::find_header(got.headers, "x-mc-crc32c") == json_of(put)["crc32c"].as_string());
  CHECK(http::find_header(got.headers, "x-mc-ttl-ms") == "600000");
  const auto head = door.ask(Method::head, "/a/b%20c");
  CHECK(head.status == 200);
  CHECK(head.body.empty());
  CHECK(http::find_header(head.headers, "content-length") == "300000");
  CHECK(door.ask(Method::head, "/other").status == 404);
  CHECK(door.ask(Method::del, "/a/b%20c").status == 204);
  CHECK(door.ask(Method::get, "/a/b%20c").status == 404);
}

TEST_CASE("door/store_api: a group is put whole, and each member comes back alone with its checksum") {
  Door door;
  const std::string large = binary(200'000);
  const auto group = wire::encode_group({{"layer.1", large}, {"layer.0", "first"}});
  REQUIRE_OK(group);
  CHECK(door.ask(Method::put, "/g?group=true", *group).status == 201);
  const auto member = door.ask(Method::get, "/g?member=layer.1");
  CHECK(member.status == 200);
  CHECK(member.body == large);
  CHECK(http::find_header(member.headers, "x-mc-crc32c") ==
        json_of(door.ask(Method::put, "/alone", large))["crc32c"].as_string());
  CHECK(door.ask(Method::get, "/g").body == *group);
  const Json list = json_of(door.ask(Method::get, "/g?members=true"));
  REQUIRE(list["members"].size() == 2);
  CHECK(list["members"][0]["name"].as_string() == "layer.0");
  CHECK(list["members"][1]["bytes"].as_int() == 200'000);
  CHECK(list["members"][1]["crc32c"].as_string() == http::find_header(member.headers, "x-mc-crc32c"));
  const auto missing = door.ask(Method::get, "/g?member=layer.2");
  CHECK(missing.status == 404);
  const std::string next{json_of(missing)["error"]["next"].as_string()};
  CHECK(next.find("--members") != std::string::npos);  // the user may have come by mc-cache
  CHECK(door.ask(Method::del, "/g").status == 204);
  for (const char* gone : {"/g", "/g?member=layer.0", "/g?member=layer.1", "/g?members=true"})
    CHECK(door.ask(Method::get, gone).status == 404);
}

TEST_CASE("door/store_api: a get of one member of a group sums this member alone") {
  auto made = std::make_unique<FakeDisk>([] {});
  FakeDisk& disk = *made;
  Door door(true, 1 << 20, std::move(made));
  const auto group = wire::encode_group({{"a", "first"}, {"b", "second"}});
  REQUIRE_OK(group);
  CHECK(door.ask(Method::put, "/g?group=true&durability=d2", *group).status == 201);
  REQUIRE(disk.written != nullptr);
  const_cast<char&>(disk.written.load()->view().back()) = 'X';  // memory changes under the store
  CHECK(door.ask(Method::get, "/g?member=a").body == "first");
  CHECK(json_of(door.ask(Method::get, "/g?members=true"))["members"].size() == 2);
  CHECK(door.ask(Method::get, "/g?member=c").status == 404);
  CHECK(disk.loads == 0);  // as it is when the whole group is found to be damaged
  CHECK(door.ask(Method::get, "/g?member=b").body == "second");
  CHECK(disk.loads == 1);
}

TEST_CASE("door/store_api: what is no whole group is not put as one, and none of its members is there") {
  Door door;
  const auto group = wire::encode_group({{"a", "first"}, {"b", "second"}});
  REQUIRE_OK(group);
  const auto control = wire::encode_group({{"a\x01", "first"}});
  REQUIRE_OK(control);
  const std::string_view whole = *group;
  for (const std::string_view bad : {whole.substr(0, whole.size() - 1), whole.substr(0, 30), whole.substr(1),
                                     std::string_view("text"), std::string_view(), std::string_view(*control)}) {
    const auto refused = door.ask(Method::put, "/g?group=true", std::string(bad));
    CHECK(refused.status == 400);
    CHECK(json_of(refused)["error"]["param"].as_string() == "group");
    CHECK(door.ask(Method::head, "/g").status == 404);
  }
  CHECK(door.ask(Method::put, "/text", "text").status == 201);
  for (const char* query : {"/text?member=a", "/text?members=true", "/text?member=", "/text?member=a&members=true"}) {
    const auto refused = door.ask(Method::get, query);
    CHECK(refused.status == 400);
    CHECK(json_of(refused)["error"]["param"].as_string() == "member");
  }
  const auto batch = door.ask(Method::post, "", "{\"ops\":[{\"op\":\"get\",\"key\":\"text\",\"member\":\"a\"}]}\n");
  CHECK(batch.status == 400);
}

TEST_CASE("door/store_api: bytes that do not match the client's checksum are not kept") {
  Door door;
  const auto refused = door.ask(Method::put, "/a", "123456789", {{"x-mc-crc32c", "e3069284"}});
  CHECK(refused.status == 400);
  CHECK(json_of(refused)["error"]["param"].as_string() == "crc32c");
  CHECK(door.ask(Method::head, "/a").status == 404);
  CHECK(door.ask(Method::put, "/a", "123456789", {{"x-mc-crc32c", "e3069283"}}).status == 201);
  for (const char* bad : {"e306928", "e30692834", "0xe30692", "-3069283", "g3069283"})
    CHECK(door.ask(Method::put, "/b", "123456789", {{"x-mc-crc32c", bad}}).status == 400);
}

TEST_CASE("door/store_api: an unknown, doubled or senseless field is named, and nothing is done") {
  Door door;
  for (const char* query : {"tll=10s", "ttl=0s", "ttl=2y", "ttl=-1s", "ttl=1s&ttl=1s", "replace=maybe", "pin",
                            "ttl=%zz", "pin=400d", "tenant="}) {
    CAPTURE(query);
    CHECK(door.ask(Method::put, std::string("/a?") + query, "x").status == 400);
  }
  CHECK(door.ask(Method::head, "/a").status == 404);
  CHECK(door.ask(Method::put, "/" + std::string(1025, 'k'), "x").status == 400);
  CHECK(door.ask(Method::put, "/a%01", "x").status == 400);
  CHECK(door.ask(Method::post, "/a?op=remove").status == 400);
  CHECK(door.ask(Method::post, "/a?op=pin").status == 400);
  CHECK(door.ask(Method::get, "?limit=0").status == 400);
  CHECK(door.ask(Method::get, "?limit=1001").status == 400);
}

TEST_CASE("door/store_api: a full store says what is needed, what is held and what to do") {
  Door door(true, 100'000);
  CHECK(door.ask(Method::put, "/a?pin=1h", binary(40'000)).status == 201);
  const auto refused = door.ask(Method::put, "/b", binary(80'000));
  CHECK(refused.status == 507);
  CHECK(code_of(refused) == "store_full");
  CHECK(json_of(refused)["error"]["message"].as_string().find("pinned or leased") != std::string_view::npos);
  CHECK(json_of(refused)["error"]["next"].as_string().starts_with("unpin or remove values"));
  const auto held = door.ask(Method::put, "/b?pin=1h", binary(20'000));
  CHECK(held.status == 507);
  CHECK(json_of(held)["error"]["message"].as_string().find("at most half of the store's") != std::string_view::npos);
  CHECK(door.ask(Method::put, "/b", binary((512 << 10) + 1)).status == 413);
  CHECK(door.ask(Method::post, "/a?op=unpin").status == 204);
  CHECK(door.ask(Method::put, "/b", binary(80'000)).status == 201);
  CHECK(door.ask(Method::head, "/a").status == 404);
}

TEST_CASE("door/store_api: slow readers of one tenant leave room for the answers of others") {
  AnswersUnderWay answers;
  CHECK(answers.add("slow", 60, 100, 50));  // the only answer of a tenant always fits its share
  CHECK_FALSE(answers.add("slow", 1, 100, 50));
  CHECK(answers.add("other", 40, 100, 50));
  CHECK_FALSE(answers.add("third", 1, 100, 50));
  answers.remove("slow", 60);
  CHECK(answers.add("third", 30, 100, 50));
  CHECK_FALSE(answers.add("other", 11, 100, 50));
  CHECK(answers.add("slow", 30, 100, 50));
}

TEST_CASE("door/store_api: a key whose value another node holds with replicas gets no second value here") {
  Neighbour other;
  Door door;
  door.api().join(other, {});
  CHECK(door.ask(Method::put, "/own", "value").status == 201);
  CHECK(other.offers == 0);
  CHECK(code_of(door.ask(Method::put, "/shared", "value")) == "value_differs");
  CHECK(door.ask(Method::put, "/shared?replace=true", "value").status == 200);
  CHECK(other.offers == 2);
  const auto refused = door.ask(Method::post, "/own?op=copy&to=shared&replace=true");
  CHECK(refused.status == 400);
  CHECK(refused.body.find("the value of the new key has replicas on other nodes") != std::string::npos);
  CHECK(door.ask(Method::post, "/own?op=copy&to=copied").status == 201);
  const std::string listed = door.ask(Method::get, "").body;
  CHECK(listed.find("copied") != std::string::npos);
  CHECK(listed.find("shared") == std::string::npos);
}

TEST_CASE("door/store_api: a batch is done once, also when an operation in its middle needs other nodes") {
  Neighbour other;
  Door door;
  door.api().join(other, {});
  CHECK(door.ask(Method::put, "/own", "value").status == 201);
  CHECK(door.ask(Method::put, "/both?replicas=2&replace=true", "value").status == 200);
  other.is_gone = true;  // a key that is not here is nowhere, and the one with replicas still needs the other holder
  const char* kOps = R"({"ops":[{"op":"remove","key":"own"},{"op":"remove","key":"both"}]})";
  const Json answer = json_of(door.ask(Method::post, "", std::string(kOps) + "\n"));
  const auto results = answer["results"].items();
  REQUIRE(results.size() == 2);
  CHECK(results[0]["status"].as_int() == 200);
  CHECK(results[1]["error"]["code"].as_string() == "peer_unreachable");
}

TEST_CASE("door/store_api: a member without a list of the others does not deny a value, and takes values of its own") {
  Neighbour other;
  Door door;
  door.api().join(other, {});
  other.awaits_list = true;
  const auto got = door.ask(Method::get, "/shared");
  CHECK(got.status == 503);
  CHECK(code_of(got) == "peer_unreachable");
  CHECK(door.ask(Method::head, "/shared").status == 503);
  CHECK(code_of(door.ask(Method::del, "/shared")) == "peer_unreachable");
  CHECK(code_of(door.ask(Method::put, "/both?replicas=2", "value")) == "peer_unreachable");
  CHECK(door.ask(Method::put, "/own", "value").status == 201);
  CHECK(door.ask(Method::get, "/own").body == "value");
  other.awaits_list = false;
  CHECK(door.ask(Method::get, "/other").status == 404);
}

TEST_CASE("door/store_api: a tenant's key opens that tenant's values alone, and no key opens nothing") {
  Door door(false);
  auto keys = ApiKeys::parse(
      "[tenant.one]\nkeys = [\"sk-one-111\"]\n[tenant.two]\nkeys = [\"sk-two-222\"]\n"
      "[tenant.chief]\nkeys = [\"sk-chief-3\"]\nadmin = true\n",
      "keys.toml");
  REQUIRE_OK(keys);
  CHECK(door.ask(Method::get, "/a").status == 403);  // neither tenants nor an admin key
  CHECK_FALSE(door.api().has_keys());
  door.api().set_keys(std::make_shared<const ApiKeys>(std::move(*keys)));
  CHECK(door.api().has_keys());
  CHECK(door.ask(Method::put, "/a", "x").status == 401);
  CHECK(door.as("sk-unknown", Method::put, "/a", "x").status == 401);
  CHECK(door.as("sk-one-111", Method::put, "/a", "one").status == 201);
  CHECK(door.as("sk-two-222", Method::get, "/a").status == 404);
  CHECK(door.as("sk-two-222", Method::put, "/a", "two").status == 201);
  CHECK(door.as("sk-two-222", Method::get, "/a?tenant=one").status == 403);
  CHECK(door.as("sk-one-111", Method::get, "/a?tenant=one").body == "one");
  CHECK(door.as("sk-chief-3", Method::get, "/a?tenant=two").body == "two");
  const auto listed = json_of(door.as("sk-two-222", Method::get, ""));
  CHECK(listed["values"].size() == 1);
  CHECK(listed["values"][0]["key"].as_string() == "a");
  CHECK(listed["values"][0]["bytes"].as_int() == 3);
  CHECK(door.as("sk-one-111", Method::put, "/large?pin=1h", std::string(10'000, 'x')).status == 201);
  const auto own = json_of(door.as("sk-two-222", Method::get, ""));  // the other tenant's bytes do not show
  CHECK(own["used_bytes"].as_int() == static_cast<int64_t>(3 + 3 + 1 + node::kValueOverheadBytes));
  CHECK(own["held_bytes"].as_int() == 0);
}

TEST_CASE("door/store_api: a batch does its operations in order, and one that fails does not end the others") {
  Door door;
  const std::string line =
      "{\"ops\":[{\"op\":\"put\",\"key\":\"a\",\"bytes\":3},{\"op\":\"put\",\"key\":\"b\",\"bytes\":2,\"crc32c\":"
      "\"00000000\"},{\"op\":\"get\",\"key\":\"a\"},{\"op\":\"get\",\"key\":\"none\"},{\"op\":\"copy\",\"key\":\"a\","
      "\"to\":\"c\"},{\"op\":\"exist\",\"key\":\"c\"},{\"op\":\"remove\",\"key\":\"a\"},{\"op\":\"get\",\"key\":\"c\"}]"
      "}";
  const auto done = door.ask(Method::post, "", line + "\n" + "abcxy");
  CHECK(done.status == 200);
  const Json results = json_of(done)["results"];
  const int wanted[] = {201, 400, 200, 404, 201, 200, 200, 200};
  REQUIRE(results.size() == std::size(wanted));
  for (size_t i = 0; i < results.size(); ++i) CHECK(results[i]["status"].as_int() == wanted[i]);
  CHECK(done.body.substr(done.body.find('\n') + 1) == "abcabc");
}

TEST_CASE("door/store_api: a tenant of many calls for the disk does not pass one of few at the same address") {
  constexpr int kThreads = 32;  // of the pool
  Gate gate;
  auto made = std::make_unique<FakeDisk>([&] { gate.arrive(); });
  FakeDisk& disk = *made;
  Door door(false, 1 << 20, std::move(made));
  auto keys =
      ApiKeys::parse("[tenant.one]\nkeys = [\"sk-one-111\"]\n[tenant.two]\nkeys = [\"sk-two-222\"]\n", "keys.toml");
  REQUIRE_OK(keys);
  door.api().set_keys(std::make_shared<const ApiKeys>(std::move(*keys)));
  std::vector<std::future<int>> answers;
  const auto put = [&](const std::string& key) {
    const std::string path = "/k" + std::to_string(answers.size()) + "?durability=d2";
    answers.push_back(
        std::async(std::launch::async, [&door, key, path] { return door.as(key, Method::put, path, "v").status; }));
  };
  for (int i = 0; i < kThreads; ++i) put("sk-one-111");
  CHECK(gate.wait_for(kThreads));
  for (int i = 0; i < 8; ++i) put("sk-one-111");
  CHECK(door.wait_for_handled(kThreads + 8));
  put("sk-two-222");
  CHECK(door.wait_for_handled(kThreads + 9));
  gate.let_pass(4);
  CHECK(gate.wait_for(kThreads + 4));
  CHECK(std::ranges::count(disk.writers(), "two") == 1);
  gate.open();
  for (auto& answer : answers) CHECK(answer.get() == 201);
}

TEST_CASE("door/store_api: a copy that gets no turn to compare values on disk is told to come again") {
  Gate gate;
  auto made = std::make_unique<FakeDisk>([] {});
  made->on_load = [&] { gate.arrive(); };
  Door door(true, 100'000, std::move(made));
  for (const char* key : {"a", "b", "c", "d", "e", "f"})  // memory holds the last two
    CHECK(door.ask(Method::put, std::string("/") + key + "?durability=d2", binary(40'000)).status == 201);
  auto first = std::async(std::launch::async, [&] { return door.ask(Method::post, "/a?op=copy&to=b").status; });
  CHECK(gate.wait_for(1));
  const auto refused = door.ask(Method::post, "/c?op=copy&to=d");
  CHECK(refused.status == 429);
  CHECK(code_of(refused) == "queue_full");
  CHECK(http::find_header(refused.headers, "Retry-After") == "1");
  gate.open();
  CHECK(first.get() == 200);
  CHECK(door.ask(Method::post, "/c?op=copy&to=d").status == 200);
}

TEST_CASE("door/store_api: a batch does nothing past its deadline") {
  Gate gate;
  Door door(true, 1 << 20, std::make_unique<FakeDisk>([&] { gate.arrive(); }));
  std::string line = "{\"ops\":[";
  for (int i = 0; i < 50; ++i)
    line += "{\"op\":\"put\",\"key\":\"k" + std::to_string(i) + "\",\"bytes\":1,\"durability\":\"d2\"},";
  line.back() = ']';
  CHECK(door.ask(Method::post, "", line + "}\n" + std::string(50, 'x'), {{"x-mc-deadline-ms", "10000"}}).status == 504);
  REQUIRE(gate.wait_for(1));
  gate.open();
  CHECK(door.ask(Method::put, "/k0?durability=d2&replace=true", "y").status == 200);  // behind the batch's own put
  door.stop();
  CHECK(gate.arrived() == 2);
}

TEST_CASE("door/store_api: a batch reads no value from disk that its answer has no room for") {
  auto made = std::make_unique<FakeDisk>([] {});
  FakeDisk& disk = *made;
  Door door(true, 600 << 10, std::move(made));  // values have at most 512 KiB, and so has the answer of a batch
  for (const std::string name : {"/a", "/b", "/c"})
    CHECK(door.ask(Method::put, name + "?durability=d2", binary(400 << 10)).status == 201);
  const std::string get = "{\"op\":\"get\",\"key\":\"";
  const auto done = door.ask(Method::post, "", "{\"ops\":[" + get + "a\"}," + get + "b\"}," + get + "c\"}]}\n");
  const Json results = json_of(done)["results"];
  REQUIRE(results.size() == 3);
  CHECK(results[0]["status"].as_int() == 200);
  for (const size_t i : {1, 2}) CHECK(results[i]["status"].as_int() == 413);
  CHECK(disk.loads == 1);
}

TEST_CASE("door/store_api: a get says whether its value was in memory or on disk alone") {
  Door door(true, 600 << 10, std::make_unique<FakeDisk>([] {}));
  for (const std::string name : {"/a", "/b", "/c"})
    CHECK(door.ask(Method::put, name + "?durability=d2", binary(400 << 10)).status == 201);
  const auto tier = [&](Method method) {
    const auto answer = door.ask(method, "/a");
    CHECK(answer.status == 200);
    return std::string(http::find_header(answer.headers, "x-mc-tier"));
  };
  CHECK(tier(Method::head) == "disk");
  CHECK(tier(Method::get) == "disk");
  CHECK(tier(Method::get) == "memory");
  CHECK(tier(Method::head) == "memory");
  const auto done = door.ask(Method::post, "", "{\"ops\":[{\"op\":\"get\",\"key\":\"b\"}]}\n");
  CHECK(json_of(done)["results"][0]["tier"].as_string() == "disk");
}

TEST_CASE("door/store_api: a batch whose lengths lie is refused whole") {
  Door door;
  const auto refused = [&](const std::string& body) { return door.ask(Method::post, "", body).status == 400; };
  CHECK(refused("{\"ops\":[{\"op\":\"put\",\"key\":\"a\",\"bytes\":4}]}\nabc"));
  CHECK(refused("{\"ops\":[{\"op\":\"put\",\"key\":\"a\",\"bytes\":2}]}\nabc"));
  CHECK(refused("{\"ops\":[{\"op\":\"put\",\"key\":\"a\",\"bytes\":18446744073709551615}]}\nabc"));
  CHECK(refused("{\"ops\":[{\"op\":\"put\",\"key\":\"a\",\"bytes\":-1}]}\nabc"));
  CHECK(refused("{\"ops\":[{\"op\":\"put\",\"key\":\"a\"}]}\nabc"));
  CHECK(refused("{\"ops\":[]}\n"));
  CHECK(refused("{\"ops\":[{\"op\":\"get\",\"key\":\"a\"}]}"));  // no end of line
  CHECK(refused("{\"ops\":[{\"op\":\"get\",\"key\":\"a\"}],\"more\":1}\n"));
  CHECK(refused("{\"ops\":[{\"op\":\"get\",\"key\":[\"a\"]}]}\n"));
  CHECK(refused("{\"ops\":[7]}\n"));
  CHECK(refused("[]\n"));
  CHECK(refused(""));
  std::string many = "{\"ops\":[{\"op\":\"get\",\"key\":\"a\"}";
  for (int i = 0; i < 1024; ++i) many += ",{\"op\":\"get\",\"key\":\"a\"}";
  CHECK(refused(many + "]}\n"));
  CHECK(door.ask(Method::head, "/a").status == 404);
}

TEST_CASE("door/store_api: a value is gone when its time to live is over, and the metrics say why") {
  Door door;
  Metrics metrics;
  CHECK(door.ask(Method::put, "/a?ttl=10s", "x").status == 201);
  door.api().update(metrics);
  CHECK(metrics.expose().find("mc_store_values 1") != std::string::npos);
  door.clock().advance(10s);
  CHECK(door.ask(Method::get, "/a").status == 404);
  door.api().update(metrics);
  CHECK(metrics.expose().find("mc_store_values 0") != std::string::npos);
  CHECK(metrics.expose().find("mc_store_ended_total{reason=\"expired\"} 1") != std::string::npos);
  CHECK(metrics.expose().find("mc_store_gets_total{outcome=\"miss\"} 1") != std::string::npos);
}

TEST_CASE("door/store_api: a call on a disk that finds no memory fails alone, and later calls are served") {
  std::atomic<bool> is_short{true};
  Door door(true, 1 << 20, std::make_unique<FakeDisk>([&] {
              if (is_short) throw std::bad_alloc();
            }));
  const auto refused = door.ask(Method::put, "/a?durability=d2", "x");
  CHECK(refused.status == 503);
  CHECK(code_of(refused) == "not_enough_memory");
  CHECK(door.ask(Method::put, "/b?durability=d1", "x").status == 201);  // its write comes behind the answer
  is_short = false;
  CHECK(door.ask(Method::put, "/a?durability=d2", "x").status == 201);
  CHECK(door.ask(Method::get, "/a").body == "x");
}

TEST_CASE("door/store_api: calls that wait for a disk or for a key end at their deadlines, and others are served") {
  Gate gate;
  Door door(true, 1 << 20, std::make_unique<FakeDisk>([&] { gate.arrive(); }));
  CHECK(door.ask(Method::put, "/memory", "m").status == 201);
  CHECK(door.ask(Method::put, "/a?durability=d2", "x", {{"x-mc-deadline-ms", "0"}}).status == 400);
  const http::Headers soon = {{"x-mc-deadline-ms", "100"}};
  for (int ms = 100; gate.arrived() == 0; ms *= 3) {  // on a busy machine the deadline passes before the write begins
    REQUIRE(ms < 30'000);
    const auto late = door.ask(Method::put, "/a?durability=d2", "x", {{"x-mc-deadline-ms", std::to_string(ms)}});
    CHECK(late.status == 504);
    CHECK(code_of(late) == "deadline_exceeded");
  }
  // The first call still has the key. The second one gives up at its deadline and does nothing later.
  CHECK(door.ask(Method::put, "/a?durability=d2", "y", soon).status == 504);
  CHECK(door.ask(Method::del, "/a", "", soon).status == 504);
  CHECK(door.ask(Method::get, "/memory").body == "m");
  gate.open();
  CHECK(door.ask(Method::put, "/a?durability=d2&replace=true", "z").status == 200);
  CHECK(gate.arrived() == 2);
  CHECK(door.ask(Method::get, "/a").body == "z");
}

TEST_CASE("door/store_api: calls of clients that left while they waited are not done") {
  constexpr int kThreads = 32;
  Gate gate;
  Door door(true, 1 << 20, std::make_unique<FakeDisk>([&] { gate.arrive(); }));
  std::vector<std::thread> clients;
  for (int i = 0; i < kThreads; ++i)
    clients.emplace_back([&, i] { (void)door.ask(Method::put, "/k" + std::to_string(i) + "?durability=d2", "x"); });
  CHECK(gate.wait_for(kThreads));
  auto gone =
      http::fetch(Method::put, door.url(), "/v1/store/gone?durability=d2", {}, "x", SystemClock::instance().now() + 2s);
  CHECK(!gone.has_value());
  CHECK(door.wait_for_handled(kThreads + 1));
  CHECK(door.wait_for_connections(kThreads));
  gate.open();
  for (std::thread& client : clients) client.join();
  CHECK(door.ask(Method::put, "/last?durability=d2", "x").status == 201);
  CHECK(door.ask(Method::head, "/gone").status == 404);
  CHECK(door.ask(Method::head, "/k0").status == 200);
}

}  // namespace store_api_test
