#include "verbs/node_place.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>

#include "base/assert.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/plain_name.h"
#include "base/uri.h"
#include "ctl/ctl.h"
#include "host/conductor_process.h"
#include "host/worker_process.h"
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

/// The file of the socket of a listed node.
std::string socket_name(const Json& node) {
  return "node-" + std::string(node["instance"].as_string().substr(0, kInstanceDigits)) + ".http";
}

/// The socket of a listed node in the run directory; "" when this user has none of it there.
std::string socket_of(const std::string& directory, const Json& node) {
  std::string socket = directory + "/" + socket_name(node);
  return ::access(socket.c_str(), R_OK | W_OK) == 0 ? socket : "";
}

/// Where a listed node says that its pages are.
struct Announced {
  std::string url, address;  // http://ADDR:PORT and ADDR:PORT
  std::string away;          // host of the control address of a node that may run on another host; "" = on this one
  bool on_loopback = false;
  uint16_t port = 0;
};

Result<Announced> announced_by(const Json& node) {
  Announced out{.url = std::string(node["url"].as_string())};
  const auto pages = http::parse_url(out.url);
  if (!pages || pages->host.empty())
    return user_error(err::kPeerGarbage, "the node announced no address of its pages: '" + out.url + "'",
                      std::string(node["id"].as_string()), "compare the versions of the node and of this program");
  if (const auto control = parse_uri(node["control"].as_string()); control && !is_local(*control))
    out.away = control->host;
  // Pages on every address of a node are at its control address too.
  const bool is_everywhere = pages->host == "0.0.0.0" || pages->host == "::";
  out.address = HostPort{is_everywhere && !out.away.empty() ? out.away : pages->host, pages->port}.text();
  out.url = "http://" + out.address, out.port = pages->port;
  out.on_loopback = is_loopback(pages->host);
  return out;
}

/// Checks that the listed node itself answers at the address that it announced. The loopback of another host leads to
/// a node of this host, and a port may have a new owner.
Result<void> check_answer(const Json& node, const Announced& at, Duration time) {
  const std::string name(node["id"].as_string());
  const auto answer = http::fetch(http::Method::get, at.url, "/livez", {}, "", SystemClock::instance().now() + time);
  if (answer && http::find_header(answer->headers, host::kPagesSocketHeader) == socket_name(node)) return {};
  if (at.on_loopback && !at.away.empty())
    return user_error(err::kPeerUnreachable,
                      "the pages of " + name + " are on the loopback of " + at.away + " (" + at.address + ")", name,
                      "run the verb on " + at.away + " with " + at.url + " in place of " + name + ", or start " + name +
                          " with --http " + HostPort{at.away, at.port}.text() + " --admin-key-file FILE");
  if (!answer)
    return user_error(err::kPeerUnreachable, "no answer: " + answer.error().what, at.url,
                      "start the node, or name it as mc-conductor ps does");
  return user_error(err::kPeerUnreachable,
                    "another program answers at the address that " + name + " announced: " + at.address, name,
                    "look with mc-conductor ps whether " + name + " still runs; on its host name it by its socket");
}

/// The nodes whose sockets are in the run directory, by name, with these sockets. Each of the first 64 sockets is
/// asked.
std::map<std::string, std::string> nodes_in(const std::string& directory) {
  constexpr int kAskedMax = 64;
  std::map<std::string, std::string> nodes;
  std::error_code failed;
  int asked = 0;
  const TimePoint until = SystemClock::instance().now() + 3s;  // of all: a stopped node does not answer
  for (std::filesystem::directory_iterator entry(directory, failed), end; entry != end; entry.increment(failed)) {
    const std::string file = entry->path().filename().string(), socket = directory + "/" + file;
    if (!file.starts_with("node-") || !file.ends_with(".http") || ++asked > kAskedMax) continue;
    const auto answer = http::fetch(http::Method::get, "unix:" + socket, "/version", {}, "",
                                    std::min(until, SystemClock::instance().now() + 1s));
    const auto version = answer ? Json::parse(answer->body) : Result<Json>(answer.error());
    const std::string name(version ? (*version)["node"].as_string() : "");
    if (is_plain_name(name)) nodes[name] = socket;
  }
  return nodes;
}

