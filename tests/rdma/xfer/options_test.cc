// Effects of two options on packets and paths: traffic class and cooldown. (Pace:
// twins_test.cc; lanes, pairs and sends: pool_test.cc, notify_test.cc.)
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <map>

#include "machine.h"

namespace options_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

constexpr uint16_t kRoceV2Port = 4791;

/// Sees the IPv4 packets that come in at a netdev.
class Sniffer {
 public:
  explicit Sniffer(const char* netdev)
      : fd_(::socket(AF_PACKET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, htons(ETH_P_IP))) {
    REQUIRE(fd_.get() >= 0);
    sockaddr_ll at{};
    at.sll_family = AF_PACKET;
    at.sll_protocol = htons(ETH_P_IP);
    at.sll_ifindex = static_cast<int>(::if_nametoindex(netdev));
    REQUIRE(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
  }
  /// Traffic classes of the RoCE packets seen so far, with their counts.
  std::map<int, size_t> classes() {
    std::map<int, size_t> out;
    std::array<uint8_t, 64> head;
    for (;;) {
      sockaddr_ll from{};
      socklen_t size = sizeof from;
      const ssize_t bytes =
          ::recvfrom(fd_.get(), head.data(), head.size(), 0, reinterpret_cast<sockaddr*>(&from), &size);
      if (bytes < 28) return out;
      const size_t ip_bytes = size_t{head[0]} % 16 * 4;
      const bool udp = head[9] == IPPROTO_UDP && ip_bytes + 4 <= head.size();
      const int port = udp ? head[ip_bytes + 2] << 8 | head[ip_bytes + 3] : 0;
      if (port == kRoceV2Port && from.sll_pkttype != PACKET_OUTGOING) ++out[head[1]];
    }
  }

 private:
  Fd fd_;
};

}  // namespace

TEST_CASE("rdma/xfer: packets carry the traffic class of the side that sends them") {
  Options reader = reader_options("rxe0");
  reader.rdma_traffic_class = 104;
  RdmaPair pair(RdmaPair::kDefaultBytes, holder_options("rxe1"), reader);
  Sniffer to_holder("v1"), to_reader("v0");
  CHECK(pair.reader.run({{pair.write(0, 0, size_t{128} << 10)}}) == Code::ok);
  CHECK(pair.reader.run({{pair.read(0, 0, size_t{128} << 10)}}) == Code::ok);
  const auto sent = to_holder.classes(), answered = to_reader.classes();
  REQUIRE(sent.size() == 1);
  CHECK(sent.begin()->first == 104);
  REQUIRE(answered.size() == 1);
  CHECK(answered.begin()->first == 0);
}

TEST_CASE("rdma/xfer: a path that failed rests for its cooldown, not for less, while another carries on") {
  Options reader = reader_options();
  reader.rdma_timeout = 12;  // 4 x 17 ms to notice
  reader.rdma_retry = 3;
  reader.rdma_cooldown_min = reader.rdma_cooldown_max = 1500ms;
  RdmaPair pair(RdmaPair::kDefaultBytes, holder_options(), reader);
  const auto carry = [&] { return pair.reader.run({{pair.read(0, 0, size_t{512} << 10)}}) == Code::ok; };
  REQUIRE(carry());
  constexpr const char* kFault = "rdma: path fault";
  TimePoint healthy{};  // the last moment at which the path had not failed
  {
    const Netem silent("v1", {.loss = 1});
    CHECK(until([&] {
      healthy = in(Duration{});
      return carry() && failures(pair.reader, kFault) > 0;
    }));
  }
  CHECK(carries("v1", size_t{1} << 17, carry));
  CHECK(in(Duration{}) - healthy >= reader.rdma_cooldown_min);
  CHECK(pair.reader->counters().batches_failed == 0);
}

}  // namespace options_test
