#include "verbs/node_place.h"

#include <unistd.h>

#include <cstdlib>

#include "base/assert.h"
#include "base/clock.h"
#include "base/errors.h"
#include "ctl/ctl.h"
#include "host/conductor_process.h"
#include "verbs/ask.h"

namespace mc::verbs {
namespace {

constexpr size_t kInstanceDigits = 12;  // of an instance in the name of its socket

}  // namespace

Result<Json> get_json(const std::string& place, const std::string& path, const http::Headers& headers,
                      std::string_view next) {
  MC_ASSERT(path.starts_with('/') && !next.empty());
  const TimePoint deadline = SystemClock::instance().now() + 10s;
  auto response = http::fetch(http::Method::get, place, path, headers, "", deadline);
  if (!response)
    return user_error(err::kPeerUnreachable, "no answer: " + response.error().what, place, std::string(next));
  auto json = Json::parse(response->body);
  if (!json) return user_error(err::kPeerGarbage, "the answer is not JSON: " + json.error().what, place + path);
  if (response->status < 300) return json;
  return told_error(*json, response->status, place + path);
}

Result<std::string> place_of(const std::string& name, bool has_key) {
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
    if (::access(socket.c_str(), R_OK | W_OK) == 0) return "unix:" + socket;
    const std::string url(node["url"].as_string());
    if (has_key)
      return user_error(err::kKeyNotSent,
                        "the key was not sent: the node announced " + url + ", and any node can announce any address",
                        name, "name the node by its address where you trust it: " + url + " in place of " + name);
    return url;
  }
  return user_error(err::kNotFound, "no node is called " + name + "; there are: " + (known.empty() ? "none" : known),
                    "NODE", "mc-conductor ps lists the nodes");
}

}  // namespace mc::verbs
