// Real sockets on loopback and ipc. Nothing sleeps: every wait is for an event, with a deadline that
// only a failing test reaches. Intervals are short so that deaths are noticed in milliseconds.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/errors.h"
#include "base/fd.h"
#include "base/rng.h"
#include "hubs.h"

using namespace mc;
using namespace mc::ctl;

namespace {

Fd raw_tcp(uint16_t port) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

/// A message and its answer between two hubs; the proof that both directions work.
void check_talk(Hub& client, LinkId link, Hub& server, std::string_view word) {
  auto id = client.request(link, "test.ask", bytes(word), kLimit);
  REQUIRE_OK(id);
  const auto asked = expect<Received>(server, [&](const Received& r) { return text(r.body) == word; });
  REQUIRE(asked);
  CHECK(asked->deadline < kNever);
  REQUIRE_OK(server.reply(*asked, "test.answer", bytes("re " + std::string(word))));
  const auto answer = expect<Received>(client, [&](const Received& r) { return r.envelope.re == *id; });
  REQUIRE(answer);
  CHECK(text(answer->body) == "re " + std::string(word));
}

}  // namespace

TEST_CASE("ctl/hub: peers find each other in either order of starting, over tcp and ipc") {
  for (const std::string& uri : {std::string("tcp://127.0.0.1:0"), ipc_uri("order")}) {
    INFO(uri);
    std::optional<Hub> server(must_open(options(1, {uri})));
    const Uri place = server->bound().front();
    CHECK(place.port.value_or(1) != 0);
    {
      Hub early = must_open(options(2));
      const LinkId link = *early.connect(place);
      const auto up = expect<LinkUp>(early);
      REQUIRE(up);
      CHECK(up->instance == instance(1));
      CHECK(up->name == "n1");
      CHECK(up->outgoing);
      check_talk(early, link, *server, "early");
    }
    server.reset();
    Hub late = must_open(options(3));
    const LinkId link = *late.connect(place);
    auto o = options(4, {place.text()});
    server.emplace(must_open(o));
    REQUIRE(expect<LinkUp>(late));
    check_talk(late, link, *server, "late");
  }
}

TEST_CASE("ctl/hub: a peer back under another instance is a loss and a new peer, in that order") {
  std::optional<Hub> server(must_open(options(1, {"tcp://127.0.0.1:0"})));
  const Uri place = server->bound().front();
  Hub client = must_open(options(2));
  const LinkId link = *client.connect(place);
  REQUIRE(expect<LinkUp>(client));
  server.reset();
  server.emplace(must_open(options(9, {place.text()})));
  const auto lost = expect<LinkLost>(client);
  REQUIRE(lost);
  CHECK(lost->instance == instance(1));
  const auto up = expect<LinkUp>(client);
  REQUIRE(up);
  CHECK(up->link == link);
  CHECK(up->instance == instance(9));
  check_talk(client, link, *server, "again");
}

// Messages of the first connection may be lost, so their sender is told of the loss.
TEST_CASE("ctl/hub: an instance that connects anew is a loss and a new peer, and its old connection is not heard") {
  const std::string uri = ipc_uri("anew");
  auto server = must_open(options(1, {uri})), peer = must_open(options(2));
  const LinkId first = *peer.connect(*parse_uri(uri));
  const auto up = expect<LinkUp>(server);
  REQUIRE(up);
  REQUIRE(expect<LinkUp>(peer));
  const LinkId second = *peer.connect(*parse_uri(uri));
  const auto lost = expect<LinkLost>(server);
  REQUIRE(lost);
  CHECK(lost->link == up->link);
  const auto again = expect<LinkUp>(server);
  REQUIRE(again);
  CHECK(again->instance == instance(2));
  CHECK(again->link != up->link);
  REQUIRE(expect<LinkUp>(peer, [&](const LinkUp& u) { return u.link == second; }));
  REQUIRE_OK(peer.send(first, "test.late", bytes("late")));
  REQUIRE_OK(peer.send(second, "test.new", bytes("new")));
  const auto heard = expect<Received>(server);
  REQUIRE(heard);
  CHECK(heard->envelope.type == "test.new");
  CHECK(heard->link == again->link);
}

TEST_CASE("ctl/hub: what is meant for an instance that is gone is not taken by its successor") {
  Hub server = must_open(options(1, {"tcp://127.0.0.1:0"}));
  Hub client = must_open(options(2));
  const LinkId link = *client.connect(server.bound().front());
  REQUIRE(expect<LinkUp>(client));
  REQUIRE_OK(client.send(link, "test.old", bytes("for the dead"), instance(7)));
  check_talk(client, link, server, "for the living");
  CHECK(server.stats().wrong_instance == 1);
}

