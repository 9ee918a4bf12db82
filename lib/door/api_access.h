// Decides who may use which route of the HTTP API: probes need no key, the operators' pages need the page lock or an
// administrator's key, and everything else needs a tenant's key if there are tenants. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "door/api_keys.h"
#include "door/bearer.h"
#include "http/route.h"
#include "http/server.h"

namespace mc::door {

class ApiAccess {
 public:
  /// `lock` guards the operators' pages and outlives this. `on_loopback`: /metrics needs no key while there are no
  /// tenants.
  ApiAccess(const PageLock& lock, bool on_loopback) : lock_(lock), on_loopback_(on_loopback) {}
  /// null: every client may call, as the default tenant.
  void set_keys(std::shared_ptr<const ApiKeys> keys);
  /// The tenant as which the request is served; MC4009 or MC4026 when it may not use this route.
  Result<ApiKeys::Grant> grant(const http::Request& request, http::Route route) const;
  /// The refusal of a request that lacks its key or names no path of the API; for ServerOptions::refuse_head.
  std::optional<http::Response> refuse_head(const http::Request& head) const;

 private:
  const PageLock& lock_;
  const bool on_loopback_;
  mutable std::mutex mutex_;
  std::shared_ptr<const ApiKeys> keys_;  // guarded; the keys themselves do not change
};

}  // namespace mc::door
