// Parts that the tests of the rdma transport share: nodes on the devices of scripts/rdma-vm (rxe0-rxe1 and
// rxe2-rxe3, each pair with a subnet of its own: the holder owns rxe1 and rxe3, the reader rxe0 and
// rxe2), changes to its links that end with their scope, and the kernel's counts of sent and held objects.
#pragma once

#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/fd.h"
#include "count.h"
#include "unit/xfer/pair.h"

namespace mc::xfer::test {

using ::mc::test::count;

inline Options holder_options(const std::string& devices = "rxe1,rxe3") {
  Options options;
  options.rdma_devices = devices;
  options.rdma_cooldown_min = 100ms;
  options.rdma_cooldown_max = 1s;
  options.rdma_timeout = 16;  // 4 x 268 ms: the machine is emulated and shared
  return options;
}

inline Options reader_options(const std::string& devices = "rxe0,rxe2") {
  return holder_options(devices);
}

struct RdmaPair : Pair {
  explicit RdmaPair(size_t bytes = kDefaultBytes, const Options& holder = holder_options(),
                    const Options& reader = reader_options())
      : Pair("rdma", bytes, holder, reader) {}
};

inline void shell(const std::string& command) {
  const int rc = std::system(command.c_str());
  CHECK_MESSAGE(rc == 0, command);
}

/// As `ip link set`, without the 50 ms that starting a program takes here. Returns the moment before the change.
inline TimePoint set_link(const std::string& netdev, bool up) {
  const Fd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::snprintf(request.ifr_name, sizeof request.ifr_name, "%s", netdev.c_str());
  REQUIRE(::ioctl(fd.get(), SIOCGIFFLAGS, &request) == 0);
  request.ifr_flags = static_cast<short>(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
  const TimePoint moment = in(Duration{});
  REQUIRE(::ioctl(fd.get(), SIOCSIFFLAGS, &request) == 0);
  return moment;
}

/// A change of the machine that ends with the scope.
struct Restored {
  std::string undo;
  Restored(const std::string& change, std::string back) : undo(std::move(back)) { shell(change); }
  ~Restored() { shell(undo); }
};

/// Packets that a network device sends are delayed, dropped or paced, in the terms of netem.
struct Netem : Restored {
  Netem(const std::string& netdev, const std::string& what)
      : Restored("tc qdisc add dev " + netdev + " root netem limit 4000 " + what,
                 "tc qdisc del dev " + netdev + " root") {}
};

/// By the netdev's netem since it was added.
inline uint64_t dropped(const std::string& netdev) {
  FILE* pipe = ::popen(("tc -s qdisc show dev " + netdev).c_str(), "r");
  REQUIRE(pipe != nullptr);
  uint64_t count = 0;
  char line[256];
  while (std::fgets(line, sizeof line, pipe) != nullptr)
    if (const char* at = std::strstr(line, "dropped ")) count += std::strtoull(at + 8, nullptr, 10);
  ::pclose(pipe);
  return count;
}

/// By a netdev since it exists; `what` = "bytes" or "packets".
inline uint64_t sent(const std::string& netdev, const std::string& what) {
  std::ifstream file("/sys/class/net/" + netdev + "/statistics/tx_" + what);
  uint64_t count = 0;
  file >> count;
  return count;
}

inline uint64_t sent_bytes(const std::string& netdev) {
  return sent(netdev, "bytes");
}

inline uint64_t read_bytes(Node& node) {
  uint64_t bytes = 0;
  for (const auto& flow : node->counters().flows) bytes += flow.read_bytes;
  return bytes;
}

inline uint64_t failures(Node& node, const std::string& reason) {
  for (const auto& [name, count] : node->counters().failures)
    if (name == reason) return count;
  return 0;
}

/// Yields by waiting for an event that nobody sends.
inline void yield(Duration time = 1ms) {
  auto never = EventFd::open();
  REQUIRE_OK(never);
  (void)never->wait(in(time));
}

/// Looks again until it holds; false after the limit.
template <class Holds>
bool until(Holds holds, Duration limit = kLong) {
  const TimePoint deadline = in(limit);
  while (!holds()) {
    if (in(Duration{}) > deadline) return false;
    yield();
  }
  return true;
}

/// Moves data by `move` until that made the netdev send `bytes` more; false after the limit. The path may have to be
/// dialled first, a second in which an emulated processor had better do nothing: hence the pauses.
template <class Move>
bool carries(const std::string& netdev, uint64_t bytes, Move move) {
  const uint64_t before = sent_bytes(netdev);
  return until([&] {
    move();
    if (sent_bytes(netdev) > before + bytes) return true;
    yield(50ms);
    return false;
  });
}

/// Verbs objects of the machine, and open descriptors of this process.
struct Held {
  std::string verbs;
  ptrdiff_t descriptors = 0;
};

inline Held resources() {
  Held held{.descriptors = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {})};
  FILE* pipe = ::popen("exec rdma resource show", "r");
  REQUIRE(pipe != nullptr);
  char line[256];
  while (std::fgets(line, sizeof line, pipe) != nullptr) held.verbs += line;
  ::pclose(pipe);
  return held;
}

/// The same once every device has its own queue pair alone: the other side of a connection goes a moment later.
inline Held resources_settled() {
  Held now;
  const auto settled = [&] {
    now = resources();
    for (size_t at = now.verbs.find(" qp "); at != std::string::npos; at = now.verbs.find(" qp ", at + 1))
      if (now.verbs.compare(at, 6, " qp 1 ") != 0) return false;
    return true;
  };
  CHECK_MESSAGE(until(settled), now.verbs);
  return now;
}

/// A dead process's objects go a moment after it: the kernel may still be answering for them. Fewer descriptors than
/// before are no leak: a socket of an earlier connection may have been open then.
inline bool resources_become(const Held& expected) {
  Held now;
  const auto same = [&] {
    now = resources();
    return now.verbs == expected.verbs && now.descriptors <= expected.descriptors;
  };
  if (until(same)) return true;
  MESSAGE("held before: " << expected.descriptors << " descriptors\n"
                          << expected.verbs << "held now: " << now.descriptors << " descriptors\n"
                          << now.verbs);
  return false;
}

/// An engine on these devices alone, which gives a silent peer up soon.
inline Options on(const std::string& devices) {
  Options options;
  options.rdma_devices = devices;
  options.rdma_timeout = 16;
  return options;
}

}  // namespace mc::xfer::test
