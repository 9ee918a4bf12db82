#include "verbs/node_place.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

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

namespace {

/// The address that `name` says without a conductor: a URL, ADDR:PORT or the path of a socket. "" for the name of a
/// node, which has neither a colon nor a slash.
Result<std::string> address_in(const std::string& name) {
  const auto bad = [](std::string what) {
    return user_error(err::kBadValue, std::move(what), "NODE",
                      "name a node as mc-conductor ps does, or give the path of its socket, or http://ADDR:PORT");
  };
  if (name.empty()) return bad("the name of the node is empty");
  const size_t colon = name.find(':'), slash = name.find('/');
  const bool is_url = name.find("://") != std::string::npos, says_unix = name.starts_with("unix:");
  std::string address = name;
  if (says_unix || (!is_url && slash < colon)) {
    std::error_code failed;
    const auto path = std::filesystem::absolute(name.substr(says_unix ? 5 : 0), failed);
    if (failed) return bad(name + ": " + failed.message());
    address = "unix:" + path.lexically_normal().string();
  } else if (!is_url) {
    if (colon == std::string::npos) return std::string();
    address = "http://" + name;
  }
  const auto url = http::parse_url(address);
  return url ? Result<std::string>(std::move(address)) : bad(url.error().what);
}

/// The socket of a listed node in the run directory; "" when this user has none of it there.
std::string socket_of(const std::string& directory, const Json& node) {
  const std::string instance(node["instance"].as_string());
  std::string socket = directory + "/node-" + instance.substr(0, kInstanceDigits) + ".http";
  return ::access(socket.c_str(), R_OK | W_OK) == 0 ? socket : "";
}

}  // namespace

std::vector<std::string> other_caches(const std::string& name, bool has_key) {
  const auto address = address_in(name);
  if (!address || !address->empty()) return {};
  const auto directory = ctl::run_dir([](const char* variable) -> const char* { return std::getenv(variable); });
  if (!directory) return {};
  const auto cluster = get_json("unix:" + *directory + "/" + std::string(host::kOperatorsSocket), "/cluster", {}, "-");
  if (!cluster) return {};
  std::vector<std::string> out;
  for (const Json& node : (*cluster)["nodes"].items()) {
    if (node["role"].as_string() != "cache" || node["id"].as_string() == name) continue;
    const std::string socket = socket_of(*directory, node);
    if (!socket.empty()) out.push_back("unix:" + socket);
    if (socket.empty() && !has_key) out.emplace_back(node["url"].as_string());
  }
  return out;
}

Result<std::string> place_of(const std::string& name, bool has_key) {
  MC_TRY(address, address_in(name));
  if (!address.empty()) return address;
  MC_TRY(directory, ctl::run_dir([](const char* variable) -> const char* { return std::getenv(variable); }));
  MC_TRY(cluster,
         get_json("unix:" + directory + "/" + std::string(host::kOperatorsSocket), "/cluster", {},
                  "start the conductor, set MCT_RUN_DIR to its run directory, or name the node by its socket: " +
                      directory + "/node-*.http"));
  std::string known;
  for (const Json& node : cluster["nodes"].items()) {
    known += (known.empty() ? "" : ", ") + std::string(node["id"].as_string());
    if (node["id"].as_string() != name) continue;
    if (const std::string socket = socket_of(directory, node); !socket.empty()) return "unix:" + socket;
    const std::string url(node["url"].as_string());
    if (has_key)
      return user_error(err::kKeyNotSent,
                        "the key was not sent: the node announced " + url + ", and any node can announce any address",
                        name, "name the node by its address where you trust it: " + url + " in place of " + name);
    return url;
  }
  std::error_code ignored;
  const bool is_socket = std::filesystem::is_socket(name, ignored);
  return user_error(err::kNotFound, "no node is called " + name + "; there are: " + (known.empty() ? "none" : known),
                    "NODE",
                    is_socket ? "for the socket of that name write ./" + name : "mc-conductor ps lists the nodes");
}

}  // namespace mc::verbs
