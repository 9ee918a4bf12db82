// What the tests of the rdma transport share: nodes on the devices of scripts/rdma-vm (rxe0-rxe1 and
// rxe2-rxe3, each pair with a subnet of its own: the holder owns rxe1 and rxe3, the reader rxe0 and
// rxe2), changes to its links that end with their scope, and what the kernel says was sent and is held.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "base/fd.h"
#include "unit/xfer/pair.h"

namespace mc::xfer::test {

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

/// MC_RDMA_FULL in the environment: as many as were promised.
inline int rounds(int full, int quick) {
  return std::getenv("MC_RDMA_FULL") != nullptr ? full : quick;
}

inline void shell(const std::string& command) {
  const int rc = std::system(command.c_str());
  CHECK_MESSAGE(rc == 0, command);
}

inline void link(const std::string& netdev, bool up) {
  shell("ip link set dev " + netdev + (up ? " up" : " down"));
}

/// A change of the machine that ends with the scope.
struct Restored {
  std::string undo;
  Restored(const std::string& change, std::string back) : undo(std::move(back)) { shell(change); }
  ~Restored() { shell(undo); }
};

/// What a netdev sends is delayed, dropped or paced, as netem calls it.
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
inline void yield() {
  auto never = EventFd::open();
  REQUIRE_OK(never);
  (void)never->wait(in(1ms));
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

/// What the machine holds of verbs objects, and this process of descriptors.
inline std::string resources() {
  std::string text;
  FILE* pipe = ::popen("rdma resource show; ls /proc/$PPID/fd | wc -l", "r");
  REQUIRE(pipe != nullptr);
  char line[256];
  while (std::fgets(line, sizeof line, pipe) != nullptr) text += line;
  ::pclose(pipe);
  return text;
}

/// The same once every device has its own queue pair alone: the other side of a connection goes a moment later.
inline std::string resources_settled() {
  std::string now;
  const auto settled = [&] {
    now = resources();
    for (size_t at = now.find(" qp "); at != std::string::npos; at = now.find(" qp ", at + 1))
      if (now.compare(at, 6, " qp 1 ") != 0) return false;
    return true;
  };
  CHECK_MESSAGE(until(settled), now);
  return now;
}

/// A dead process's objects go a moment after it: the kernel may still be answering for them.
inline bool resources_become(const std::string& expected) {
  std::string now;
  if (until([&] { return (now = resources()) == expected; })) return true;
  MESSAGE("held before:\n" << expected << "held now:\n" << now);
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
