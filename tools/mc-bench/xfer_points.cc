#include "xfer_points.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>

#include "base/errors.h"
#include "base/units.h"
#include "base/uri.h"
#include "ctl/ctl.h"
#include "host/choice_flags.h"
#include "xfer_flags.h"

namespace mc::bench {
namespace {

std::string peer_text(const cli::Args& args) {
  return args.positional("PEER").empty() ? "" : args.positional_one("PEER");
}

bool is_uri(const std::string& peer) {
  return peer.find("://") != std::string::npos;
}

bool known(const std::string& transport) {
  const auto names = flags::transport_names();
  return std::find(names.begin(), names.end(), transport) != names.end();
}

/// "host", "host:7790", "fe80::1" or "[fe80::1]:7790"; without a port that of --port.
Result<HostPort> place_of(const cli::Args& args, const std::string& peer) {
  HostPort out{peer, static_cast<uint16_t>(args.count(kXferPort))};
  if (peer.starts_with('[') && peer.ends_with(']')) out.host = peer.substr(1, peer.size() - 2);
  if (!has_port(peer)) return out;
  auto place = parse_host_port(peer);
  if (!place)
    return user_error(err::kBadValue, place.error().what, "PEER", "a host, HOST:PORT, or a URI of a --server");
  return *place;
}

Result<std::vector<uint64_t>> ranged(std::vector<uint64_t> values, uint64_t low, uint64_t high, const char* flag,
                                     const char* range) {
  for (const uint64_t value : values)
    if (value < low || value > high) return user_error(err::kBadValue, std::string(flag) + " is " + range, flag);
  return values;
}

constexpr std::array<std::string_view, 4> kOpNames = {"read", "write", "write_imm", "map"};
static_assert(kOpNames.size() == static_cast<size_t>(XferOp::map) + 1);
constexpr std::array<std::string_view, 2> kClassNames = {"urgent", "bulk"};
static_assert(kClassNames.size() == xfer::kTransferClasses);

/// "read, write, write_imm or map".
std::string choices_text(std::span<const std::string_view> names) {
  std::string out;
  for (size_t i = 0; i < names.size(); ++i)
    out += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + std::string(names[i]);
  return out;
}

/// The values of a flag as places in its names. MC1002 lists the names, and `rest`, for a word that is none of them.
Result<std::vector<size_t>> places_of(const std::vector<std::string>& words, std::span<const std::string_view> names,
                                      const char* flag, const char* rest = "") {
  std::vector<size_t> out;
  for (const std::string& word : words) {
    const auto at = std::find(names.begin(), names.end(), word);
    if (at == names.end())
      return user_error(err::kBadValue, std::string(flag) + " is " + choices_text(names) + rest, flag);
    out.push_back(static_cast<size_t>(at - names.begin()));
  }
  return out;
}

}  // namespace

std::string_view to_string(XferOp op) {
  return kOpNames[static_cast<size_t>(op)];
}

std::string_view to_string(xfer::TransferClass transfer_class) {
  return kClassNames[static_cast<size_t>(transfer_class)];
}

bool has_port(const std::string& peer) {
  if (is_uri(peer)) return true;
  return peer.starts_with('[') ? !peer.ends_with(']') : std::count(peer.begin(), peer.end(), ':') == 1;
}

Result<std::vector<std::string>> transports_of(const cli::Args& args) {
  const std::string peer = peer_text(args);
  auto out = args.list(kTransports);
  if (!peer.empty() && !args.given(kTransports)) {
    if (is_uri(peer))
      out = {peer.substr(0, peer.find("://"))};
    else if (!is_loopback(peer_host(args)))
      out = {"tcp"};
  }
  if (!args.given(kTransports) && !args.on(kServer) && args.list(kOp) == std::vector<std::string>{"map"}) out = {"shm"};
  for (const std::string& transport : out) {
    if (known(transport)) continue;
    const bool flag = args.given(kTransports) || peer.empty();
    std::string names;
    for (const std::string_view name : flags::transport_names()) (names += names.empty() ? "" : ", ") += name;
    return user_error(err::kBadValue, "'" + transport + "' is no transport; there are " + names,
                      flag ? "--transport" : "PEER", "name one of them, or several with commas");
  }
  return out;
}

Result<std::vector<Point>> points_of(const cli::Args& args, const std::vector<std::string>& transports) {
  MC_TRY(classes, places_of(args.list(kClass), kClassNames, "--class"));
  const auto seal_names = xfer::seal_names();
  MC_TRY(seals, places_of(args.list(kXferSeal), seal_names, "--tcp-seal"));
  MC_TRY(ops, places_of(args.list(kOp), kOpNames, "--op", ", or register alone"));
  const bool maps = std::ranges::count(ops, static_cast<size_t>(XferOp::map)) > 0;
  if (maps && (transports != std::vector<std::string>{"shm"} || args.present(kAgainst)))
    return user_error(err::kBadValue, "--op map is for --transport shm, without --against", "--op");
  MC_TRY(streams, ranged(args.sweep(kStreams), 1, 63, "--streams", "1 to 63"));
  MC_TRY(sizes, ranged(args.sweep(kSize), 64, kGiB, "--size", "64B to 1GiB"));
  MC_TRY(batches, ranged(args.sweep(kBatch), 1, 65536, "--batch", "1 to 65536"));
  MC_TRY(depths, ranged(args.sweep(kDepth), 1, 256, "--depth", "1 to 256"));
  std::vector<Point> out;
  for (const std::string& transport : transports) {
    const bool over_sockets = transport == "tcp";
    for (const size_t op : ops)
      for (const uint64_t stream : over_sockets ? streams : std::vector<uint64_t>{1})
        for (const uint64_t bytes : sizes)
          for (const uint64_t batch : batches)
            for (const uint64_t depth : depths) {
              if (bytes * batch * depth > 16 * kGiB)
                return user_error(err::kBadValue, "more than 16 GiB would be in flight: size x batch x depth",
                                  "--size");
              for (const size_t transfer_class : classes)
                for (const size_t seal : transport == "shm" ? std::vector<size_t>{0} : seals)
                  out.push_back({transport, over_sockets, static_cast<XferOp>(op),
                                 static_cast<xfer::TransferClass>(transfer_class), std::string(seal_names[seal]),
                                 stream, bytes, batch, depth});
            }
  }
  return out;
}

Result<uint64_t> memory_of(const cli::Args& args, const std::vector<Point>& points) {
  const uint64_t asked = args.bytes(kMemory);
  uint64_t most = 0;
  for (const Point& point : points) most = std::max(most, point.bytes);
  if (args.present(kBeside)) {
    if (args.bytes(kBeside) > kGiB) return user_error(err::kBadValue, "--beside is at most 1GiB", "--beside");
    most = std::max(most, args.bytes(kBeside));
  }
  if (!args.given(kMemory)) return std::max(asked, most);
  if (args.on(kServer) || asked >= most) return asked;  // what clients ask for is not the server's to know
  return user_error(
      err::kBadValue,
      human_bytes(asked) + " cannot hold the largest request, " + human_bytes(most) + " (--size, --beside)", "--memory",
      "more memory, or smaller requests: --size 64KiB");
}

std::string peer_host(const cli::Args& args) {
  const std::string peer = peer_text(args);
  if (is_uri(peer)) {
    const auto place = parse_host_port(std::string_view(peer).substr(peer.find("://") + 3));
    return place && !peer.starts_with("shm://") ? place->host : std::string();
  }
  const auto place = place_of(args, peer);
  return place ? place->host : peer;
}

std::string shm_address(const std::string& run_dir, uint64_t port) {
  return run_dir + "/bench-" + std::to_string(port);
}

Result<std::string> peer_address(const cli::Args& args, const std::string& transport) {
  const std::string peer = peer_text(args);
  if (is_uri(peer)) {
    if (peer.starts_with(transport + "://")) return peer;
    return user_error(err::kBadValue, peer + " is not an address of transport " + transport, "PEER",
                      "leave --transport out: the URI says it; or give the host alone");
  }
  MC_TRY(place, place_of(args, peer));
  if (transport == "tcp") return "tcp://" + place.text();
  if (transport == "shm") {
    if (is_loopback(place.host)) {
      MC_TRY(run_dir, ctl::run_dir([](const char* name) -> const char* { return std::getenv(name); }));
      return "shm://" + shm_address(run_dir, place.port);
    }
    return user_error(err::kTransportUnusable, "shm reaches this host only, not " + place.host, "--transport",
                      "--transport tcp or rdma");
  }
  if (place.port == UINT16_MAX)
    return user_error(err::kBadValue, peer + ": rdma listens one port above tcp", "PEER", "the server's rdma:// URI");
  ++place.port;
  return "rdma://" + place.text();
}

}  // namespace mc::bench
