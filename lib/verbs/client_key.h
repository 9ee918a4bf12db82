// The key that our own HTTP clients send (the conductor's verbs, mc-bench serve and replay). A key on the command line
// shows in the process list of every user of the host, so it comes from a file or from the environment.
#pragma once

#include <string_view>

#include "base/cli.h"
#include "http/client.h"

namespace mc::flags {

inline constexpr Flag kApiKeyFile{
    .name = "api-key-file", .value = "FILE", .help = "file with the API key to send, one line, mode 0600"};
inline constexpr Flag kApiKey{
    .name = "api-key",
    .value = "KEY",
    .help = "API key as text; prefer MCT_API_KEY, because arguments show in the process list"};

}  // namespace mc::flags

namespace mc::verbs {

/// "Authorization: Bearer KEY" from --admin-key-file (where the verb has it), --api-key-file or --api-key; no header
/// without any of them. A key given as an argument is warned about.
Result<http::Headers> key_headers(const cli::Args& args);
/// The key of a tenant alone, from --api-key-file or --api-key: for the conductor in a verb whose admin key is that of
/// nodes.
Result<http::Headers> api_key_headers(const cli::Args& args);

/// The error of a server. If the server wanted a key, the next step names the flags with which this verb sends one, and
/// the door that needs none; only the door when the server has no admin key.
Error with_key_advice(const cli::Args& args, Error error,
                      std::string_view door = "name the node as mc-conductor ps does (p0 or c0) or by its "
                                              "socket node-*.http in MCT_RUN_DIR");

}  // namespace mc::verbs
