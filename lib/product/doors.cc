#include "product/doors.h"

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "base/log.h"

namespace mc {
namespace {

struct DoorInfo {
  std::string_view name;
  std::string_view danger;  // what a stranger could do
  std::string_view lock;
};
// In the order of Door.
constexpr std::array<DoorInfo, 4> kDoors{{
    {"control", "run requests and read KV blocks", "--auth FILE (made by: mc-conductor keygen -o FILE)"},
    {"data", "read KV blocks", "--auth FILE (made by: mc-conductor keygen -o FILE)"},
    {"http", "run requests", "--api-keys FILE"},
    {"pages", "read the operators' pages", "--admin-key-file FILE (made by: mc-conductor keygen --admin -o FILE)"},
}};
constexpr std::string_view kAllDoors = "all";

}  // namespace

std::string_view to_string(Door door) {
  return kDoors[static_cast<size_t>(door)].name;
}

Error no_lock(Door door, const std::string& place, Side side) {
  const DoorInfo& info = kDoors[static_cast<size_t>(door)];
  return user_error(
      err::kAuthRequired,
      side == Side::listens
          ? "the " + std::string(info.name) + " door would listen on " + place +
                ", beyond loopback, without a lock: anyone who reaches it could " + std::string(info.danger)
          : "the " + std::string(info.name) + " connection to " + place +
                " would leave this host without keys: whoever answers there could " + std::string(info.danger),
      (side == Side::listens ? "listen address " : "address ") + place,
      "add " + std::string(info.lock) + ", or --insecure " + std::string(info.name) + " on a network you trust");
}

void warn_no_lock(Door door, const std::string& place) {
  log_warn("door without a lock", {{"door", to_string(door)}, {"at", place}, {"flag", "--insecure"}});
}

namespace flags {

Result<void> check_doors(std::string_view value) {
  MC_TRY(names, split_list(value));
  for (const std::string& name : names) {
    const bool known = name == kAllDoors || std::any_of(kDoors.begin(), kDoors.end(),
                                                        [&](const DoorInfo& info) { return info.name == name; });
    if (!known) return {Code::invalid, "'" + name + "' is no door; the doors are control, data, http, pages and all"};
  }
  return {};
}

Result<void> check_hosts(std::string_view value) {
  MC_TRY(names, split_list(value));
  for (const std::string& name : names) {
    const bool is_ipv6 = std::count(name.begin(), name.end(), ':') > 1;
    if (name.find_first_of("/[]@ ") != std::string::npos || (!is_ipv6 && name.find(':') != std::string::npos))
      return {Code::invalid, "'" + name +
                                 "' is not a host name: write chat.example, 10.0.0.1 or fd00::1, without "
                                 "scheme, port and brackets"};
  }
  return {};
}

Result<void> check_origins(std::string_view value) {
  MC_TRY(origins, split_list(value));
  for (const std::string& origin : origins) {
    const size_t scheme = origin.find("://");
    const size_t host = scheme == std::string::npos ? scheme : scheme + 3;
    const bool is_web = origin.starts_with("http://") || origin.starts_with("https://");
    if (!is_web || host >= origin.size() || origin.find_first_of("/?#@ ", host) != std::string::npos)
      return {Code::invalid, "'" + origin +
                                 "' is not an origin: write https://chat.example or http://10.0.0.1:3000, "
                                 "without a path"};
  }
  return {};
}

}  // namespace flags

bool insecure(const cli::Args& args, Door door) {
  const auto named = args.list(flags::kInsecure);
  return std::any_of(named.begin(), named.end(),
                     [&](const std::string& name) { return name == kAllDoors || name == to_string(door); });
}

}  // namespace mc
