// Base URLs as users type them for --base-url and --conductor: http only. Text that could smuggle a second header or
// request (spaces, control characters, user names, queries) is refused. base/uri.h has the grammar of host and port.
#include <sys/un.h>

#include <algorithm>

#include "base/uri.h"
#include "http/client.h"

namespace mc::http {

std::string Url::authority() const {
  return socket.empty() ? HostPort{host, port}.text() : "localhost";
}

std::string Url::place() const {
  return socket.empty() ? authority() : "unix:" + socket;
}

Result<Url> parse_url(std::string_view text) {
  const auto bad = [&](std::string_view what) {
    return Error{Code::invalid, "url \"" + std::string(text.substr(0, 200)) + "\": " + std::string(what)};
  };
  std::string_view rest = text;
  if (rest.starts_with("unix:/")) {
    Url url{.socket = std::string(rest.substr(5)), .host = {}, .path = {}};
    if (url.socket.size() < sizeof(sockaddr_un::sun_path)) return url;
    return bad("the path is longer than a Unix socket's may be");
  }
  if (rest.starts_with("https://")) return bad("https is not supported; use a proxy, or http");
  if (rest.starts_with("http://"))
    rest.remove_prefix(7);
  else if (rest.find("://") != std::string_view::npos)
    return bad("only http:// is supported");
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash), path = rest.substr(slash);
  while (path.ends_with('/')) path.remove_suffix(1);
  if (authority.empty() || authority.find('@') != std::string_view::npos) return bad("write http://host:port/path");
  for (const char c : rest)
    if (c <= 0x20 || c >= 0x7f || c == '?' || c == '#') return bad("has characters that a base URL cannot have");
  Url url;
  url.path = path;
  const bool has_port = authority.find(':', authority.find(']') == std::string_view::npos ? 0 : authority.find(']')) !=
                        std::string_view::npos;
  const auto host_port = parse_host_port(has_port ? std::string(authority) : std::string(authority) + ":80");
  if (!host_port) return bad(host_port.error().what);
  url.host = host_port->host;
  url.port = host_port->port;
  return url;
}

}  // namespace mc::http
