// The file behind mc-conductor --api-keys names the tenants that may call the HTTP API: TOML with one table a tenant.
// Keys are kept and compared as digests, so neither a dump nor the time of a comparison reveals one.
//
//   [tenant.search]
//   keys = ["sk-3f2a..."]     # bearer tokens; several while one is being replaced
//   weight = 2                # of the tokens, against tenants of the same class
//   priority = 0              # class; lower goes first
//   tokens_per_s = 20000      # quota over prompt and answer; absent = none
//   burst_tokens = 200000     # what may be used at once after a pause; absent = ten seconds of the quota
//   requests_max = 64         # unfinished at once, each of n answers counts; absent = any number
//   admin = true              # may drain nodes and see /cluster and every request; absent = no
//   salt = "search"           # of its KV blocks; absent = the tenant's name: no tenant finds another's prompts
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "door/bearer.h"
#include "sched/sched.h"

namespace mc::door {

class ApiKeys {
 public:
  static constexpr size_t kTenantsMax = 256, kKeysMax = 4096;

  struct Grant {
    std::string tenant, salt;
    bool admin = false;
  };

  /// MC1006 naming file and line: not TOML, an unknown key, a value out of range, a tenant without keys, a key that
  /// two have. `source` is for messages.
  static Result<ApiKeys> parse(std::string_view text, const std::string& source);
  /// Also when the file cannot be read, or other users may read it.
  static Result<ApiKeys> open(const std::string& path);

  const std::vector<sched::Tenant>& tenants() const { return tenants_; }
  /// The salt of a tenant's KV blocks.
  const std::string& salt_of(std::string_view tenant) const { return salts_.find(tenant)->second; }
  /// The tenant whose key "Bearer KEY" is; null where it is no tenant's.
  const Grant* find(std::string_view authorization) const;

 private:
  static Result<ApiKeys> read(std::string_view text, const std::string& source);

  std::vector<sched::Tenant> tenants_;
  std::map<std::string, std::string, std::less<>> salts_;  // by tenant
  std::map<KeyDigest, Grant> grants_;
};

}  // namespace mc::door
