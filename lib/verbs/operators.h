// How the verbs of mc-conductor ask a running conductor: the flags that name it, and one call of its pages.
#pragma once

#include <string>

#include "base/cli_flags.h"
#include "base/clock.h"
#include "base/json.h"
#include "http/client.h"
#include "product/doors.h"
#include "verbs/client_key.h"

namespace mc::flags {

inline constexpr Flag kUrl{
    .name = "url",
    .value = "URL",
    .help = "the conductor's HTTP address; replaces its socket in MCT_RUN_DIR; with tenants it needs a key"};
inline constexpr Flag kAdminKey = with_default(kAdminKeyFile, "", "key of the operators' pages, for --url");
inline constexpr Flag kVerbKeyFile =
    with_default(kApiKeyFile, "", "key of a tenant: for ask, and with admin = true for --url");

}  // namespace mc::flags

namespace mc::verbs {

inline constexpr auto kPlaceFlags = flags::list(&flags::kUrl, &flags::kAdminKey, &flags::kVerbKeyFile, &flags::kApiKey);
inline constexpr auto kUrlFlags = flags::join(kPlaceFlags, flags::list(&flags::kJson));

/// --url, or the socket of the conductor that uses this run directory.
Result<std::string> conductor_place(const cli::Args& args);

/// The JSON answer of the conductor to one call. An error of the conductor keeps its number; MC2101 when nobody
/// answers. On a terminal, control characters in the answer are shown as escapes.
Result<Json> ask_conductor(const cli::Args& args, http::Method method, const std::string& path, std::string body,
                           TimePoint deadline);

/// The time point this long from now.
TimePoint soon(Duration d);

}  // namespace mc::verbs
