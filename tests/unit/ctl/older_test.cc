// A peer of an older release, whose envelopes have neither a number nor a digest of the body. With keys over tcp a hub
// writes both.

#include <array>

#include "ctl/zmq_socket.h"
#include "hubs.h"

using namespace mc;
using namespace mc::ctl;

namespace {

constexpr int kWords = 3;

/// The older peer. A listener answers on the connection of the last message that it received.
struct Older {
  Context context = Context::open().value();
  Socket socket;
  bool listens;
  Bytes route;
  uint64_t numbered = 0;  // messages that came with a number

  Older(SocketKind kind, const SocketOptions& options)
      : socket(Socket::open(context, kind, options).value()), listens(kind == SocketKind::router) {}

  void say(std::string_view type, std::string_view body) {
    const Bytes head = wire::encode({.type = std::string(type), .id = 2, .from = "n9", .instance = instance(9)});
    const Bytes text = bytes(body);
    const std::array<std::span<const uint8_t>, 3> frames{route, head, text};
    Code code = Code::busy;  // as long as the connection is under way
    for (const TimePoint end = limit(); code == Code::busy && SystemClock::instance().now() < end;) {
      code = socket.send(std::span(frames).subspan(listens ? 0 : 1));
      if (code == Code::busy) wait_for_anything();
    }
    REQUIRE(code == Code::ok);
  }
  /// The body of the next message that is no sign of life.
  std::string hear() {
    for (const TimePoint end = limit(); SystemClock::instance().now() < end;) {
      const auto message = socket.receive();
      if (!message) {
        wait_for_anything();
        continue;
      }
      const size_t at = listens ? 1 : 0;
      REQUIRE(message->frames.size() == at + 2);
      if (listens) route = message->frames[0];
      const auto envelope = wire::decode_envelope(message->frames[at]);
      REQUIRE_OK(envelope);
      numbered += envelope->seq != 0;
      if (envelope->type == "note") return text(message->frames[at + 1]);
      if (listens) say("ctl.ping", "");
    }
    return "nothing came in time";
  }
  void wait_for_anything() {
    std::array<PollItem, 1> items{PollItem{.socket = &socket}};
    REQUIRE_OK(poll_sockets(items, 20ms));
    if (items[0].has_event)
      while (socket.next_event()) {
      }
  }
};

/// Both sides say some words, and no link is lost meanwhile.
void check_talk(Hub& hub, LinkId link, Older& older) {
  for (int i = 0; i < kWords; ++i) {
    const std::string word = "word " + std::to_string(i);
    REQUIRE_OK(hub.send(link, "note", bytes(word)));
    CHECK(older.hear() == word);
    older.say("note", word);
    for (bool taken = false; !taken;) {
      const auto event = hub.wait(limit());
      REQUIRE(event);
      CHECK_FALSE(std::holds_alternative<LinkLost>(*event));
      if (const auto* received = std::get_if<Received>(&*event)) taken = text(received->body) == word;
    }
  }
  CHECK(older.numbered >= kWords);
}

}  // namespace

TEST_CASE("ctl/hub: with keys an older peer that dials is heard without numbers, and answered") {
  const KeySet keys = *new_key_set();
  auto o = options(1, {"tcp://127.0.0.1:0"});
  o.keys = keys;
  o.dead_after = kLimit;  // the older peer says nothing while it waits
  Hub hub = must_open(o);
  Older older(SocketKind::dealer, {.message_bytes_max = 1 << 20,
                                   .reconnect = 10ms,
                                   .handshake = kLimit,
                                   .peer_public = keys.server_public,
                                   .client_public = keys.client_public,
                                   .client_secret = keys.client_secret});
  REQUIRE_OK(older.socket.connect(hub.bound().front().text()));
  older.say("ctl.ping", "");
  const auto up = expect<LinkUp>(hub);
  REQUIRE(up);
  check_talk(hub, up->link, older);
}

TEST_CASE("ctl/hub: with keys an older peer that listens is heard without numbers, and its messages are answered") {
  const KeySet keys = *new_key_set();
  Older older(SocketKind::router, {.message_bytes_max = 1 << 20,
                                   .handshake = kLimit,
                                   .connections_max = 8,
                                   .server_public = keys.server_public,
                                   .server_secret = keys.server_secret});
  REQUIRE_OK(older.socket.bind("tcp://127.0.0.1:0"));
  auto o = options(1);
  o.keys = keys;
  o.dead_after = kLimit;
  Hub hub = must_open(o);
  const LinkId link = *hub.connect(*parse_uri(older.socket.bound()));
  std::optional<SocketMessage> first;  // the hub's ping
  for (const TimePoint end = limit(); !first && SystemClock::instance().now() < end; first = older.socket.receive())
    older.wait_for_anything();
  REQUIRE(first);
  older.route = first->frames.at(0);
  older.say("ctl.ping", "");
  REQUIRE(expect<LinkUp>(hub));
  check_talk(hub, link, older);
}
