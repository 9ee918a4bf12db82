// The doors of a daemon: each kind of socket that may listen beyond loopback has a lock of its own. --insecure
// names the doors that may do so without their lock.
//
//   door     who comes in                           lock
//   control  nodes of the cluster (ZeroMQ)          --auth: CURVE keys
//   data     nodes of the cluster (KV transfers)    --auth: the data secret
//   http     clients of the conductor's public API  --api-keys
//   pages    operators: a worker's HTTP pages       --admin-key-file
#pragma once

#include <string_view>

#include "base/cli.h"

namespace mc {

enum class Door : uint8_t { control, data, http, pages };
std::string_view to_string(Door door);

/// Whether a program waits for connections at an address, or connects to it.
enum class Side : uint8_t { listens, dials };
/// MC1005: `place`, which may be reached from other hosts, has no lock. The next step names the door's lock.
Error no_lock(Door door, const std::string& place, Side side = Side::listens);

/// Logs that `place`, which may be reached from other hosts, has no lock because --insecure names the door.
void warn_no_lock(Door door, const std::string& place);

namespace flags {
/// Names of doors, or "all".
Result<void> check_doors(std::string_view value);
/// Names or IP addresses without port, as a Host field names them.
Result<void> check_hosts(std::string_view value);
/// "https://chat.example" or "http://10.0.0.1:3000": what browsers send as Origin.
Result<void> check_origins(std::string_view value);

inline constexpr Flag kInsecure{.name = "insecure",
                                .kind = FlagKind::list,
                                .value = "DOOR,DOOR",
                                .help =
                                    "let doors listen beyond loopback without their lock: control, data, http, "
                                    "pages, all",
                                .check = check_doors};
inline constexpr Flag kAdminKeyFile{
    .name = "admin-key-file",
    .value = "FILE",
    .help = "admin key of pages over HTTP, mode 0600; made by keygen --admin"};
inline constexpr Flag kAllowedHost{
    .name = "allowed-host",
    .kind = FlagKind::list,
    .value = "NAME,NAME",
    .help = "Host names that requests may carry, besides localhost and loopback addresses",
    .check = check_hosts,
    .common = true};
inline constexpr Flag kAllowedOrigin{.name = "allowed-origin",
                                     .kind = FlagKind::list,
                                     .value = "URL,URL",
                                     .help = "origins of web pages that may send requests: https://chat.example",
                                     .check = check_origins,
                                     .common = true};
}  // namespace flags

/// Whether --insecure names this door, or all of them.
bool insecure(const cli::Args& args, Door door);

}  // namespace mc
