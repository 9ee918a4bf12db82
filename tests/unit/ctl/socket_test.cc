#include <array>
#include <limits>

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
