#include "verbs/client_key.h"

#include <initializer_list>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "base/log.h"
#include "door/bearer.h"
#include "product/doors.h"

namespace mc::verbs {

namespace {

/// The header from the first of the files that is given, else from --api-key.
Result<http::Headers> headers_from(const cli::Args& args, std::initializer_list<const Flag*> files) {
  const auto bearer = [](const std::string& key) { return http::Headers{{"Authorization", "Bearer " + key}}; };
  for (const Flag* flag : files) {
    if (!args.has(*flag) || !args.present(*flag)) continue;
    MC_TRY(key, door::read_bearer_key(args.text(*flag), "--" + std::string(flag->name)));
    MC_ASSERT(door::is_bearer_key(key));
    return bearer(key);
  }
  if (!args.present(flags::kApiKey)) return http::Headers{};
  static bool warned = false;  // verbs ask more than once, on one thread
  if (args.origin(flags::kApiKey) == cli::Origin::flag && !std::exchange(warned, true))
    log_warn("--api-key shows in the process list of every user; use " +
             std::string(args.has(flags::kApiKeyFile) ? "--api-key-file or MCT_API_KEY" : "MCT_API_KEY"));
  return bearer(args.text(flags::kApiKey));
}

}  // namespace

Result<http::Headers> key_headers(const cli::Args& args) {
  return headers_from(args, {&flags::kAdminKeyFile, &flags::kApiKeyFile});
}

Result<http::Headers> api_key_headers(const cli::Args& args) {
  return headers_from(args, {&flags::kApiKeyFile});
}

Error with_key_advice(const cli::Args& args, Error error, std::string_view door) {
  if (error.mc != err::kUnauthorized && error.mc != err::kForbidden) return error;
  if (error.next == door::kNoAdminKeyStep) {  // to send a key would lead to this same answer
    error.next = "on the same host " + std::string(door) + ", which needs no key; elsewhere start the server with " +
                 "--admin-key-file FILE";
    return error;
  }
  std::string ways;
  for (const Flag* flag : {&flags::kAdminKeyFile, &flags::kApiKeyFile, &flags::kApiKey})
    if (args.has(*flag))
      ways += (ways.empty() ? "--" : " or --") + std::string(flag->name) + " " + std::string(flag->value);
  MC_ASSERT(!ways.empty());
  error.next = "send a key with " + ways + "; on the same host " + std::string(door) + ", which needs none";
  return error;
}

}  // namespace mc::verbs
