#include "door/store_api.h"

#include "base/errors.h"
#include "http/client.h"
#include "test.h"

namespace store_api_test {
using namespace mc;
using namespace mc::door;
using http::Method;

namespace {

/// A store behind a real HTTP server on loopback, whose page lock is `is_open`.
class Door {
 public:
  explicit Door(bool is_open = true, uint64_t memory = 1 << 20)
      : lock_(is_open), api_(lock_, {.memory_bytes = memory, .value_bytes_max = 512 << 10}, clock_) {
    http::ServerOptions options;
    options.limits.body_bytes = api_.body_bytes_max();
    options.refuse_head = [this](const http::Request& head) { return api_.refuse_head(head); };
    auto server = http::Server::open(options, [this](const http::Request& request, const http::Responder& out) {
      const std::string_view path = request.path;
      api_.handle(request, path.size() > kRoot.size() ? path.substr(kRoot.size() + 1) : "", out);
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

  StoreApi& api() { return api_; }
  VirtualClock& clock() { return clock_; }

 private:
  static constexpr std::string_view kRoot = "/v1/store";
  VirtualClock clock_;
  PageLock lock_;
  StoreApi api_;
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
  CHECK(door.ask(Method::put, "/a?pin=1h", binary(90'000)).status == 201);
  const auto refused = door.ask(Method::put, "/b", binary(20'000));
  CHECK(refused.status == 507);
  CHECK(code_of(refused) == "store_full");
  CHECK(json_of(refused)["error"]["message"].as_string().find("pinned or leased") != std::string_view::npos);
  CHECK(json_of(refused)["error"]["next"].as_string().starts_with("unpin or remove values"));
  CHECK(door.ask(Method::put, "/b", binary((512 << 10) + 1)).status == 413);
  CHECK(door.ask(Method::post, "/a?op=unpin").status == 204);
  CHECK(door.ask(Method::put, "/b", binary(20'000)).status == 201);
  CHECK(door.ask(Method::head, "/a").status == 404);
}

TEST_CASE("door/store_api: a tenant's key opens that tenant's values alone, and no key opens nothing") {
  Door door(false);
  auto keys = ApiKeys::parse(
      "[tenant.one]\nkeys = [\"sk-one-111\"]\n[tenant.two]\nkeys = [\"sk-two-222\"]\n"
      "[tenant.chief]\nkeys = [\"sk-chief-3\"]\nadmin = true\n",
      "keys.toml");
  REQUIRE_OK(keys);
  CHECK(door.ask(Method::get, "/a").status == 403);  // neither tenants nor an admin key
  door.api().set_keys(std::make_shared<const ApiKeys>(std::move(*keys)));
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

}  // namespace store_api_test
