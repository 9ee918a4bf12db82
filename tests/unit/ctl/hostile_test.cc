// Peers that speak ZMTP and our envelopes well enough to be let in, and then misbehave.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "base/hash.h"
#include "hubs.h"

using namespace mc;
using namespace mc::ctl;

namespace {

void put(Bytes& out, std::string_view text) {
  out.insert(out.end(), text.begin(), text.end());
}

void put_message(Bytes& out, const Bytes& head, std::string_view body) {
  REQUIRE(head.size() < 256);
  REQUIRE(body.size() < 256);
  out.push_back(1);  // more follows: the body
  out.push_back(static_cast<uint8_t>(head.size()));
  out.insert(out.end(), head.begin(), head.end());
  out.insert(out.end(), {0, static_cast<uint8_t>(body.size())});
  put(out, body);
}

void put_word(Bytes& out, const wire::Envelope& envelope) {
  put_message(out, wire::encode(envelope, wire::kEnvelopeVersion), "");
}

/// A message with its number, 0 = none, and the digest of the body that it was sent with.
struct Numbered {
  uint64_t seq;
  std::string_view body, sent_with;
};

void put_numbered(Bytes& out, const Numbered& message) {
  Bytes head = wire::encode({.type = "note", .id = 2, .from = "n9", .instance = instance(9), .epoch = 1});
  if (message.seq != 0) head = wire::numbered(head, message.seq, Sha256().update(message.sent_with).finish128());
  put_message(out, head, message.body);
}

/// A ZMTP command, whose name and data `body` has.
void put_command(Bytes& out, std::string_view body, bool more = false) {
  REQUIRE(body.size() < 256);
  out.push_back(more ? 5 : 4);
  out.push_back(static_cast<uint8_t>(body.size()));
  put(out, body);
}

/// A PING (rfc.zeromq.org/spec/37) that asks for a hang-up after `ttl` tenths of a second of silence. `size` cuts or
/// fills it; a right one has 7 to 23 bytes.
std::string ping(uint16_t ttl, size_t size = 7) {
  std::string out("\x04PING");
  out.push_back(static_cast<char>(ttl >> 8));
  out.push_back(static_cast<char>(ttl & 255));
  out.resize(size, 'c');
  return out;
}

/// Sends the bytes of a socket without keys on a new connection: ZMTP 3.0 greeting and READY, and `words` after the
/// other side has sent greeting and READY. False: the other side hung up.
bool speak(int fd, const Bytes& words, std::string_view socket_type = "ROUTER") {
  Bytes out(64);
  out[0] = 0xff;
  out[9] = 0x7f;
  out[10] = 3;
  std::copy_n("NULL", 4, out.begin() + 12);
  Bytes ready;
  put(ready, "\x05READY\x0bSocket-Type");
  put(ready, std::string_view("\0\0\0\x06", 4));
  put(ready, socket_type);
  out.push_back(4);  // a command
  out.push_back(static_cast<uint8_t>(ready.size()));
  out.insert(out.end(), ready.begin(), ready.end());
  const auto send = [&](const Bytes& bytes) {
    return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  };
  const auto receive = [&](Bytes& bytes) {
    return ::recv(fd, bytes.data(), bytes.size(), MSG_WAITALL) == static_cast<ssize_t>(bytes.size());
  };
  Bytes theirs(66);
  if (!send(out) || !receive(theirs)) return false;
  theirs.resize(theirs.back());
  return receive(theirs) && send(words);
}

/// The dialler's part of the same, as a DEALER.
bool dial_and_speak(int fd, const Uri& uri, const Bytes& words) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(*uri.port);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return false;
  return speak(fd, words, "DEALER");
}

/// Sends `words` again and again until the other side takes nothing for a while.
void flood(int fd, const Bytes& words) {
  size_t at = 0;
  for (const TimePoint end = limit(); SystemClock::instance().now() < end;) {
    pollfd item{fd, POLLOUT, 0};
    if (::poll(&item, 1, 300) != 1) return;
    const ssize_t sent = ::send(fd, words.data() + at, words.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) at = (at + static_cast<size_t>(sent)) % words.size();
  }
}

bool up_within(Hub& hub, Duration time) {
  return expect<LinkUp>(
             hub, [](const LinkUp&) { return true; }, SystemClock::instance().now() + time)
      .has_value();
}

struct RawListener {
  RawListener() : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(fd.get(), 64) == 0);
    REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    uri = *parse_uri("tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port)));
  }
  Fd fd;
  Uri uri;
};

/// A hub that this thread attacks: on a busy machine the thread is late with its part of a handshake.
HubOptions attacked(uint8_t id, std::vector<std::string> listen = {}) {
  HubOptions o = options(id, std::move(listen));
  o.handshake = kLimit;
  return o;
}

}  // namespace

