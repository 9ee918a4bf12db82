// The routes of the server: constant tables of (method, path) -> Route. A path that ends in "/*" matches any non-empty
// rest (model ids may contain slashes). HEAD has the route of GET. OPTIONS is answered from the table. A known path
// with another method is answered 405 with Allow, an OpenAI endpoint outside this API 404 with its name,
// everything else 404.
#pragma once

#include <span>
#include <string_view>
#include <variant>

#include "http/message.h"

namespace mc::http {

enum class Route : uint8_t {
  completions,
  chat_completions,
  embeddings,
  models,
  model,  // rest: the model's id
  tokenize,
  detokenize,
  health,
  livez,
  readyz,
  version,
  metrics,
  blocks,
  block_lookup,
  block_evict,
  block_pin,
  block_unpin,
  block_export,
  block_import,
  prefill,
  store,  // rest: the key of a value, or "" for all values
  cluster,
  request,      // rest: the request's id, or "" for the list
  admin,        // rest: the verb
  unsupported,  // answered by find_route
};

struct RouteEntry {
  Method method;
  std::string_view path;
  Route route;
};

/// The routes of the conductor, and those of every other role.
std::span<const RouteEntry> conductor_routes();
std::span<const RouteEntry> worker_routes();

struct RouteMatch {
  Route route;
  std::string_view rest;  // a view into `path`
};

/// The match, or the answer that ends the request. `path` is decoded (Request::path).
std::variant<RouteMatch, Response> find_route(std::span<const RouteEntry> table, Method method, std::string_view path);

}  // namespace mc::http