TEST_CASE("ctl/hub: a peer that ends is lost at both ends within a second, and its requests fail as peer_lost") {
  Hub server = must_open(options(1, {"tcp://127.0.0.1:0"}));
  auto client = std::make_unique<Hub>(must_open(options(2)));
  REQUIRE_OK(client->connect(server.bound().front()));
  const auto up = expect<LinkUp>(server);
  REQUIRE(up);
  CHECK_FALSE(up->outgoing);
  auto id = server.request(up->link, "test.ask", {}, kLimit);
  REQUIRE_OK(id);
  const TimePoint died = SystemClock::instance().now();
  client.reset();
  // In either order: the request may find the connection gone before the hub has looked at it.
  std::optional<LinkLost> lost;
  std::optional<RequestFailed> failed;
  for (const TimePoint end = limit(); !lost || !failed;) {
    auto event = server.wait(end);
    REQUIRE(event);
    if (auto* l = std::get_if<LinkLost>(&*event)) lost = *l;
    if (auto* f = std::get_if<RequestFailed>(&*event)) failed = *f;
  }
  CHECK(lost->instance == instance(2));
  CHECK(SystemClock::instance().now() - died < 5s);  // generous: the machine may be busy
  CHECK(failed->id == *id);
  CHECK(failed->error.code == Code::peer_lost);
  REQUIRE_OK(server.send(up->link, "test.ask", {}));
  const auto dropped = expect<SendFailed>(server);
  REQUIRE(dropped);
  CHECK(dropped->error.code == Code::peer_lost);
}

TEST_CASE("ctl/hub: a peer that is silent but connected is lost after dead_after, and heard again later") {
  Hub server = must_open(options(1, {"tcp://127.0.0.1:0"}));
  auto quiet = options(2);
  quiet.heartbeat = std::chrono::hours(1);  // connected, alive, and saying nothing: as a stopped process
  quiet.dead_after = std::chrono::hours(2);
  Hub client = must_open(quiet);
  const LinkId link = *client.connect(server.bound().front());
  REQUIRE(expect<LinkUp>(client));
  const auto lost = expect<LinkLost>(server);
  REQUIRE(lost);
  CHECK(lost->instance == instance(2));
  CHECK(lost->why.find("silent") != std::string::npos);
  check_talk(client, link, server, "back");
}

TEST_CASE("ctl/hub: a request without an answer fails at its deadline, and a late answer is dropped") {
  Hub server = must_open(options(1, {"tcp://127.0.0.1:0"}));
  Hub client = must_open(options(2));
  const LinkId link = *client.connect(server.bound().front());
  auto id = client.request(link, "test.ask", bytes("slow"), 30ms);
  REQUIRE_OK(id);
  const auto failed = expect<RequestFailed>(client);
  REQUIRE(failed);
  CHECK(failed->id == *id);
  CHECK(failed->error.code == Code::timeout);
  const auto nobody = *client.connect(*parse_uri("tcp://127.0.0.1:1"));
  auto unheard = client.request(nobody, "test.ask", {}, 30ms);
  REQUIRE_OK(unheard);
  const auto also = expect<RequestFailed>(client);
  REQUIRE(also);
  CHECK(also->error.code == Code::timeout);
  auto second = client.request(link, "test.ask", bytes("again"), kLimit);
  REQUIRE_OK(second);
  // The server answers the first (if it ever left) and the second; only the second answer is delivered.
  while (auto asked = expect<Received>(server)) {
    REQUIRE_OK(server.reply(*asked, "test.answer", asked->body));
    if (text(asked->body) == "again") break;
  }
  const auto answer = expect<Received>(client);
  REQUIRE(answer);
  CHECK(answer->envelope.re == *second);
}