/// The place of a node while no conductor answers: its socket in the run directory. `error`: of the conductor.
Result<std::string> without_conductor(const std::string& name, const std::string& directory, Error error) {
  const auto nodes = nodes_in(directory);
  if (const auto node = nodes.find(name); node != nodes.end()) return "unix:" + node->second;
  std::string names;
  for (const auto& [other, socket] : nodes) names += (names.empty() ? "" : ", ") + other;
  if (!names.empty()) error.next += "; nodes that answer without a conductor: " + names;
  return error;
}

/// The cluster of this run directory's conductor; empty when `name` is an address or nobody answers.
std::optional<Json> cluster_of(const std::string& name) {
  const auto address = address_in(name);
  if (!address || !address->empty()) return {};
  const auto directory = ctl::run_dir([](const char* variable) -> const char* { return std::getenv(variable); });
  if (!directory) return {};
  auto cluster = get_json("unix:" + *directory + "/" + std::string(host::kOperatorsSocket), "/cluster", {}, "-");
  if (!cluster) return {};
  return std::move(*cluster);
}

}  // namespace

Result<void> check_is_cache(const std::string& name) {
  const auto cluster = cluster_of(name);
  if (!cluster) return {};
  std::string caches, role;
  for (const Json& node : (*cluster)["nodes"].items()) {
    const std::string id(node["id"].as_string());
    if (id == name) role = node["role"].as_string();
    if (node["role"].as_string() == "cache") caches += (caches.empty() ? "" : " or ") + id;
  }
  if (role.empty() || role == "cache") return {};
  return user_error(err::kNotFound, name + " is a " + role + " node, which has no store of values", "NODE",
                    caches.empty() ? "start a cache node with mc-cache" : "name a cache node: " + caches);
}

std::vector<std::string> other_caches(const std::string& name, bool has_key) {
  const auto directory = ctl::run_dir([](const char* variable) -> const char* { return std::getenv(variable); });
  const auto cluster = cluster_of(name);
  if (!directory || !cluster) return {};
  std::vector<std::string> out;
  for (const Json& node : (*cluster)["nodes"].items()) {
    if (node["role"].as_string() != "cache" || node["id"].as_string() == name) continue;
    const std::string socket = socket_of(*directory, node);
    if (!socket.empty()) out.push_back("unix:" + socket);
    if (!socket.empty() || has_key) continue;
    if (const auto at = announced_by(node); at && check_answer(node, *at, 2s)) out.push_back(at->url);
  }
  return out;
}

Result<std::string> place_of(const std::string& name, bool has_key) {
  MC_TRY(address, address_in(name));
  if (!address.empty()) return address;
  MC_TRY(directory, ctl::run_dir([](const char* variable) -> const char* { return std::getenv(variable); }));
  const std::string start = "start the conductor, or set MCT_RUN_DIR to its run directory";
  auto listed = get_json("unix:" + directory + "/" + std::string(host::kOperatorsSocket), "/cluster", {}, start);
  if (!listed && listed.error().mc == err::kPeerUnreachable)
    return without_conductor(name, directory, std::move(listed).error());
  if (!listed) return std::move(listed).error();
  const Json& cluster = *listed;
  std::string known;
  for (const Json& node : cluster["nodes"].items()) {
    known += (known.empty() ? "" : ", ") + std::string(node["id"].as_string());
    if (node["id"].as_string() != name) continue;
    if (const std::string socket = socket_of(directory, node); !socket.empty()) return "unix:" + socket;
    MC_TRY(at, announced_by(node));
    const bool is_elsewhere = at.on_loopback && !at.away.empty();  // the advice to trust its address would be wrong
    if (!has_key || is_elsewhere) MC_CHECK(check_answer(node, at, 10s));
    if (!has_key) return at.url;
    return user_error(err::kKeyNotSent,
                      "the key was not sent: the node announced " + at.url + ", and any node can announce any address",
                      name, "name the node by its address where you trust it: " + at.url + " in place of " + name);
  }
  std::error_code ignored;
  const bool is_socket = std::filesystem::is_socket(name, ignored);
  return user_error(err::kNotFound, "no node is called " + name + "; there are: " + (known.empty() ? "none" : known),
                    "NODE",
                    is_socket ? "for the socket of that name write ./" + name : "mc-conductor ps lists the nodes");
}

}  // namespace mc::verbs
