#include "http/site.h"

#include <algorithm>

#include "base/uri.h"

namespace mc::http {
namespace {

struct Authority {
  std::string_view host;  // without brackets
  std::string_view port;  // "" when left out
};

/// Host and port of "name", "name:80", "127.0.0.1:80" or "[::1]:80".
Authority split_authority(std::string_view text) {
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return {text, {}};
    std::string_view rest = text.substr(end + 1);
    if (rest.starts_with(':')) rest.remove_prefix(1);
    return {text.substr(1, end - 1), rest};
  }
  const size_t colon = text.find(':');
  return {text.substr(0, colon), colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1)};
}

bool is_own_host(std::string_view host, const SitePolicy& policy) {
  return iequals(host, "localhost") || is_loopback(host) ||
         std::any_of(policy.own_hosts.begin(), policy.own_hosts.end(),
                     [&](const std::string& own) { return iequals(host, own); });
}

/// Whether the page's origin is the host that the request was sent to.
bool is_same_site(std::string_view origin, std::string_view host) {
  const size_t scheme_end = origin.find("://");
  if (scheme_end == std::string_view::npos) return false;  // "null": a sandboxed page or a file
  const std::string_view default_port = origin.substr(0, scheme_end) == "https" ? "443" : "80";
  const auto port_of = [&](const Authority& a) { return a.port.empty() ? default_port : a.port; };
  const Authority page = split_authority(origin.substr(scheme_end + 3)), here = split_authority(host);
  return iequals(page.host, here.host) && port_of(page) == port_of(here);
}

/// Header text that is safe inside an answer.
std::string shown(std::string_view text) {
  constexpr size_t kShownMax = 100;
  const bool visible = std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  return visible && text.size() <= kShownMax ? "\"" + std::string(text) + "\"" : "(not shown)";
}

}  // namespace

std::optional<Response> refuse_foreign(const Request& request, const SitePolicy& policy) {
  const std::string_view host = find_header(request.headers, "host");
  const bool has_host = request.http11 || !host.empty();  // HTTP/1.0 may leave it out; no browser does
  if (policy.checks_host && has_host && !is_own_host(split_authority(host).host, policy))
    return error_response(err::kForeignSite, "Host " + shown(host) +
                                                 " is not a name of this server: its names are localhost, loopback "
                                                 "addresses and those of --allowed-host");
  for (const Header& header : request.headers) {
    if (header.name != "origin" || is_same_site(header.value, host)) continue;
    const bool allowed = std::any_of(policy.own_origins.begin(), policy.own_origins.end(),
                                     [&](const std::string& own) { return iequals(header.value, own); });
    if (!allowed)
      return error_response(err::kForeignSite,
                            "a web page of origin " + shown(header.value) +
                                " may not send requests to this server; --allowed-origin lists the pages that may");
  }
  return std::nullopt;
}

}  // namespace mc::http