TEST_CASE("ctl/hub: two versions refuse each other and both name both numbers") {
  Hub server = must_open(options(1, {"tcp://127.0.0.1:0"}));
  auto future = options(2);
  future.version = 2;
  Hub client = must_open(future);
  REQUIRE_OK(client.connect(server.bound().front()));
  // The client here decodes version 1 as everybody does, so it is the server's answer that is refused
  // by a peer that really speaks 2; from this side the counter tells.
  const TimePoint end = limit();
  while (server.stats().wrong_version == 0 && SystemClock::instance().now() < end)
    client.wait(SystemClock::instance().now() + 5ms);
  CHECK(server.stats().wrong_version > 0);
  CHECK(server.stats().links_up == 0);
  auto old = options(3);
  Hub current = must_open(old);
  auto other = options(4, {"tcp://127.0.0.1:0"});
  other.version = 3;
  Hub newer = must_open(other);
  REQUIRE_OK(current.connect(newer.bound().front()));
  const auto failed = expect<LinkFailed>(current);
  REQUIRE(failed);
  CHECK(failed->fatal);
  CHECK(failed->error.mc == err::kProtocolVersion);
  CHECK(failed->error.what == "the peer uses protocol version 3, this program uses 1");
}

TEST_CASE("ctl/hub: the right key set connects, a wrong or missing one is refused by name") {
  auto keys = new_key_set(), others = new_key_set();
  REQUIRE_OK(keys);
  REQUIRE_OK(others);
  auto o = options(1, {"tcp://127.0.0.1:0"});
  o.keys = *keys;
  Hub server = must_open(o);
  const Uri place = server.bound().front();

  auto good = options(2);
  good.keys = *keys;
  Hub friend_hub = must_open(good);
  const LinkId link = *friend_hub.connect(place);
  REQUIRE(expect<LinkUp>(friend_hub));
  check_talk(friend_hub, link, server, "secret");

  KeySet knows_server = *others;  // right server key, foreign client key: only the ZAP check can tell
  knows_server.server_public = keys->server_public;
  for (const std::optional<KeySet>& wrong :
       {std::optional<KeySet>(*others), std::optional<KeySet>(knows_server), std::optional<KeySet>()}) {
    auto bad = options(3);
    bad.keys = wrong;
    bad.handshake = 3s;
    Hub stranger = must_open(bad);
    REQUIRE_OK(stranger.connect(place));
    // A starved client may first miss its time to connect, which it says and tries again.
    const auto failed = expect<LinkFailed>(stranger, [](const LinkFailed& failure) { return failure.fatal; });
    REQUIRE(failed);
    INFO(failed->error.what);
    CHECK(failed->error.mc == err::kWrongKey);
    CHECK(failed->error.what.find("key refused or not CURVE") != std::string::npos);
    CHECK(failed->error.what.find(place.text()) != std::string::npos);
  }
  // And a keyed client at a plain server.
  Hub plain = must_open(options(5, {"tcp://127.0.0.1:0"}));
  auto keyed = options(6);
  keyed.keys = *keys;
  keyed.handshake = 3s;
  Hub careful = must_open(keyed);
  REQUIRE_OK(careful.connect(plain.bound().front()));
  const auto failed = expect<LinkFailed>(careful, [](const LinkFailed& failure) { return failure.fatal; });
  REQUIRE(failed);
  CHECK(failed->error.mc == err::kWrongKey);
  CHECK(server.stats().links_up == 1);
}

TEST_CASE("ctl/hub: keys changed on both sides bring the link back, and the old ones open nothing any more") {
  const KeySet old_keys = *new_key_set(), new_keys = *new_key_set();
  auto keyed = [&](uint8_t id, const KeySet& keys, std::vector<std::string> listen = {}) {
    auto o = options(id, std::move(listen));
    o.keys = keys;
    return must_open(std::move(o));
  };
  auto server = keyed(1, old_keys, {"tcp://127.0.0.1:0"}), peer = keyed(2, old_keys);
  const Uri at = server.bound().front();
  const LinkId link = *peer.connect(at);
  REQUIRE(expect<LinkUp>(peer));
  REQUIRE_OK(server.set_keys(new_keys));
  CHECK(expect<LinkLost>(peer));
  const auto wrong_key = [](const LinkFailed& failure) { return failure.error.mc == err::kWrongKey; };
  REQUIRE(expect<LinkFailed>(peer, wrong_key));  // it still has the old ones, and goes on trying
  REQUIRE_OK(peer.set_keys(new_keys));
  const auto up = expect<LinkUp>(peer);
  REQUIRE(up);
  CHECK(up->link == link);
  auto late = keyed(3, old_keys);
  REQUIRE_OK(late.connect(at));
  REQUIRE(expect<LinkFailed>(late, wrong_key));
  auto plain = must_open(options(4));
  CHECK(plain.set_keys(new_keys).error().code == Code::invalid);
}

