#include "host/fixed_ports.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "base/choice.h"
#include "base/errors.h"
#include "base/fd.h"
#include "base/units.h"
#include "base/uri.h"
#include "host/daemon_flags.h"
#include "product/flags.h"

namespace mc {
namespace {
constexpr uint64_t kFirstMax = 65533;  // of three ports
}

Result<void> flags::check_ports(std::string_view value) {
  const auto first = parse_count(value);
  if (first && *first > 0 && *first <= kFirstMax) return {};
  return {Code::invalid, "'" + std::string(value) + "' is not the first of three ports; give 1 to 65533, or any"};
}

namespace host {
namespace {

/// Other errors are reported by whatever listens there.
Result<void> check_free(const HostPort& place) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(place.host.c_str(), std::to_string(place.port).c_str(), &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, freeaddrinfo);
  const Fd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd.get(), found->ai_addr, found->ai_addrlen) == 0 || errno != EADDRINUSE) return {};
  return user_error(err::kPortInUse, place.text() + " is in use", "--ports",
                    "choose three ports in a row that no other process has, or --ports any");
}

}  // namespace

Result<FixedPorts> fixed_ports(const cli::Args& args) {
  if (is_word(args, flags::kPorts)) return FixedPorts{};
  MC_TRY(first, parse_count(args.text(flags::kPorts)));
  const auto port = static_cast<uint16_t>(first);
  const FixedPorts ports{port, static_cast<uint16_t>(port + 1), static_cast<uint16_t>(port + 2)};
  for (const uint16_t port_of_worker : {ports.control, ports.tcp, ports.rdma})
    MC_CHECK(check_free({args.text(flags::kBind), port_of_worker}));
  return ports;
}

}  // namespace host
}  // namespace mc
