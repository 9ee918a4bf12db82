// Which path means what: constant tables of (method, path) -> Route. A path that ends in "/*" takes
// the non-empty rest (model ids may contain slashes). HEAD goes where GET goes; OPTIONS is answered
// from the table; a known path with another method gets 405 with Allow, an OpenAI endpoint we do not
// have 501 with its name, everything else 404.
#pragma once

#include <span>
#include <string_view>
#include <variant>

#include "http/message.h"

namespace mc::http {

enum class Route : uint8_t {
  completions,
  chat_completions,
  models,
  model,  // rest: its id
  tokenize,
  detokenize,
  health,
  livez,
  readyz,
  version,
  metrics,
  cluster,
  request,      // rest: its id
  admin,        // rest: the verb
  unsupported,  // answered by find_route
};

struct RouteEntry {
  Method method;
  std::string_view path;
  Route route;
};

/// What the conductor serves, and what every other role serves.
std::span<const RouteEntry> conductor_routes();
std::span<const RouteEntry> worker_routes();

struct RouteMatch {
  Route route;
  std::string_view rest;  // a view into `path`
};

/// The match, or the answer to give at once. `path` is decoded (Request::path).
std::variant<RouteMatch, Response> find_route(std::span<const RouteEntry> table, Method method, std::string_view path);

}  // namespace mc::http
