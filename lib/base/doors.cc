#include "base/doors.h"

#include <algorithm>
#include <array>

#include "base/errors.h"

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
constexpr std::string_view kAll = "all";

}  // namespace

std::string_view to_string(Door door) {
  return kDoors[static_cast<size_t>(door)].name;
}

Error no_lock(Door door, const std::string& place) {
  const DoorInfo& info = kDoors[static_cast<size_t>(door)];
  return user_error(
      err::kAuthRequired,
      "the " + std::string(info.name) + " door would listen on " + place +
          ", beyond loopback, without a lock: anyone who reaches it could " + std::string(info.danger),
      "listen address " + place,
      "add " + std::string(info.lock) + ", or --insecure " + std::string(info.name) + " on a network you trust");
}

namespace flags {

Result<void> check_doors(std::string_view value) {
  MC_TRY(names, split_list(value));
  for (const std::string& name : names) {
    const bool known = name == kAll || std::any_of(kDoors.begin(), kDoors.end(),
                                                   [&](const DoorInfo& info) { return info.name == name; });
    if (!known) return {Code::invalid, "'" + name + "' is no door; the doors are control, data, http, pages and all"};
  }
  return {};
}

}  // namespace flags

bool insecure(const cli::Args& args, Door door) {
  const auto named = args.list(flags::kInsecure);
  return std::any_of(named.begin(), named.end(),
                     [&](const std::string& name) { return name == kAll || name == to_string(door); });
}

}  // namespace mc
