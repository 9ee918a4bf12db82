#include "http/route.h"

#include <algorithm>
#include <string>

namespace mc::http {
namespace {

constexpr RouteEntry kWorker[] = {
    {Method::get, "/health", Route::health},
    {Method::get, "/livez", Route::livez},
    {Method::get, "/readyz", Route::readyz},
    {Method::get, "/version", Route::version},
    {Method::get, "/metrics", Route::metrics},
    {Method::get, "/blocks", Route::blocks},
    {Method::post, "/blocks/lookup", Route::block_lookup},
    {Method::post, "/blocks/evict", Route::block_evict},
    {Method::post, "/blocks/pin", Route::block_pin},
    {Method::post, "/blocks/unpin", Route::block_unpin},
    {Method::get, "/blocks/export", Route::block_export},
    {Method::post, "/blocks/import", Route::block_import},
    {Method::post, "/prefill", Route::prefill},
    {Method::get, "/v1/store", Route::store},
    {Method::post, "/v1/store", Route::store},
    {Method::get, "/v1/store/*", Route::store},
    {Method::put, "/v1/store/*", Route::store},
    {Method::post, "/v1/store/*", Route::store},
    {Method::del, "/v1/store/*", Route::store},
};

constexpr RouteEntry kConductor[] = {
    {Method::post, "/v1/completions", Route::completions},
    {Method::post, "/v1/chat/completions", Route::chat_completions},
    {Method::post, "/v1/embeddings", Route::embeddings},
    {Method::get, "/v1/models", Route::models},
    {Method::get, "/v1/models/*", Route::model},
    {Method::post, "/tokenize", Route::tokenize},
    {Method::post, "/detokenize", Route::detokenize},
    {Method::get, "/health", Route::health},
    {Method::get, "/livez", Route::livez},
    {Method::get, "/readyz", Route::readyz},
    {Method::get, "/version", Route::version},
    {Method::get, "/metrics", Route::metrics},
    {Method::get, "/cluster", Route::cluster},
    {Method::get, "/requests", Route::request},
    {Method::get, "/requests/*", Route::request},
    {Method::post, "/admin/*", Route::admin},
    // Endpoints of OpenAI or vLLM that this server does not have.
    {Method::post, "/v1/responses", Route::unsupported},
    {Method::post, "/v1/responses/*", Route::unsupported},
    {Method::post, "/v1/messages", Route::unsupported},
    {Method::post, "/v1/rerank", Route::unsupported},
    {Method::post, "/v2/rerank", Route::unsupported},
    {Method::post, "/rerank", Route::unsupported},
    {Method::post, "/v1/score", Route::unsupported},
    {Method::post, "/score", Route::unsupported},
    {Method::post, "/pooling", Route::unsupported},
    {Method::post, "/classify", Route::unsupported},
    {Method::post, "/v1/moderations", Route::unsupported},
    {Method::post, "/v1/images/*", Route::unsupported},
    {Method::post, "/v1/audio/*", Route::unsupported},
    {Method::post, "/v1/files", Route::unsupported},
    {Method::post, "/v1/batches", Route::unsupported},
    {Method::post, "/v1/fine_tuning/*", Route::unsupported},
    {Method::post, "/v1/assistants", Route::unsupported},
    {Method::post, "/v1/threads", Route::unsupported},
};

/// Whether the path matches. `rest` receives the part behind a wildcard, "" without one.
bool matches(std::string_view pattern, std::string_view path, std::string_view& rest) {
  rest = {};
  if (!pattern.ends_with("/*")) return pattern == path;
  pattern.remove_suffix(1);
  if (path.size() <= pattern.size() || !path.starts_with(pattern)) return false;
  rest = path.substr(pattern.size());
  return true;
}

std::string quoted(std::string_view path) {
  return "\"" + std::string(path.substr(0, 200)) + "\"";
}

}  // namespace

std::span<const RouteEntry> conductor_routes() {
  return kConductor;
}
std::span<const RouteEntry> worker_routes() {
  return kWorker;
}

std::variant<RouteMatch, Response> find_route(std::span<const RouteEntry> table, Method method, std::string_view path) {
  std::string allow;
  for (const RouteEntry& entry : table) {
    std::string_view rest;
    if (!matches(entry.path, path, rest)) continue;
    if (entry.route == Route::unsupported)
      return error_response(err::kUnsupportedEndpoint, std::string(entry.path) + " is not supported by this server");
    if (entry.method == method || (entry.method == Method::get && method == Method::head))
      return RouteMatch{entry.route, rest};
    allow += std::string(to_string(entry.method)) + (entry.method == Method::get ? ", HEAD, " : ", ");
  }
  if (allow.empty() && !(method == Method::options && path == "*"))
    return error_response(err::kNotFound, "there is nothing at " + quoted(path));
  allow += "OPTIONS";
  if (method == Method::options) return Response{204, {{"Allow", allow}}, {}};
  Response response = error_response(err::kMethodNotAllowed,
                                     quoted(path) + " takes " + allow + ", not " + std::string(to_string(method)));
  response.headers.push_back({"Allow", allow});
  return response;
}

}  // namespace mc::http
