#include <arpa/inet.h>
#include <sys/socket.h>

#include <array>
#include <limits>
#include <set>

#include "base/fd.h"
#include "ctl/zmq_socket.h"
#include "test.h"

using namespace mc;
using namespace mc::ctl;

namespace {

std::span<const uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string text_of(const Bytes& bytes) {
  return {bytes.begin(), bytes.end()};
}

struct Connected {
  Context context = Context::open().value();
  Socket router = Socket::open(context, SocketKind::router, {}).value();
  Socket dealer = Socket::open(context, SocketKind::dealer, {}).value();
  Connected() {
    REQUIRE_OK(router.bind("inproc://here"));
    REQUIRE_OK(dealer.connect(router.bound()));
  }
  /// The next message that the router has.
  SocketMessage next() {
    std::array<PollItem, 1> items{PollItem{.socket = &router}};
    REQUIRE_OK(poll_sockets(items, 10s));
    auto message = router.receive();
    REQUIRE(message.has_value());
    return std::move(*message);
  }
};

}  // namespace

TEST_CASE("ctl/socket: a message without memory for its last frame is not begun") {
  Connected pair;
  // No machine has memory for the second frame, so none of its bytes is read.
  const std::span<const uint8_t> large(bytes_of("x").data(), std::numeric_limits<size_t>::max() / 4);
  const std::array<std::span<const uint8_t>, 2> too_much{bytes_of("head"), large};
  CHECK(pair.dealer.send(too_much) == Code::busy);
  const std::array<std::span<const uint8_t>, 2> right{bytes_of("head"), bytes_of("body")};
  REQUIRE(pair.dealer.send(right) == Code::ok);
  const SocketMessage got = pair.next();
  REQUIRE_EQ(got.frame_count, 3);  // the router's own frame comes first
  CHECK_EQ(text_of(got.frames[1]), "head");
  CHECK_EQ(text_of(got.frames[2]), "body");
}

TEST_CASE("ctl/socket: empty frames arrive as empty frames") {
  Connected pair;
  const std::array<std::span<const uint8_t>, 3> frames{bytes_of("head"), {}, bytes_of("")};
  REQUIRE(pair.dealer.send(frames) == Code::ok);
  const SocketMessage got = pair.next();
  REQUIRE_EQ(got.frame_count, 4);
  CHECK(got.frames[2].empty());
  CHECK(got.frames[3].empty());
}

TEST_CASE("ctl/socket: the end of a connection follows its failed handshake and names the other end") {
  Context context = Context::open().value();
  Socket router = Socket::open(context, SocketKind::router, {.handshake = 60s, .connections_max = 64}).value();
  REQUIRE_OK(router.bind("tcp://127.0.0.1:0"));
  const std::string bound = router.bound();
  sockaddr_in to{};
  to.sin_family = AF_INET, to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(bound.substr(bound.rfind(':') + 1))));
  std::set<std::string> strangers, named;
  std::vector<Fd> open;
  for (int i = 0; i < 20; ++i) {
    open.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(open.back().get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
    sockaddr_in own{};
    socklen_t size = sizeof own;
    REQUIRE(::getsockname(open.back().get(), reinterpret_cast<sockaddr*>(&own), &size) == 0);
    strangers.insert("127.0.0.1:" + std::to_string(ntohs(own.sin_port)));
  }
  open.clear();  // all at once, and no byte was sent
  for (bool failed = false; named.size() < strangers.size();) {
    std::array<PollItem, 1> items{PollItem{.socket = &router, .want_read = false}};
    REQUIRE_OK(poll_sockets(items, 30s));
    REQUIRE(items[0].has_event);
    while (const auto event = router.next_event()) {
      if (event->kind == SocketEvent::Kind::disconnected) {
        CHECK(failed);
        named.insert(event->peer);
      }
      failed = event->kind == SocketEvent::Kind::handshake_failed;
    }
  }
  CHECK(named == strangers);
}