// The pauses have means of 50, 100 and 200 ms and at least half of that each. On a starved machine
// ZeroMQ may come before the hub with a connection of its own, after 50 ms or more, which the hub then
// closes. (How pauses grow: ctl/backoff.)
TEST_CASE("ctl/hub: a peer that hangs up after its greeting or its first word is not dialled again at once") {
  for (const bool speaks : {true, false}) {
    INFO("speaks " << speaks);
    const RawListener peer;
    auto patient = options(2);
    patient.reconnect = 100ms;
    Hub client = must_open(patient);
    REQUIRE_OK(client.connect(peer.uri));
    Bytes words;
    put_word(words, {.type = "ctl.ping", .from = "liar", .instance = instance(9), .epoch = 1});
    const TimePoint begin = SystemClock::instance().now();
    for (int i = 0; i < 4;) {
      REQUIRE(wait_fd(peer.fd.get(), POLLIN, limit()));
      const Fd connection(::accept4(peer.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
      REQUIRE(connection);
      if (speaks && (!speak(connection.get(), words) || !up_within(client, 1s))) continue;  // ZeroMQ's own
      ++i;
      ::shutdown(connection.get(), SHUT_RDWR);
      if (speaks) REQUIRE(expect<LinkLost>(client));
    }
    CHECK(SystemClock::instance().now() - begin >= 75ms);
  }
}

TEST_CASE("ctl/hub: one connection that speaks for many instances is one link, lost at the second") {
  const RawListener peer;
  Hub client = must_open(attacked(2));
  REQUIRE_OK(client.connect(peer.uri));
  REQUIRE(wait_fd(peer.fd.get(), POLLIN, limit()));
  const Fd connection(::accept4(peer.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(connection);
  Bytes words;
  for (uint8_t i = 9; i < 60; ++i) put_word(words, {.type = "ctl.ping", .from = "liar", .instance = instance(i)});
  REQUIRE(speak(connection.get(), words));
  const auto up = expect<LinkUp>(client);
  REQUIRE(up);
  CHECK(up->instance == instance(9));
  const auto lost = expect<LinkLost>(client);
  REQUIRE(lost);
  CHECK(lost->instance == instance(9));
  // It is dialled again; until that connection speaks there is no other event.
  REQUIRE(wait_fd(peer.fd.get(), POLLIN, limit()));
  CHECK_FALSE(client.next());
}

TEST_CASE("ctl/hub: a dialler that speaks for two instances by turns makes one link and one loss, not one a message") {
  Hub server = must_open(attacked(1, {"tcp://127.0.0.1:0"}));
  const Fd connection(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Bytes words;
  for (int i = 0; i < 200; ++i)
    put_word(words, {.type = "ctl.ping", .from = "liar", .instance = instance(i % 2 == 0 ? 9 : 8)});
  REQUIRE(dial_and_speak(connection.get(), server.bound().front(), words));
  // another one comes when all that was said has been heard
  REQUIRE(expect<LinkLost>(server, [](const LinkLost& lost) { return lost.instance == instance(9); }));
  Hub honest = must_open(options(2));
  REQUIRE_OK(honest.connect(server.bound().front()));
  int ups = 0, others = 0;
  while (ups == 0) {
    const auto event = server.wait(limit());
    REQUIRE(event);
    const LinkUp* up = std::get_if<LinkUp>(&*event);
    if (up != nullptr && up->instance == instance(2))
      ++ups;
    else
      ++others;
  }
  CHECK(others == 0);
  CHECK(server.stats().links_up == 1);
  CHECK(server.stats().garbage == 1);
}

// An attacker on the path of a connection with keys can leave frames out.
TEST_CASE("ctl/hub: a message out of turn or with another's body ends the link and is not taken") {
  const std::vector<Numbered> wrong = {{4, "4", "4"}, {3, "4", "3"}, {2, "2", "2"}, {0, "4", ""}, {3, "", "3"}};
  for (const Numbered& last : wrong) {
    INFO("number " << last.seq << " with body " << std::string(last.body));
    Hub server = must_open(attacked(1, {"tcp://127.0.0.1:0"}));
    const Fd connection(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    Bytes words;
    for (const Numbered& message : {Numbered{1, "1", "1"}, {2, "2", "2"}, last, {5, "5", "5"}})
      put_numbered(words, message);
    REQUIRE(dial_and_speak(connection.get(), server.bound().front(), words));
    std::string taken;
    while (auto event = server.wait(limit())) {
      if (auto* received = std::get_if<Received>(&*event)) taken += text(received->body);
      if (std::get_if<LinkLost>(&*event)) break;
    }
    CHECK(taken == "12");
    CHECK(server.stats().links_up == 0);
    CHECK_FALSE(server.wait(SystemClock::instance().now() + 50ms));  // nor is anything behind it
  }
}

TEST_CASE("ctl/hub: a link counts from the first message it sees, and from 1 again when the other side does") {
  Hub server = must_open(attacked(1, {"tcp://127.0.0.1:0"}));
  const Fd connection(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Bytes words;
  for (const Numbered& message : {Numbered{7, "a", "a"}, {8, "b", "b"}, {1, "c", "c"}, {2, "d", "d"}})
    put_numbered(words, message);
  REQUIRE(dial_and_speak(connection.get(), server.bound().front(), words));
  for (const std::string_view body : {"a", "b", "c", "d"}) {
    const auto received = expect<Received>(server);
    REQUIRE(received);
    CHECK(text(received->body) == body);
  }
}

TEST_CASE("ctl/hub: no command of ZMTP ends the process, or more than its own connection") {
  Hub server = must_open(attacked(1, {"tcp://127.0.0.1:0"}));
  std::vector<std::string> commands = {"", "\x04", "\x04PIN", "\xffPING", "\x07UNKNOWNxyz", "\x05READY", "\x05ERROR",
                                       "\x09SUBSCRIBE", "\x09SUBSCRIBEall", "\x06" "CANCEL", "\x06" "CANCELall",
                                       "\x04PONG", "\x04PONGcontext", std::string(255, 'c')};
  for (const uint16_t ttl : {0, 1, 655, 656, 65535})  // libzmq counts a hundred milliseconds of these in 16 bits
    for (const size_t size : {5, 6, 7, 8, 22, 23, 24, 33, 34, 255}) commands.push_back(ping(ttl, size));
  for (const bool more : {false, true})
    for (const std::string& command : commands) {
      INFO("command of " << command.size() << " bytes, more " << more);
      const Fd connection(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      Bytes words;
      for (int i = 0; i < 3; ++i) put_command(words, command, more);
      put_word(words, {.type = "note", .id = 2, .from = "n9", .instance = instance(9), .epoch = 1});
      REQUIRE(dial_and_speak(connection.get(), server.bound().front(), words));
    }
  Hub honest = must_open(options(2));
  const LinkId link = *honest.connect(server.bound().front());
  REQUIRE(expect<LinkUp>(honest));
  REQUIRE_OK(honest.send(link, "note", bytes("here")));
  REQUIRE(expect<Received>(server, [](const Received& r) { return text(r.body) == "here"; }));
}

#if !defined(__SANITIZE_THREAD__)  // with which libzmq is as it is (ctl/zmq_socket.cc)

// libzmq 4.3.4 answers a PING at once. When it meets one in what is left of a connection whose end it has seen, an
// assertion of its own fails.
TEST_CASE("ctl/hub: a peer that pings, sends more than is read, and hangs up ends nothing but its connection") {
  auto o = attacked(1, {"tcp://127.0.0.1:0"});
  o.ring = 2;
  Hub server = must_open(o);
  for (int round = 0; round < 3; ++round) {
    Fd connection(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto sender = instance(static_cast<uint8_t>(9 + round));
    Bytes words;
    REQUIRE(dial_and_speak(connection.get(), server.bound().front(), words));
    for (int i = 0; i < 50; ++i) {
      put_command(words, ping(round == 0 ? 0 : 65535));
      put_word(words, {.type = "note", .id = 2, .from = "n9", .instance = sender, .epoch = 1});
    }
    flood(connection.get(), words);
    const linger at_once{1, 0};
    REQUIRE(::setsockopt(connection.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
    connection.reset();
    // Another connection is greeted after libzmq has seen the end of this one.
    const Fd after(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(dial_and_speak(after.get(), server.bound().front(), {}));
    REQUIRE(expect<LinkLost>(server, [&](const LinkLost& lost) { return lost.instance == sender; }));
  }
  Hub honest = must_open(options(2));
  REQUIRE_OK(honest.connect(server.bound().front()));
  REQUIRE(expect<LinkUp>(server, [](const LinkUp& up) { return up.instance == instance(2); }));
}

TEST_CASE("ctl/hub: a peer whose messages wait to be read goes on to receive, more than a socket holds at once") {
  auto o = attacked(1, {"tcp://127.0.0.1:0"});
  o.ring = 64;
  Hub server = must_open(o);
  const Fd connection(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Bytes words;
  put_word(words, {.type = "note", .id = 1, .from = "n9", .instance = instance(9), .epoch = 1});
  REQUIRE(dial_and_speak(connection.get(), server.bound().front(), words));
  const auto first = expect<Received>(server);
  REQUIRE(first);
  flood(connection.get(), words);  // the server reads none of it below
  const Bytes body(1 << 20, 0x5a);
  constexpr size_t kMessages = 48;
  for (size_t i = 0; i < kMessages; ++i) REQUIRE_OK(server.send(first->link, "note", body));
  Bytes taken(body.size());
  size_t total = 0;
  for (pollfd item{connection.get(), POLLIN, 0}; total < kMessages * body.size();) {
    REQUIRE(::poll(&item, 1, 20'000) == 1);
    const ssize_t count = ::recv(connection.get(), taken.data(), taken.size(), 0);
    REQUIRE(count > 0);
    total += static_cast<size_t>(count);
  }
}

#endif
