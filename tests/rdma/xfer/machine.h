// Parts that the tests of the rdma transport share: nodes on the devices of scripts/rdma-vm (rxe0-rxe1 and
// rxe2-rxe3, each pair with a subnet of its own: the holder owns rxe1 and rxe3, the reader rxe0 and
// rxe2), changes to its links that end with their scope, and the kernel's counts of sent and held objects.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "base/fd.h"
#include "count.h"
#include "rdma/netdev.h"
#include "unit/xfer/pair.h"

namespace mc::xfer::test {

using ::mc::test::count;
using ::mc::test::dropped;
using ::mc::test::end_netem;
using ::mc::test::NetemPlan;
using ::mc::test::sent;
using ::mc::test::set_address;
using ::mc::test::set_link;
using ::mc::test::set_mtu;
using ::mc::test::set_netem;

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
  static constexpr size_t kDefaultBytes = size_t{1} << 20;  // less than Pair's, as an emulated machine pins every page
  explicit RdmaPair(size_t bytes = kDefaultBytes, const Options& holder = holder_options(),
                    const Options& reader = reader_options())
      : Pair("rdma", bytes, holder, reader) {}
};

/// A change of the machine that ends with the scope.
struct Restored {
  std::function<void()> undo;
  Restored(const std::function<void()>& change, std::function<void()> back) : undo(std::move(back)) { change(); }
  ~Restored() { undo(); }
};

/// Effects of netem on the packets of a network device, which end with the scope.
struct Netem : Restored {
  Netem(const std::string& netdev, const NetemPlan& plan)
      : Restored([&] { set_netem(netdev, plan); }, [netdev] { end_netem(netdev); }) {}
};

/// An address that a network device gains or loses until the end of the scope.
struct Address : Restored {
  Address(const std::string& netdev, const std::string& address, bool present)
      : Restored([&] { set_address(netdev, address, present); }, [=] { set_address(netdev, address, !present); }) {}
};

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
bool until(Holds holds, Duration limit = kLong, Duration pause = 1ms) {
  const TimePoint deadline = in(limit);
  while (!holds()) {
    if (in(Duration{}) > deadline) return false;
    yield(pause);
  }
  return true;
}

/// Moves data by `move` until that made the netdev send `bytes` more; false after the limit. The path may have to be
/// dialled first, a second in which an emulated processor had better do nothing: hence the pauses. Moves are large,
/// because a path that moves 11.6 MB/s takes 512 KiB alone, and then the other one carries nothing.
template <class Move>
bool carries(const std::string& netdev, uint64_t bytes, Move move) {
  const uint64_t before = sent_bytes(netdev);
  const auto moved = [&] {
    move();
    return sent_bytes(netdev) > before + bytes;
  };
  return until(moved, kLong, 50ms);
}

/// Verbs objects of the machine, by device and kind ("rxe0 qp"), and open descriptors of this process.
struct Held {
  std::map<std::string, uint64_t> objects;
  ptrdiff_t descriptors = 0;
  bool operator==(const Held&) const = default;
};

inline Held held_now() {
  Held held{.descriptors = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {})};
  for (const auto& [device, counts] : ::mc::test::verbs_objects())
    for (const auto& [kind, count] : counts) held.objects[device + " " + kind] = count;
  return held;
}

/// The counts of Held once they have not changed for 100 ms: when one side of a connection comes or goes, the other
/// side follows a moment later.
inline Held resources() {
  Held held = held_now();
  TimePoint since = in(Duration{});
  const auto unchanged = [&] {
    Held now = held_now();
    if (now != held) since = in(Duration{});
    held = std::move(now);
    return in(Duration{}) - since >= 100ms;
  };
  CHECK(until(unchanged, kLong, 20ms));
  return held;
}

/// The counts of Held once every device has no queue pair but its own.
inline Held resources_settled() {
  Held held;
  const auto settled = [&] {
    held = resources();
    return std::none_of(held.objects.begin(), held.objects.end(),
                        [](const auto& each) { return each.first.ends_with(" qp") && each.second != 1; });
  };
  CHECK(until(settled));
  return held;
}

/// True once nothing more is held than `before`. A dead process's objects go a moment after it: the kernel may still be
/// answering for them.
inline bool resources_become(const Held& before) {
  Held now;
  const auto no_more = [&] {
    now = held_now();
    return now.descriptors <= before.descriptors &&
           std::all_of(now.objects.begin(), now.objects.end(), [&](const auto& each) {
             const auto known = before.objects.find(each.first);
             return each.second <= (known == before.objects.end() ? 0 : known->second);
           });
  };
  if (until(no_more, kLong, 5ms)) return true;
  MESSAGE("descriptors: " << before.descriptors << ", now " << now.descriptors);
  for (const auto& [kind, count] : now.objects) {
    const auto known = before.objects.find(kind);
    MESSAGE(kind << ": " << (known == before.objects.end() ? 0 : known->second) << ", now " << count);
  }
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