TEST_CASE("ctl/hub: no tcp endpoint listens without keys or consent, and none beyond loopback with local ones") {
  for (const std::string place : {"tcp://0.0.0.0:0", "tcp://127.0.0.1:0"}) {
    auto o = options(1, {place});
    o.insecure = false;
    auto refused = Hub::open(o);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().mc == err::kAuthRequired);
    o.insecure = true;
    REQUIRE_OK(Hub::open(o));
    o.insecure = false;
    o.keys = *new_key_set();
    REQUIRE_OK(Hub::open(o));
    o.local_keys = true;  // they count on this machine
    CHECK(Hub::open(o).has_value() == (place != "tcp://0.0.0.0:0"));
  }
}

TEST_CASE("ctl/hub: an endpoint in use is an error that names it, on tcp and on ipc") {
  for (const std::string& uri : {std::string("tcp://127.0.0.1:0"), ipc_uri("taken")}) {
    Hub first = must_open(options(1, {uri}));
    const std::string real = first.bound().front().text();
    auto second = Hub::open(options(2, {real}));
    REQUIRE_FALSE(second);
    CHECK(second.error().mc == err::kPortInUse);
    CHECK(second.error().what.find(real) != std::string::npos);
    // The first one must still be reachable: a refused bind steals nothing.
    Hub client = must_open(options(3));
    REQUIRE_OK(client.connect(first.bound().front()));
    REQUIRE(expect<LinkUp>(client));
  }
  CHECK(Hub::open(options(1, {"ipc:///tmp/" + std::string(200, 'x')})).error().mc == err::kCannotListen);
  auto far = options(1, {"tcp://192.0.2.1:0"});
  far.insecure = false;
  CHECK(Hub::open(far).error().mc == err::kAuthRequired);
  far.insecure = true;
  CHECK(Hub::open(far).error().mc == err::kCannotListen);
}

TEST_CASE("ctl/hub: garbage on the port neither stops the hub nor reaches its owner") {
  Hub server = must_open(options(1, {"tcp://127.0.0.1:0"}));
  const uint16_t port = *server.bound().front().port;
  std::vector<Fd> strangers;
  for (const std::string& junk : {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string(4096, '\xff'),
                                  std::string("\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01XXXX", 16), std::string(1, '\0')}) {
    strangers.push_back(raw_tcp(port));
    REQUIRE_OK(write_all(strangers.back().get(), junk, limit()));
  }
  // A true ZMTP 3.0 NULL greeting and READY, then a message that is no envelope.
  std::string zmtp("\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL", 16);
  zmtp.resize(64, '\0');
  strangers.push_back(raw_tcp(port));
  REQUIRE_OK(write_all(strangers.back().get(), zmtp, limit()));
  std::byte greeting[64];  // libzmq reads commands only after its own greeting has left
  REQUIRE_OK(read_all(strangers.back().get(), greeting, limit()));
  const std::string ready(
      "\x05READY\x0bSocket-Type\0\0\0\x06"
      "DEALER",
      28);
  const std::string message(
      "\x01\x05hello\0\x03"
      "abc",
      12);
  REQUIRE_OK(write_all(strangers.back().get(),
                       "\x04" + std::string(1, static_cast<char>(ready.size())) + ready + message, limit()));
  const TimePoint end = limit();
  while (server.stats().garbage == 0 && SystemClock::instance().now() < end)
    CHECK_FALSE(server.wait(SystemClock::instance().now() + 5ms));
  CHECK(server.stats().garbage == 1);
  Hub client = must_open(options(2));
  const LinkId link = *client.connect(server.bound().front());
  check_talk(client, link, server, "still here");
}

