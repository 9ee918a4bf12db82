#include "verbs/client_key.h"

#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "door/bearer.h"
#include "product/doors.h"

namespace mc::verbs {

Result<http::Headers> key_headers(const cli::Args& args) {
  const auto bearer = [](const std::string& key) { return http::Headers{{"Authorization", "Bearer " + key}}; };
  for (const Flag* flag : {&flags::kAdminKeyFile, &flags::kApiKeyFile}) {
    if (!args.has(*flag) || !args.present(*flag)) continue;
    MC_TRY(key, door::read_bearer_key(args.text(*flag), "--" + std::string(flag->name)));
    MC_ASSERT(door::is_bearer_key(key));
    return bearer(key);
  }
  if (!args.present(flags::kApiKey)) return http::Headers{};
  static bool warned = false;  // verbs ask more than once, on one thread
  if (args.origin(flags::kApiKey) == cli::Origin::flag && !std::exchange(warned, true))
    log_warn("--api-key shows in the process list of every user; use --api-key-file or MCT_API_KEY");
  return bearer(args.text(flags::kApiKey));
}

}  // namespace mc::verbs
