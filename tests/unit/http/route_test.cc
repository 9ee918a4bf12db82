#include "http/route.h"

#include <set>

#include "base/json.h"
#include "test.h"

using namespace mc;
using namespace mc::http;

namespace {

RouteMatch match(Method method, std::string_view path) {
  auto found = find_route(conductor_routes(), method, path);
  REQUIRE(std::holds_alternative<RouteMatch>(found));
  return std::get<RouteMatch>(found);
}

Response refusal(Method method, std::string_view path) {
  auto found = find_route(conductor_routes(), method, path);
  REQUIRE(std::holds_alternative<Response>(found));
  return std::get<Response>(found);
}

std::string code_of(const Response& response) {
  const auto json = Json::parse(response.body);
  REQUIRE_OK(json);
  return std::string((*json)["error"]["code"].as_string());
}

}  // namespace

TEST_CASE("http/route: paths lead to their routes and a wildcard takes the rest with its slashes") {
  CHECK(match(Method::post, "/v1/chat/completions").route == Route::chat_completions);
  CHECK(match(Method::get, "/v1/models").route == Route::models);
  CHECK(match(Method::get, "/v1/models/models/q3").rest == "models/q3");
  CHECK(match(Method::post, "/admin/drain").rest == "drain");
  CHECK(match(Method::head, "/health").route == Route::health);
}

TEST_CASE("http/route: an unknown path is 404, another method 405 with Allow, a foreign endpoint 404 by name") {
  for (const char* path : {"/", "/v1", "/v1/models/", "/admin/", "/v1/completions/", "/V1/models", ""}) {
    INFO(path);
    CHECK(refusal(Method::get, path).status == 404);
  }
  const Response wrong = refusal(Method::get, "/v1/completions");
  CHECK(wrong.status == 405);
  CHECK(code_of(wrong) == "method_not_allowed");
  CHECK(find_header(wrong.headers, "allow") == "POST, OPTIONS");
  CHECK(find_header(refusal(Method::del, "/health").headers, "allow") == "GET, HEAD, OPTIONS");
  const Response foreign = refusal(Method::post, "/v1/rerank");
  CHECK(foreign.status == 404);  // clients try again after a 501
  CHECK(foreign.body.find("/v1/rerank is not supported") != std::string::npos);
  CHECK(refusal(Method::post, "/v1/images/generations").status == 404);
}

TEST_CASE("http/route: OPTIONS lists the methods of a path") {
  const Response options = refusal(Method::options, "/v1/models");
  CHECK(options.status == 204);
  CHECK(find_header(options.headers, "allow") == "GET, HEAD, OPTIONS");
  CHECK(refusal(Method::options, "*").status == 204);
  CHECK(refusal(Method::options, "/nowhere").status == 404);
}

TEST_CASE("http/route: no table names a method and path twice, and workers serve what the conductor serves") {
  for (const auto table : {conductor_routes(), worker_routes()}) {
    std::set<std::pair<Method, std::string_view>> seen;
    for (const RouteEntry& entry : table) CHECK(seen.insert({entry.method, entry.path}).second);
  }
  for (const RouteEntry& entry : worker_routes())
    if (!entry.path.starts_with("/blocks") && entry.route != Route::prefill && entry.route != Route::store)
      CHECK(match(entry.method, entry.path).route == entry.route);
  for (const char* path : {"/blocks", "/prefill", "/v1/store/a"})  // the workers' alone
    CHECK(refusal(Method::get, path).status == 404);
  const std::pair<const char*, Route> orders[] = {{"/blocks/lookup", Route::block_lookup},
                                                  {"/blocks/evict", Route::block_evict},
                                                  {"/blocks/pin", Route::block_pin},
                                                  {"/blocks/unpin", Route::block_unpin},
                                                  {"/blocks/import", Route::block_import}};
  for (const auto& [path, route] : orders) {
    const auto order = find_route(worker_routes(), Method::post, path);
    REQUIRE(std::holds_alternative<RouteMatch>(order));
    CHECK(std::get<RouteMatch>(order).route == route);
    CHECK(std::get<Response>(find_route(worker_routes(), Method::get, path)).status == 405);
    CHECK(refusal(Method::post, path).status == 404);
  }
  const auto value = find_route(worker_routes(), Method::put, "/v1/store/a/b");
  REQUIRE(std::holds_alternative<RouteMatch>(value));
  CHECK(std::get<RouteMatch>(value).rest == "a/b");
  for (const char* path : {"/cluster", "/admin/drain", "/requests/x", "/v1/models"})  // the conductor's alone
    for (const Method method : {Method::get, Method::post})
      CHECK(std::get<Response>(find_route(worker_routes(), method, path)).status == 404);
}
