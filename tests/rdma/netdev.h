// Changes to the network devices of scripts/rdma-vm, and the kernel's counts of what they sent and of the verbs objects
// it holds. They use ioctl and netlink, because to start `ip`, `tc` or `rdma` takes an emulated machine a tenth of a
// second, as long as many a test.
#pragma once

#include <arpa/inet.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <rdma/rdma_netlink.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "test.h"

namespace mc::test {

/// A request to the kernel and its answers.
class Netlink {
 public:
  Netlink(int protocol, int type, int flags) : protocol_(protocol) {
    put(nlmsghdr{.nlmsg_type = static_cast<uint16_t>(type),
                 .nlmsg_flags = static_cast<uint16_t>(NLM_F_REQUEST | flags)});
  }
  template <class Value>
  void put(const Value& value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    request_.insert(request_.end(), bytes, bytes + sizeof value);
    request_.resize(NLMSG_ALIGN(request_.size()));
  }
  template <class Value>
  void attribute(uint16_t type, const Value& value) {
    put(nlattr{.nla_len = static_cast<uint16_t>(NLA_HDRLEN + sizeof value), .nla_type = type});
    put(value);
  }
  /// An attribute that contains what `fill` adds.
  template <class Fill>
  void nested(uint16_t type, Fill fill) {
    const size_t at = request_.size();
    put(nlattr{.nla_type = type});
    fill();
    const auto bytes = static_cast<uint16_t>(request_.size() - at);
    std::memcpy(request_.data() + at + offsetof(nlattr, nla_len), &bytes, sizeof bytes);
  }
  /// Sends the request. Calls `each` with the content of every message of the answer. Returns an errno, 0 = done.
  template <class Each>
  int send(Each each) {
    const auto bytes = static_cast<uint32_t>(request_.size());
    std::memcpy(request_.data() + offsetof(nlmsghdr, nlmsg_len), &bytes, sizeof bytes);
    const Fd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol_));
    REQUIRE(::send(fd.get(), request_.data(), request_.size(), 0) == static_cast<ssize_t>(request_.size()));
    std::vector<std::byte> answer(32768);
    for (;;) {
      const ssize_t got = ::recv(fd.get(), answer.data(), answer.size(), 0);
      REQUIRE(got > 0);
      std::span<const std::byte> rest(answer.data(), static_cast<size_t>(got));
      while (rest.size() >= sizeof(nlmsghdr)) {
        nlmsghdr header;
        std::memcpy(&header, rest.data(), sizeof header);
        REQUIRE((header.nlmsg_len >= sizeof header && header.nlmsg_len <= rest.size()));
        if (header.nlmsg_type == NLMSG_DONE) return 0;
        const auto content = rest.first(header.nlmsg_len).subspan(NLMSG_HDRLEN);
        if (header.nlmsg_type == NLMSG_ERROR) {
          int error = 0;
          std::memcpy(&error, content.data(), sizeof error);
          return -error;
        }
        each(content);
        rest = rest.subspan(std::min<size_t>(rest.size(), NLMSG_ALIGN(header.nlmsg_len)));
      }
    }
  }
  /// Sends a request that has no other answer than success or failure. Such a request needs NLM_F_ACK.
  int send() {
    return send([](std::span<const std::byte>) {});
  }

 private:
  int protocol_;
  std::vector<std::byte> request_;
};

/// Calls `each` with the type and the content of every attribute.
template <class Each>
void for_each_attribute(std::span<const std::byte> attributes, Each each) {
  while (attributes.size() >= NLA_HDRLEN) {
    nlattr header;
    std::memcpy(&header, attributes.data(), sizeof header);
    REQUIRE((header.nla_len >= NLA_HDRLEN && header.nla_len <= attributes.size()));
    each(header.nla_type & NLA_TYPE_MASK, attributes.first(header.nla_len).subspan(NLA_HDRLEN));
    attributes = attributes.subspan(std::min<size_t>(attributes.size(), NLA_ALIGN(header.nla_len)));
  }
}

template <class Value>
Value value_of(std::span<const std::byte> content) {
  Value value{};
  std::memcpy(&value, content.data(), std::min(sizeof value, content.size()));
  return value;
}

inline int index_of(const std::string& netdev) {
  const unsigned index = ::if_nametoindex(netdev.c_str());
  REQUIRE_MESSAGE(index > 0, "no device " << netdev);
  return static_cast<int>(index);
}

namespace netdev {

inline void change(const std::string& netdev, int request, ifreq& content) {
  const Fd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  std::snprintf(content.ifr_name, sizeof content.ifr_name, "%s", netdev.c_str());
  REQUIRE_MESSAGE(::ioctl(fd.get(), static_cast<unsigned long>(request), &content) == 0, netdev);
}

}  // namespace netdev

