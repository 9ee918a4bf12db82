// A place is one string. The scheme selects the table entry that knows the rest:
//   tcp://host:port  ipc:///run/mc.sock  shm://name  rdma://mlx5_0:1  file:///path  sim:  null:
// Hosts may be names, IPv4, or IPv6 in brackets. Nothing is resolved here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace mc {

struct HostPort {
  std::string host;  // without brackets; empty means "every address" or the caller's default
  uint16_t port = 0;
  /// "127.0.0.1:80", "[::1]:80".
  std::string text() const;
  bool operator==(const HostPort&) const = default;
};

struct Uri {
  std::string scheme;            // lower case, never empty
  std::string host;              // authority without port, or the name of shm:// and ipc://@abstract
  std::optional<uint16_t> port;  // 0 means "pick a free one" when binding
  std::string path;              // from the first '/', for ipc and file
  std::string text() const;
  bool operator==(const Uri&) const = default;
};

/// Code::invalid quoting the text and the grammar when it is not a URI of the forms above.
Result<Uri> parse_uri(std::string_view text);
/// "host:port", "[v6]:port", ":port" or a bare port (host stays `default_host`).
Result<HostPort> parse_host_port(std::string_view text, std::string_view default_host = "127.0.0.1");
/// 127.0.0.0/8, ::1 and "localhost". The empty host and wildcards are not loopback.
bool is_loopback(std::string_view host);
/// ipc, shm, sim, null and loopback tcp stay on this machine; everything else leaves it.
bool is_local(const Uri& uri);

}  // namespace mc
