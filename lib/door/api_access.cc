#include "door/api_access.h"

#include "base/errors.h"

namespace mc::door {

void ApiAccess::set_keys(std::shared_ptr<const ApiKeys> keys) {
  const std::lock_guard lock(mutex_);
  keys_ = std::move(keys);
}

Result<ApiKeys::Grant> ApiAccess::grant(const http::Request& request, http::Route route) const {
  using http::Route;
  if (route == Route::health || route == Route::livez || route == Route::readyz) return ApiKeys::Grant{};
  std::shared_ptr<const ApiKeys> keys;
  {
    const std::lock_guard lock(mutex_);
    keys = keys_;
  }
  // /metrics has figures of every tenant.
  const bool for_operators = route == Route::admin || route == Route::cluster || route == Route::request ||
                             (route == Route::metrics && (keys || !on_loopback_));
  const auto* found = keys ? keys->find(http::find_header(request.headers, "authorization")) : nullptr;
  if (for_operators) {
    if (lock_.admits(request) || (found && found->admin)) return found ? *found : ApiKeys::Grant{};
    if (found)
      return user_error(err::kForbidden, "tenant " + found->tenant + " may not use " + request.path, "Authorization");
    if (!keys) return lock_.refusal(request.path);
  }
  if (!keys) return ApiKeys::Grant{};
  if (found) return *found;
  const bool has_key = !http::find_header(request.headers, "authorization").empty();
  return user_error(err::kUnauthorized, has_key ? "unknown API key" : "no API key: send Authorization: Bearer KEY",
                    "Authorization");
}

std::optional<http::Response> ApiAccess::refuse_head(const http::Request& head) const {
  const auto found = http::find_route(http::conductor_routes(), head.method, head.path);
  if (const auto* answer = std::get_if<http::Response>(&found)) return *answer;
  const auto granted = grant(head, std::get<http::RouteMatch>(found).route);
  if (!granted) return http::error_response(granted.error());
  return std::nullopt;
}

}  // namespace mc::door