/// As `ip link set NETDEV up` or `down`. Returns the moment before the change.
inline TimePoint set_link(const std::string& netdev, bool up) {
  ifreq request{};
  netdev::change(netdev, SIOCGIFFLAGS, request);
  request.ifr_flags = static_cast<short>(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
  const TimePoint moment = SystemClock::instance().now();
  netdev::change(netdev, SIOCSIFFLAGS, request);
  return moment;
}

/// As `ip link set NETDEV mtu BYTES`.
inline void set_mtu(const std::string& netdev, int bytes) {
  ifreq request{};
  request.ifr_mtu = bytes;
  netdev::change(netdev, SIOCSIFMTU, request);
}

/// As `ip addr add ADDRESS/24 dev NETDEV`, or `ip addr del`.
inline void set_address(const std::string& netdev, const std::string& address, bool present) {
  in_addr number{};
  REQUIRE(::inet_pton(AF_INET, address.c_str(), &number) == 1);
  Netlink request(NETLINK_ROUTE, present ? RTM_NEWADDR : RTM_DELADDR,
                  NLM_F_ACK | (present ? NLM_F_CREATE | NLM_F_EXCL : 0));
  request.put(
      ifaddrmsg{.ifa_family = AF_INET, .ifa_prefixlen = 24, .ifa_index = static_cast<uint32_t>(index_of(netdev))});
  request.attribute(IFA_LOCAL, number);
  request.attribute(IFA_ADDRESS, number);
  CHECK_MESSAGE(request.send() == 0, address << " on " << netdev);
}

/// Effects of netem on the packets that a network device sends.
struct NetemPlan {
  double loss = 0;  // share of the packets that it drops
  Duration delay{};
  uint32_t mbit_per_s = 0;  // 0 = as fast as they come
};

/// As `tc qdisc replace dev NETDEV root netem limit 4000 ...`.
inline void set_netem(const std::string& netdev, const NetemPlan& plan) {
  Netlink request(NETLINK_ROUTE, RTM_NEWQDISC, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE);
  request.put(tcmsg{.tcm_family = AF_UNSPEC, .tcm_ifindex = index_of(netdev), .tcm_parent = TC_H_ROOT});
  request.attribute(TCA_KIND, std::array<char, 6>{"netem"});
  request.nested(TCA_OPTIONS, [&] {
    request.put(tc_netem_qopt{.limit = 4000, .loss = static_cast<uint32_t>(std::lround(plan.loss * UINT32_MAX))});
    request.attribute(TCA_NETEM_LATENCY64, int64_t{plan.delay.count()});
    request.attribute(TCA_NETEM_RATE, tc_netem_rate{.rate = plan.mbit_per_s * 125'000});
  });
  CHECK_MESSAGE(request.send() == 0, "netem on " << netdev);
}

/// As `tc qdisc del dev NETDEV root`.
inline void end_netem(const std::string& netdev) {
  Netlink request(NETLINK_ROUTE, RTM_DELQDISC, NLM_F_ACK);
  request.put(tcmsg{.tcm_family = AF_UNSPEC, .tcm_ifindex = index_of(netdev), .tcm_parent = TC_H_ROOT});
  CHECK_MESSAGE(request.send() == 0, "netem on " << netdev);
}

/// Packets that the netem of a network device has dropped.
inline uint64_t dropped(const std::string& netdev) {
  const int index = index_of(netdev);
  uint64_t count = 0;
  Netlink request(NETLINK_ROUTE, RTM_GETQDISC, NLM_F_DUMP);
  request.put(tcmsg{.tcm_family = AF_UNSPEC});
  const int error = request.send([&](std::span<const std::byte> message) {
    if (value_of<tcmsg>(message).tcm_ifindex != index) return;
    for_each_attribute(message.subspan(NLMSG_ALIGN(sizeof(tcmsg))), [&](int type, std::span<const std::byte> content) {
      if (type == TCA_STATS) count += value_of<tc_stats>(content).drops;
    });
  });
  REQUIRE(error == 0);
  return count;
}

/// Bytes or packets that a network device has sent since it exists; `what` = "bytes" or "packets".
inline uint64_t sent(const std::string& netdev, const std::string& what) {
  std::ifstream file("/sys/class/net/" + netdev + "/statistics/tx_" + what);
  uint64_t count = 0;
  file >> count;
  return count;
}

/// Verbs objects that the kernel holds of one device, by their kind ("qp", "mr", ...).
struct DeviceObjects {
  std::string device;
  std::vector<std::pair<std::string, uint64_t>> counts;
};

/// As `rdma resource show`.
inline std::vector<DeviceObjects> verbs_objects() {
  std::vector<DeviceObjects> devices;
  const auto text = [](std::span<const std::byte> content) {
    return std::string(reinterpret_cast<const char*>(content.data()));  // it ends with a zero
  };
  const auto entry = [&](int, std::span<const std::byte> attributes) {
    auto& [kind, count] = devices.back().counts.emplace_back();
    for_each_attribute(attributes, [&](int type, std::span<const std::byte> content) {
      if (type == RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME) kind = text(content);
      if (type == RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR) count = value_of<uint64_t>(content);
    });
  };
  Netlink request(NETLINK_RDMA, RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_RES_GET), NLM_F_DUMP);
  const int error = request.send([&](std::span<const std::byte> message) {
    devices.emplace_back();
    for_each_attribute(message, [&](int type, std::span<const std::byte> content) {
      if (type == RDMA_NLDEV_ATTR_DEV_NAME) devices.back().device = text(content);
      if (type == RDMA_NLDEV_ATTR_RES_SUMMARY) for_each_attribute(content, entry);
    });
  });
  REQUIRE(error == 0);
  REQUIRE(!devices.empty());
  return devices;
}

}  // namespace mc::test
