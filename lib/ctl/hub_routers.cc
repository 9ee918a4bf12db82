#include "ctl/hub_routers.h"

#include <algorithm>

#include "base/assert.h"
#include "base/log.h"

namespace mc::ctl {
namespace {

constexpr Duration kBindRetry = 10ms;

std::string text_of(const Bytes& bytes) {
  return std::string(bytes.begin(), bytes.end());
}

}  // namespace

SocketOptions router_options(const HubOptions& options, const std::optional<KeySet>& keys, const Uri& uri) {
  SocketOptions out;
  out.message_bytes_max = std::max(options.message_bytes_max, wire::kEnvelopeBytesMax);
  out.ipv6 = uri.host.find(':') != std::string::npos;
  out.handshake = options.handshake;
  out.connections_max = std::max<size_t>(1, options.connections_max / std::max<size_t>(1, options.listen.size()));
  if (keys && uri.scheme == "tcp") {
    out.server_public = keys->server_public;
    out.server_secret = keys->server_secret;
  }
  return out;
}

Routers::Routers(Context& context, const HubOptions& options, Events& events, std::vector<Socket> sockets,
                 std::optional<Socket> zap)
    : context_(context),
      options_(options),
      events_(events),
      keys_(options.keys),
      sockets_(std::move(sockets)),
      zap_(std::move(zap)),
      refused_(sockets_.size()) {
  MC_ASSERT_EQ(sockets_.size(), options.listen.size());
}

Code Routers::send(const RouteKey& route, std::span<const uint8_t> envelope, std::span<const uint8_t> body) {
  MC_ASSERT_LT(route.first, sockets_.size());
  const std::span<const uint8_t> frames[] = {route.second, envelope, body};
  return sockets_[route.first].send(frames);
}

void Routers::set_keys(const std::optional<KeySet>& keys, TimePoint now) {
  keys_ = keys;
  for (size_t router = 0; router < size(); ++router)
    if (listen(router).scheme == "tcp") unbound_[router] = now;
}

/// Binds again the addresses whose old sockets libzmq has released, some time after they were closed.
void Routers::bind_again(TimePoint now) {
  for (auto it = unbound_.begin(); it != unbound_.end();) {
    auto& [router, again] = *it;
    if (now < again) {
      ++it;
      continue;
    }
    const std::string place = sockets_[router].bound();
    auto socket = Socket::open(context_, SocketKind::router, router_options(options_, keys_, listen(router)));
    if (socket) {
      sockets_[router].unbind();
      if (auto bound = socket->bind(place)) {
        sockets_[router] = std::move(*socket);
        it = unbound_.erase(it);
        continue;
      }
    }
    again = now + kBindRetry;
    ++it;
  }
}

TimePoint Routers::next_bind() const {
  TimePoint at = kNever;
  for (const auto& [router, again] : unbound_) at = std::min(at, again);
  return at;
}

void Routers::count_connections() {
  HubStats& stats = events_.stats;
  stats.connections = 0;
  for (size_t r = 0; r < size(); ++r) {
    stats.connections += sockets_[r].connections();
    const uint64_t refused = sockets_[r].refused(), before = std::exchange(refused_[r], refused);
    if (refused <= before) continue;  // a router that was bound again counts from 0
    stats.connections_refused += refused - before;
    log_warn(
        "control connections refused: too many are open",
        {{"listen", sockets_[r].bound()}, {"open", sockets_[r].connections()}, {"refused", stats.connections_refused}});
  }
}

void Routers::answer_zap(const SocketMessage& message) {
  // The frames of RFC 27: version, request id, domain, address, identity, mechanism, credentials.
  const auto& f = message.frames;
  if (message.frame_count < 2) return;
  bool allowed = message.frame_count == 7 && text_of(f[0]) == "1.0" && text_of(f[5]) == "CURVE" && f[6].size() == 32;
  allowed = allowed && keys_ && z85_text(f[6]) == keys_->client_public;
  if (!allowed && message.frame_count > 3) refused_address_ = text_of(f[3]);
  auto view = [](std::string_view text) {
    return std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  };
  const std::span<const uint8_t> reply[] = {
      f[0], f[1], view(allowed ? "200" : "400"), view(allowed ? "OK" : "unknown key"), view(allowed ? "cluster" : ""),
      {}};
  zap_->send(reply);
}

}  // namespace mc::ctl
