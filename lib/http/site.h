// Refusal of requests from foreign web pages. A web page of any site can make the browsers of this host send requests
// to loopback, either openly (the request then carries the page's Origin) or under a name of the page's own domain
// that resolves to 127.0.0.1 (DNS rebinding: Host then carries that name). Programs send neither.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "http/message.h"

namespace mc::http {

struct SitePolicy {
  bool checks_host = false;              // the listener is on loopback, or names were given
  std::vector<std::string> own_hosts;    // names of this server besides localhost and loopback addresses
  std::vector<std::string> own_origins;  // "https://chat.example": pages that may send requests
};

/// The 403 (MC4027) for a request whose Host is not this server's, or whose Origin differs from its Host; nullopt when
/// the request is fine.
std::optional<Response> refuse_foreign(const Request& request, const SitePolicy& policy);

}  // namespace mc::http
