#include "verbs/cache_list.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/cli_flags.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/units.h"
#include "ctl/ctl.h"
#include "door/bearer.h"
#include "host/conductor_process.h"
#include "http/client.h"

namespace mc::verbs {
namespace {

constexpr size_t kInstanceDigits = 12;  // of an instance in the name of its socket

Result<Json> get_json(const std::string& place, const std::string& path, const http::Headers& headers,
                      std::string_view next) {
  const TimePoint deadline = SystemClock::instance().now() + 10s;
  auto response = http::fetch(http::Method::get, place, path, headers, "", deadline);
  if (!response)
    return user_error(err::kPeerUnreachable, "no answer: " + response.error().what, place, std::string(next));
  auto json = Json::parse(response->body);
  if (!json) return user_error(err::kPeerGarbage, "the answer is not JSON: " + json.error().what, place + path);
  if (response->status < 300) return json;
  const Json& message = (*json)["error"]["message"];
  return user_error(response->status == 401 ? err::kUnauthorized : err::kBadRequest,
                    std::string(message.as_string("HTTP " + std::to_string(response->status))), place + path);
}

/// The address of a node's pages: its socket on this host, else its HTTP address. A node that is named by an address of
/// its own needs no conductor.
Result<std::string> place_of(const std::string& name) {
  if (name.starts_with("unix:") || name.find("://") != std::string::npos) return name;
  if (name.find('/') != std::string::npos) return "unix:" + name;
  MC_TRY(directory, ctl::run_dir([](const char* variable) -> const char* { return std::getenv(variable); }));
  MC_TRY(cluster,
         get_json("unix:" + directory + "/" + std::string(host::kOperatorsSocket), "/cluster", {},
                  "start the conductor, set MCT_RUN_DIR to its run directory, or name the node by its socket: " +
                      directory + "/node-*.http"));
  std::string known;
  for (const Json& node : cluster["nodes"].items()) {
    known += (known.empty() ? "" : ", ") + std::string(node["id"].as_string());
    if (node["id"].as_string() != name) continue;
    const std::string instance(node["instance"].as_string());
    const std::string socket = directory + "/node-" + instance.substr(0, kInstanceDigits) + ".http";
    return ::access(socket.c_str(), R_OK | W_OK) == 0 ? "unix:" + socket : std::string(node["url"].as_string());
  }
  return user_error(err::kNotFound, "no node is called " + name + "; there are: " + known, "NODE",
                    "mc-conductor ps lists the nodes");
}

std::string list_text(const Json& list) {
  std::string out = "ID                                TIER  POSITION  TOKENS       BYTES  USES  HELD  DISK\n";
  char line[160];
  for (const Json& block : list["blocks"].items()) {
    const int64_t held = block["pins"].as_int() + block["leases"].as_int();
    const bool in_memory = block["tier"].as_string() == "host";
    std::snprintf(line, sizeof line, "%-32s  %-4s %9ld  %6s %11s %5s %5s  %s\n",
                  std::string(block["id"].as_string()).c_str(), std::string(block["tier"].as_string()).c_str(),
                  static_cast<long>(block["first_position"].as_int()),
                  in_memory ? std::to_string(block["tokens"].as_int()).c_str() : "-",
                  in_memory ? std::to_string(block["bytes"].as_int()).c_str() : "-",
                  in_memory ? std::to_string(block["uses"].as_int()).c_str() : "-",
                  in_memory ? std::to_string(held).c_str() : "-", block["on_disk"].as_bool() ? "yes" : "-");
    out += line;
  }
  out += std::to_string(list["memory_blocks"].as_int()) + " blocks of " +
         format_bytes(static_cast<uint64_t>(list["memory_bytes"].as_int())) + " in memory";
  if (list["disk_capacity_bytes"].as_int() == 0) return out + ", no disk\n";
  if (list["disk_lost"].as_bool()) return out + ", the disk is lost\n";
  return out + "; " + std::to_string(list["disk_blocks"].as_int()) + " blocks of " +
         format_bytes(static_cast<uint64_t>(list["disk_bytes"].as_int())) + " on disk, " +
         std::to_string(list["disk_only_blocks"].as_int()) + " of them there alone\n";
}

}  // namespace

Result<int> list_blocks(const cli::Args& args) {
  MC_TRY(place, place_of(args.positional_one("NODE")));
  http::Headers headers;
  if (args.present(flags::kAdminKeyFile)) {
    MC_TRY(key, door::read_bearer_key(args.text(flags::kAdminKeyFile), "--admin-key-file"));
    headers.push_back({"Authorization", "Bearer " + key});
  }
  const std::string path =
      "/blocks?sort=" + args.text(flags::kListSort) + "&limit=" + std::to_string(args.count(flags::kListLimit));
  MC_TRY(list, get_json(place, path, headers, "start the node, or name it as mc-conductor ps does"));
  if (!args.on(flags::kJson)) {
    MC_CHECK(write_all(1, list_text(list)));
    return 0;
  }
  std::string out;
  for (const Json& block : list["blocks"].items()) out += block.dump() + "\n";
  list.set("blocks", list["blocks"].size()).set("type", "end");
  MC_CHECK(write_all(1, out + list.dump() + "\n"));
  return 0;
}

}  // namespace mc::verbs
