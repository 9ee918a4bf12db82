// Listeners of a process that has run out of descriptors.
#include <sys/resource.h>
#include <sys/un.h>
#include <unistd.h>

#include "raw_peer.h"

namespace accept_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

/// While it lives this process can open nothing: the limit is the lowest number that is free.
class NoDescriptors {
 public:
  NoDescriptors() {
    // UBSan's first look at an object of a class opens a pipe, and reports a wrong object where it gets none.
    (void)SystemClock::instance().now();
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const int free = ::dup(0);
    REQUIRE(free >= 0);
    ::close(free);
    const rlimit none{static_cast<rlim_t>(free), before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

uint64_t exhausted(Node& node) {
  for (const auto& [reason, count] : node->counters().failures)
    if (reason == "accept: out of descriptors or memory") return count;
  return 0;
}

void dial(int fd, const std::string& uri) {
  if (uri.starts_with("tcp://")) {
    const auto place = parse_host_port(std::string_view(uri).substr(6));
    REQUIRE_OK(place);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(place->port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    return;
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = uri.substr(6);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  REQUIRE(::connect(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
}

}  // namespace

TEST_CASE("xfer: a listener without descriptors for those who dial looks again later, and accepts them then") {
  for (const std::string transport : {"tcp", "shm"}) {
    INFO(transport);
    Node node("n", transport);
    const Fd caller(
        ::socket(transport == "tcp" ? AF_INET : AF_UNIX, transport == "tcp" ? SOCK_STREAM : SOCK_SEQPACKET, 0));
    REQUIRE(caller);
    {
      const NoDescriptors none;
      const TimePoint begin = SystemClock::instance().now();  // the engine may look before dial() is back
      dial(caller.get(), node->uris().front());
      while (exhausted(node) < 2 && SystemClock::instance().now() < begin + kLong) node->poll(node.seen, in(5ms));
      // A loop that spins on it would count thousands.
      const uint64_t looks = exhausted(node);
      const auto pauses = static_cast<uint64_t>((SystemClock::instance().now() - begin) / 100ms);
      CHECK(looks >= 2);
      CHECK(looks <= pauses + 1);
      CHECK(node->counters().accepts == 0);
    }
    const TimePoint end = in(kLong);
    while (node->counters().accepts == 0 && SystemClock::instance().now() < end) node->poll(node.seen, in(5ms));
    CHECK(node->counters().accepts == 1);
  }
}

}  // namespace accept_test
