#include "door/api_access.h"

#include "base/errors.h"
#include "test.h"

namespace api_access_test {
using namespace mc;
using namespace mc::door;
using http::Route;

namespace {

std::shared_ptr<const ApiKeys> two_tenants() {
  auto keys = ApiKeys::parse(
      "[tenant.plain]\nkeys = [\"sk-plain-1\"]\n[tenant.chief]\nkeys = [\"sk-chief-1\"]\nadmin = true\n", "keys.toml");
  REQUIRE_OK(keys);
  return std::make_shared<const ApiKeys>(std::move(*keys));
}

http::Request with_key(const std::string& key) {
  http::Request request;
  request.path = "/x";
  if (!key.empty()) request.headers.push_back({"authorization", "Bearer " + key});
  return request;
}

/// The error's number, or 0 when the request is admitted.
int refusal(const ApiAccess& access, const std::string& key, Route route) {
  const auto grant = access.grant(with_key(key), route);
  return grant ? 0 : grant.error().mc;
}

constexpr Route kProbes[] = {Route::health, Route::livez, Route::readyz};
constexpr Route kOperators[] = {Route::admin, Route::cluster, Route::request};

}  // namespace

TEST_CASE("door/api_access: probes need no key, whatever keys there are") {
  const PageLock closed(false);
  ApiAccess access(closed, false);
  for (const Route route : kProbes) CHECK(refusal(access, "", route) == 0);
  access.set_keys(two_tenants());
  for (const Route route : kProbes) CHECK(refusal(access, "sk-unknown", route) == 0);
}

TEST_CASE("door/api_access: with tenants a completion needs a known key, and is served as the key's tenant") {
  const PageLock closed(false);
  ApiAccess access(closed, true);
  CHECK(refusal(access, "", Route::completions) == 0);
  access.set_keys(two_tenants());
  CHECK(refusal(access, "", Route::completions) == err::kUnauthorized);
  CHECK(refusal(access, "sk-unknown", Route::completions) == err::kUnauthorized);
  const auto grant = access.grant(with_key("sk-plain-1"), Route::completions);
  REQUIRE_OK(grant);
  CHECK(grant->tenant == "plain");
}

TEST_CASE("door/api_access: operators' pages need the page lock or an administrator's key") {
  const PageLock closed(false), open(true);
  ApiAccess access(closed, true);
  for (const Route route : kOperators) CHECK(refusal(access, "", route) == err::kForbidden);
  access.set_keys(two_tenants());
  for (const Route route : kOperators) {
    CHECK(refusal(access, "sk-plain-1", route) == err::kForbidden);
    CHECK(refusal(access, "sk-chief-1", route) == 0);
  }
  const ApiAccess unlocked(open, true);
  for (const Route route : kOperators) CHECK(refusal(unlocked, "", route) == 0);
}

TEST_CASE("door/api_access: metrics need no key on loopback while there are no tenants") {
  const PageLock closed(false);
  ApiAccess local(closed, true), remote(closed, false);
  CHECK(refusal(local, "", Route::metrics) == 0);
  CHECK(refusal(remote, "", Route::metrics) == err::kForbidden);
  local.set_keys(two_tenants());
  CHECK(refusal(local, "", Route::metrics) == err::kUnauthorized);
}

}  // namespace api_access_test
