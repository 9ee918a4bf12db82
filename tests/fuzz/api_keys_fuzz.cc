// links: door
// API key files: what parses has tenants with keys that a queue takes, and lets in nobody without one.
#include <cstdlib>
#include <string_view>

#include "door/api_keys.h"
#include "fuzz_target.h"

namespace mc::api_keys_fuzz {

FUZZ_TARGET(api_keys) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto keys = mc::door::ApiKeys::parse(text, "fuzz.toml");
  if (!keys) return 0;
  mc::sched::FairQueue queue;
  queue.set_tenants(keys->tenants());
  if (keys->tenants().empty() || queue.tenant_count() < keys->tenants().size()) std::abort();
  for (const auto& tenant : keys->tenants())
    if (!(queue.level(queue.find(tenant.name), 1) >= 0)) std::abort();
  if (keys->find("") != nullptr || keys->find("Bearer ") != nullptr) std::abort();
  return 0;
}

}  // namespace mc::api_keys_fuzz
