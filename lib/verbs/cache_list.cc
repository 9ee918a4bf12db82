#include "verbs/cache_list.h"

#include <cstdio>

#include "base/cli_flags.h"
#include "base/fd.h"
#include "base/foreign_text.h"
#include "base/json.h"
#include "base/units.h"
#include "verbs/node_place.h"
#include "verbs/store_verbs.h"

namespace mc::verbs {
namespace {

std::string time_text(const Json& block, const char* field) {
  return block.has(field) ? human_time(from_seconds(block[field].as_double() / 1e3)) : "-";
}

}  // namespace

std::string block_table(const Json& list) {
  std::string out = "ID                               TIER POSITION  USES     AGE HELD     PIN DISK\n";
  char line[160];
  for (const Json& block : list["blocks"].items()) {
    const int64_t held = block["pins"].as_int() + block["leases"].as_int();
    const bool in_memory = block["tier"].as_string() == "host";
    const auto counted = [&](int64_t number) { return in_memory ? std::to_string(number) : "-"; };
    std::snprintf(line, sizeof line, "%-32s %-4s %8ld %5s %7s %4s %7s %s\n",
                  std::string(block["id"].as_string()).c_str(), std::string(block["tier"].as_string()).c_str(),
                  static_cast<long>(block["first_position"].as_int()), counted(block["uses"].as_int()).c_str(),
                  time_text(block, "age_ms").c_str(), counted(held).c_str(), time_text(block, "pin_ms").c_str(),
                  block["on_disk"].as_bool() ? "yes" : "-");
    out += line;
  }
  const auto held = [&](const char* blocks, const char* bytes) {
    return std::to_string(list[blocks].as_int()) + " blocks, " +
           human_bytes(static_cast<uint64_t>(list[bytes].as_int())) + " in all";
  };
  out += "in memory: " + held("memory_blocks", "memory_bytes");
  const auto bytes = [&](const char* name) { return human_bytes(static_cast<uint64_t>(list[name].as_int())); };
  if (list["pinned_bytes"].as_int() > 0)
    out += "; pinned: " + bytes("pinned_bytes") + " of at most " + bytes("pinned_bytes_max");
  if (list["disk_capacity_bytes"].as_int() == 0) return out + "; the node has no disk\n";
  if (list["disk_lost"].as_bool()) return out + "; the disk is lost\n";
  return out + "; on disk: " + held("disk_blocks", "disk_bytes") + ", of which " +
         std::to_string(list["disk_only_blocks"].as_int()) + " blocks are not in memory\n";
}

Result<int> list_blocks(const cli::Args& args) {
  if (args.on(flags::kListKeys)) return list_values(args);
  MC_TRY(headers, key_headers(args));
  MC_TRY(place, place_of(args.positional_one("NODE"), !headers.empty()));
  const std::string path =
      "/blocks?sort=" + args.text(flags::kListSort) + "&limit=" + std::to_string(args.count(flags::kListLimit));
  auto read = get_json(place, path, headers, "start the node, or name it as mc-conductor ps does");
  if (!read) return with_key_advice(args, std::move(read).error());
  Json list = std::move(*read);
  if (!args.on(flags::kJson)) {
    MC_CHECK(write_foreign(1, block_table(list)));
    return 0;
  }
  std::string out;
  for (const Json& block : list["blocks"].items()) out += block.dump() + "\n";
  list.set("blocks", list["blocks"].size()).set("type", "end");
  MC_CHECK(write_all(1, out + list.dump() + "\n"));
  return 0;
}

}  // namespace mc::verbs
