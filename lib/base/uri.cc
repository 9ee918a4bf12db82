#include "base/uri.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "base/units.h"

namespace mc {
namespace {

constexpr size_t kTextMax = 4096;
constexpr std::string_view kNameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

Error bad_address(std::string_view text, std::string_view why) {
  return {Code::invalid, "'" + std::string(text.substr(0, 120)) + "' " + std::string(why)};
}

/// Splits "host:port", "[v6]:port", "host"; false when brackets or colons do not fit.
bool split_authority(std::string_view text, std::string& host, std::string_view& port, bool& has_port) {
  has_port = false;
  size_t colon;
  if (!text.empty() && text.front() == '[') {
    const size_t close = text.find(']');
    if (close == std::string_view::npos) return false;
    host = text.substr(1, close - 1);
    in6_addr v6{};
    if (::inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &v6) != 1) return false;
    if (close + 1 == text.size()) return true;
    if (text[close + 1] != ':') return false;
    colon = close + 1;
  } else {
    colon = text.find(':');
    host = text.substr(0, colon);
    if (host.find_first_of("[]/") != std::string::npos) return false;
    if (colon == std::string_view::npos) return true;
    if (text.find(':', colon + 1) != std::string_view::npos) return false;  // bare IPv6
  }
  has_port = true;
  port = text.substr(colon + 1);
  return true;
}

bool clean(std::string_view text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) <= ' ' || c == 0x7f) return false;
  return true;
}

}  // namespace

std::string HostPort::text() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string Uri::text() const {
  if (scheme == "sim" || scheme == "null") return scheme + ":" + host;
  const bool v6 = host.find(':') != std::string::npos;
  return scheme + "://" + (v6 ? "[" + host + "]" : host) + (port ? ":" + std::to_string(*port) : "") + path;
}

Result<Uri> parse_uri(std::string_view text) {
  static constexpr std::string_view kForms =
      "is not a place: tcp://host:port, ipc:///path, shm://name, rdma://device:port, file:///path, sim: or null:";
  if (text.size() > kTextMax || !clean(text))
    return bad_address(text, "has spaces, control characters or over 4096 bytes");
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos || colon == 0) return bad_address(text, kForms);
  Uri uri;
  uri.scheme = text.substr(0, colon);
  std::string_view rest = text.substr(colon + 1);
  if (uri.scheme == "sim" || uri.scheme == "null") {
    uri.host = rest;
    return uri;
  }
  if (rest.substr(0, 2) != "//") return bad_address(text, kForms);
  rest.remove_prefix(2);
  if (uri.scheme == "ipc" || uri.scheme == "file") {
    if (rest.empty() || (rest.front() != '/' && !(uri.scheme == "ipc" && rest.front() == '@')))
      return bad_address(text, "needs an absolute path after " + uri.scheme + "://");
    (rest.front() == '/' ? uri.path : uri.host) = rest;
    return uri;
  }
  if (uri.scheme == "shm") {
    if (rest.empty() || rest.find_first_not_of(kNameChars) != std::string_view::npos)
      return bad_address(text, "needs a name of letters, digits, '.', '_' and '-'");
    uri.host = rest;
    return uri;
  }
  if (uri.scheme != "tcp" && uri.scheme != "rdma" && uri.scheme != "http") return bad_address(text, kForms);
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    uri.path = rest.substr(slash);
    rest = rest.substr(0, slash);
  }
  std::string_view port;
  bool has_port = false;
  if (!split_authority(rest, uri.host, port, has_port))
    return bad_address(text, "has a malformed host (IPv6 needs brackets)");
  if (uri.host.empty()) return bad_address(text, "has no host");
  if (!has_port && uri.scheme == "tcp") return bad_address(text, "has no port (0 picks a free one)");
  if (has_port) {
    auto number = parse_u64(port, 0, 65535);
    if (!number) return bad_address(text, "has a port that is not a number from 0 to 65535");
    uri.port = static_cast<uint16_t>(*number);
  }
  return uri;
}

Result<HostPort> parse_host_port(std::string_view text, std::string_view default_host) {
  HostPort out{std::string(default_host), 0};
  if (text.size() > kTextMax || !clean(text)) return bad_address(text, "is not an address");
  std::string_view port = text;
  if (text.find(':') != std::string_view::npos) {
    std::string host;
    bool has_port = false;
    if (!split_authority(text, host, port, has_port) || !has_port)
      return bad_address(text, "is not ADDR:PORT (IPv6 needs brackets)");
    if (!host.empty()) out.host = host;
  }
  auto number = parse_u64(port, 0, 65535);
  if (!number) return bad_address(text, "is not ADDR:PORT with a port from 0 to 65535");
  out.port = static_cast<uint16_t>(*number);
  return out;
}

bool is_loopback(std::string_view host) {
  if (host == "localhost") return true;
  const std::string name(host);
  in_addr v4{};
  if (::inet_pton(AF_INET, name.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return ::inet_pton(AF_INET6, name.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool is_local(const Uri& uri) {
  if (uri.scheme == "tcp" || uri.scheme == "rdma" || uri.scheme == "http") return is_loopback(uri.host);
  return true;
}

}  // namespace mc