TEST_CASE("ctl/hub: a client without keys whose connections are closed unanswered is told of a missing key") {
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(listener.get(), 8) == 0);
  REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  REQUIRE_OK(set_nonblocking(listener.get(), true));
  Hub client = must_open(options(2));
  REQUIRE_OK(client.connect(*parse_uri("tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port)))));
  // A keyed server closes at our greeting, and its own may not have been sent.
  std::optional<LinkFailed> told;
  for (const TimePoint end = limit(); !told && SystemClock::instance().now() < end;) {
    const Fd accepted(::accept(listener.get(), nullptr, nullptr));
    while (auto event = client.wait(SystemClock::instance().now() + 5ms))
      if (auto* failed = std::get_if<LinkFailed>(&*event); failed && failed->fatal) told = *failed;
  }
  REQUIRE(told);
  CHECK(told->error.mc == err::kWrongKey);
}

TEST_CASE("ctl/hub: a service that is not ours is reported as such on the connecting side") {
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(listener.get(), 8) == 0);
  REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  Hub client = must_open(options(2));
  REQUIRE_OK(client.connect(*parse_uri("tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port)))));
  const auto silent = expect<LinkFailed>(client);  // accepts and says nothing
  REQUIRE(silent);
  CHECK_FALSE(silent->fatal);
  CHECK(silent->error.mc == err::kPeerUnreachable);

  // One that answers in another language: what an HTTP server says to our greeting.
  Hub other = must_open(options(3));
  REQUIRE_OK(other.connect(*parse_uri("tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port)))));
  REQUIRE_OK(set_nonblocking(listener.get(), true));
  std::optional<LinkFailed> wrong;
  for (const TimePoint end = limit(); !wrong && SystemClock::instance().now() < end;) {
    const Fd accepted(::accept(listener.get(), nullptr, nullptr));
    if (accepted) (void)write_all(accepted.get(), "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", limit());
    while (auto event = other.wait(SystemClock::instance().now() + 5ms))
      if (auto* failed = std::get_if<LinkFailed>(&*event)) wrong = *failed;
  }
  REQUIRE(wrong);
  INFO(wrong->error.what);
  CHECK((wrong->error.mc == err::kWrongKey || wrong->error.mc == err::kPeerUnreachable));

  const LinkId nobody = *client.connect(*parse_uri("tcp://127.0.0.1:1"));
  const auto refused = expect<LinkFailed>(client, [&](const LinkFailed& f) { return f.link == nobody; });
  REQUIRE(refused);
  CHECK(refused->error.mc == err::kPeerUnreachable);
  CHECK(refused->error.what.find("tcp://127.0.0.1:1") != std::string::npos);
}

TEST_CASE("ctl/hub: an oversize message is refused here, and closes only its own connection there") {
  auto small = options(1, {"tcp://127.0.0.1:0"});
  small.message_bytes_max = 1000;
  Hub server = must_open(small);
  Hub big = must_open(options(2)), other = must_open(options(3));
  const LinkId link = *big.connect(server.bound().front());
  const LinkId other_link = *other.connect(server.bound().front());
  REQUIRE(expect<LinkUp>(big));
  REQUIRE(expect<LinkUp>(other));
  const auto too_big = server.send(1, "x", Bytes(1001));
  REQUIRE_FALSE(too_big);
  CHECK(too_big.error().mc == err::kMessageTooLarge);
  REQUIRE_OK(big.send(link, "test.big", Bytes(100'000)));
  // The connection ends; the hub reconnects as the same instance.
  check_talk(other, other_link, server, "unharmed");
  // The same peer comes back by itself; what was on its way with the broken connection is lost, so ask
  // until there is an answer.
  bool answered = false;
  for (const TimePoint end = limit(); !answered && SystemClock::instance().now() < end;) {
    (void)big.request(link, "test.ask", bytes("small"), 50ms);
    for (bool ended = false; !ended && !answered;) {
      const auto asked = server.wait(SystemClock::instance().now() + 1ms);
      if (asked && std::holds_alternative<Received>(*asked))
        (void)server.reply(std::get<Received>(*asked), "test.answer", {});
      while (auto event = big.next()) {
        ended |= std::holds_alternative<RequestFailed>(*event);
        answered |= std::holds_alternative<Received>(*event);
      }
    }
  }
  CHECK(answered);
}

TEST_CASE("ctl/hub: a full queue answers busy and nothing grows") {
  auto o = options(1, {"tcp://127.0.0.1:0"});
  o.ring = 4;
  Hub server = must_open(o);  // its owner never reads: the ring and the sockets fill up
  auto c = options(2);
  c.link_queue = 8;
  c.dead_after = 30s;
  Hub client = must_open(c);
  const LinkId link = *client.connect(server.bound().front());
  REQUIRE(expect<LinkUp>(client));
  std::optional<SendFailed> full;
  int sent = 0;
  for (const TimePoint end = limit(); !full && SystemClock::instance().now() < end;) {
    if (client.send(link, "test.flood", Bytes(64 * 1024))) ++sent;
    while (auto event = client.next())
      if (auto* failed = std::get_if<SendFailed>(&*event)) full = *failed;
  }
  REQUIRE(full);
  INFO("sent " << sent << ", server received " << server.stats().received << ", client sent " << client.stats().sent);
  CHECK(full->error.code == Code::busy);
  CHECK(full->error.what.find("queue to tcp://127.0.0.1") != std::string::npos);
  // Once the owner reads, the oldest come out in order.
  uint64_t last = 0;
  int received = 0;
  for (const TimePoint end = limit(); received < 10;) {
    auto event = server.wait(end);
    REQUIRE(event);
    if (auto* r = std::get_if<Received>(&*event)) {
      CHECK(r->envelope.id > last);
      last = r->envelope.id;
      ++received;
    }
  }
}

TEST_CASE("ctl/hub: an owner that does not read for long loses neither peers nor order") {
  auto o = options(1, {"tcp://127.0.0.1:0"});
  o.ring = 2;
  o.dead_after = 300ms;
  Hub server = must_open(o);
  Hub client = must_open(options(2));
  const LinkId link = *client.connect(server.bound().front());
  REQUIRE(expect<LinkUp>(client));
  constexpr int kCount = 20;
  for (int i = 0; i < kCount; ++i) REQUIRE_OK(client.send(link, "test.x", {static_cast<uint8_t>(i)}));
  const TimePoint long_after = SystemClock::instance().now() + 4 * o.dead_after;
  while (client.wait(long_after)) {
  }
  int received = 0;
  for (const TimePoint end = limit(); received < kCount;) {
    auto event = server.wait(end);
    REQUIRE(event);
    CHECK_FALSE(std::holds_alternative<LinkLost>(*event));
    if (auto* r = std::get_if<Received>(&*event)) CHECK(r->body == Bytes{static_cast<uint8_t>(received++)});
  }
}

TEST_CASE("ctl/hub: the command ring answers busy when its owner is faster than the hub") {
  auto o = options(1);
  o.ring = 2;
  Hub hub = must_open(o);
  bool busy = false;
  for (int i = 0; i < 100'000 && !busy; ++i) {
    auto link = hub.connect(*parse_uri("tcp://127.0.0.1:1"));
    if (!link)
      busy = link.error().code == Code::busy;
    else
      (void)hub.disconnect(*link);
  }
  CHECK(busy);
}

TEST_CASE("ctl/hub: a name learnt later is in every envelope from then on") {
  Hub server = must_open(options(1, {"tcp://127.0.0.1:0"}));
  auto nameless = options(2);
  nameless.name = "";
  Hub client = must_open(nameless);
  const LinkId link = *client.connect(server.bound().front());
  REQUIRE(expect<LinkUp>(client));
  client.set_name("p7");
  REQUIRE_OK(client.send(link, "test.x", {}));
  const auto got = expect<Received>(server);
  REQUIRE(got);
  CHECK(got->envelope.from == "p7");
}

TEST_CASE("ctl/hub: the last word queued before the end still arrives") {
  Hub server = must_open(options(1, {"tcp://127.0.0.1:0"}));
  {
    Hub client = must_open(options(2));
    const LinkId link = *client.connect(server.bound().front());
    REQUIRE(expect<LinkUp>(client));
    REQUIRE_OK(client.send(link, "goodbye", bytes("draining")));
  }
  const auto got = expect<Received>(server);
  REQUIRE(got);
  CHECK(text(got->body) == "draining");
  REQUIRE(expect<LinkLost>(server));
}

// libzmq's one I/O thread once waited for ever to tell a monitor that had been closed: the process fell
// silent on every link.
TEST_CASE("ctl/hub: links closed while they connect again never silence the others") {
  const std::string uri = ipc_uri("lasting");
  auto steady = must_open(options(1, {uri}));
  auto restless = options(2);
  restless.reconnect = 1ms;
  auto hub = must_open(std::move(restless));
  const LinkId lasting = *hub.connect(*parse_uri(uri));
  REQUIRE(expect<LinkUp>(hub));
  Rng rng(test::seed());
  for (int round = 0; round < 60; ++round) {
    std::vector<LinkId> brief;
    for (int i = 0; i < 16; ++i) brief.push_back(*hub.connect(*parse_uri(ipc_uri("nobody-" + std::to_string(i)))));
    for (const LinkId link : brief) {
      hub.wait(after(SystemClock::instance().now(), std::chrono::microseconds(rng.below(600))));
      REQUIRE_OK(hub.disconnect(link));
    }
  }
  const uint64_t id = *hub.request(lasting, "test.ask", bytes("still there?"), 5s);
  auto asked = expect<Received>(steady, [](const Received& r) { return r.envelope.type == "test.ask"; });
  REQUIRE(asked);
  REQUIRE_OK(steady.reply(*asked, "test.answer", bytes("yes")));
  CHECK(expect<Received>(hub, [&](const Received& r) { return r.envelope.re == id; }));
}
