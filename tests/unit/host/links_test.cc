// Links over real sockets: who a message is said to be from.

#include "host/links.h"

#include <poll.h>

#include "base/fd.h"
#include "node/worker.h"
#include "test.h"
#include "wire/codec.h"

using namespace mc;
using namespace mc::host;

namespace {

InstanceId instance(uint8_t fill) {
  InstanceId id;
  id.bytes.fill(fill);
  return id;
}

ctl::HubOptions options(const std::string& name, uint8_t id) {
  ctl::HubOptions o;
  o.name = name;
  o.instance = instance(id);
  o.epoch = id;
  o.reconnect = 10ms;
  o.insecure = true;
  o.listen = {*parse_uri("tcp://127.0.0.1:0")};
  return o;
}

/// The next message that `links` receives; gives up after a minute.
std::optional<node::Received> receive(Links& links) {
  const TimePoint end = SystemClock::instance().now() + 60s;
  for (;;) {
    while (auto event = links.next())
      if (auto* received = std::get_if<node::Received>(&*event)) return std::move(*received);
    if (!wait_fd(links.event_fd(), POLLIN, end)) return std::nullopt;
  }
}

/// The next message that `links` receives. `speaker` is pumped meanwhile: what it said may wait for its link.
std::optional<node::Received> receive_from(Links& speaker, Links& links) {
  const TimePoint end = SystemClock::instance().now() + 60s;
  while (SystemClock::instance().now() < end) {
    while (speaker.next()) {
    }
    while (auto event = links.next())
      if (auto* received = std::get_if<node::Received>(&*event)) return std::move(*received);
    (void)wait_fd(links.event_fd(), POLLIN, SystemClock::instance().now() + 5ms);
  }
  return std::nullopt;
}

ctl::LinkId link_up(ctl::Hub& hub, const Uri& to) {
  const auto link = hub.connect(to);
  REQUIRE_OK(link);
  const TimePoint end = SystemClock::instance().now() + 60s;
  while (auto event = hub.wait(end))
    if (std::holds_alternative<ctl::LinkUp>(*event)) return *link;
  FAIL("no link");
  return *link;
}

}  // namespace

TEST_CASE("host/links: a process that dials a worker and calls itself the conductor is not believed") {
  auto conductor = Links::open(options("conductor", 1), std::nullopt);
  REQUIRE_OK(conductor);
  auto worker = Links::open(options("p0", 2), (*conductor)->bound().front());
  REQUIRE_OK(worker);
  auto stranger = ctl::Hub::open(options("conductor", 3));
  REQUIRE_OK(stranger);
  const auto link = link_up(*stranger, (*worker)->bound().front());
  const wire::Message welcome = wire::Welcome{"mine", 200, 1000};
  REQUIRE_OK(stranger->send(link, wire::type_name(welcome), wire::encode(welcome), instance(2)));
  const auto lie = receive(**worker);
  REQUIRE(lie.has_value());
  CHECK(lie->instance == instance(3));
  CHECK(lie->from != node::kConductor);

  // The real one, at the end of the link the worker dialled.
  (*worker)->send({NodeId(node::kConductor), InstanceId{}, wire::Heartbeat{}});
  const auto beat = receive_from(**worker, **conductor);
  REQUIRE(beat.has_value());
  (*conductor)->send({"p0", beat->instance, wire::HeartbeatAck{true}});
  const auto ack = receive(**worker);
  REQUIRE(ack.has_value());
  CHECK(ack->from == node::kConductor);
  CHECK(ack->instance == instance(1));
}

TEST_CASE("host/links: a process that dials a worker and calls itself the operators is not believed") {
  auto worker = Links::open(options("p0", 2), *parse_uri("tcp://127.0.0.1:1"));
  REQUIRE_OK(worker);
  auto stranger = ctl::Hub::open(options(std::string(node::kOperators), 3));
  REQUIRE_OK(stranger);
  const auto link = link_up(*stranger, (*worker)->bound().front());
  const wire::Message cancel = wire::Cancel{"r", 1, "deadline"};
  REQUIRE_OK(stranger->send(link, wire::type_name(cancel), wire::encode(cancel), instance(2)));
  const auto lie = receive(**worker);
  REQUIRE(lie.has_value());
  CHECK(lie->instance == instance(3));
  CHECK(lie->from != node::kOperators);
}

TEST_CASE("host/links: a body that is no message is dropped and counted, and the next one arrives") {
  auto worker = Links::open(options("p0", 2), *parse_uri("tcp://127.0.0.1:1"));
  REQUIRE_OK(worker);
  auto peer = ctl::Hub::open(options("d0", 3));
  REQUIRE_OK(peer);
  const auto link = link_up(*peer, (*worker)->bound().front());
  const wire::Message cancel = wire::Cancel{"r", 1, "deadline"};
  auto garbled = wire::encode(cancel);
  garbled.resize(garbled.size() / 2);
  REQUIRE_OK(peer->send(link, wire::type_name(cancel), garbled, instance(2)));
  REQUIRE_OK(peer->send(link, "no_such_message", wire::encode(cancel), instance(2)));
  REQUIRE_OK(peer->send(link, wire::type_name(cancel), wire::encode(cancel), instance(2)));
  const auto received = receive(**worker);
  REQUIRE(received.has_value());
  CHECK(received->from == "d0");
  CHECK(std::holds_alternative<wire::Cancel>(received->message));
  CHECK((*worker)->bad_messages() == 2);
}

namespace {

/// The next loss that `links` reports; gives up after a minute.
std::optional<node::PeerLost> loss(Links& links) {
  const TimePoint end = SystemClock::instance().now() + 60s;
  for (;;) {
    while (auto event = links.next())
      if (auto* lost = std::get_if<node::PeerLost>(&*event)) return std::move(*lost);
    (void)wait_fd(links.event_fd(), POLLIN, std::min(end, SystemClock::instance().now() + 50ms));
    if (SystemClock::instance().now() >= end) return std::nullopt;
  }
}

wire::Peer peer_of(const std::string& name, uint8_t id, const Uri& at) {
  return {name, instance(id), wire::Role::decode, at.text(), {}};
}

}  // namespace

TEST_CASE("host/links: a message to a peer that was never reached is a lost peer, not a silent wait") {
  auto worker = Links::open(options("p0", 2), *parse_uri("tcp://127.0.0.1:1"), 30ms);
  REQUIRE_OK(worker);
  (*worker)->set_peers({peer_of("d0", 3, *parse_uri("tcp://127.0.0.1:1"))});
  (*worker)->send({"d0", instance(3), wire::Cancel{"r", 1, "deadline"}});
  const auto lost = loss(**worker);
  REQUIRE(lost.has_value());
  CHECK(lost->node == "d0");
  CHECK(lost->instance == instance(3));
}

// That d0's own link still stands does not bring back what was under way on the one p0 dialled.
TEST_CASE("host/links: the loss of the link one speaks by is a lost peer although it still speaks to us") {
  auto worker = Links::open(options("p0", 2), *parse_uri("tcp://127.0.0.1:1"));
  REQUIRE_OK(worker);
  auto dialled = Links::open(options("d0", 3), *parse_uri("tcp://127.0.0.1:1"));
  REQUIRE_OK(dialled);
  const wire::Message cancel = wire::Cancel{"r", 1, "deadline"};
  (*worker)->set_peers({peer_of("d0", 3, (*dialled)->bound().front())});
  (*worker)->send({"d0", instance(3), cancel});
  REQUIRE(receive_from(**worker, **dialled).has_value());
  auto speaking = ctl::Hub::open(options("d0", 3));
  REQUIRE_OK(speaking);
  const auto link = link_up(*speaking, (*worker)->bound().front());
  REQUIRE_OK(speaking->send(link, wire::type_name(cancel), wire::encode(cancel), instance(2)));
  REQUIRE(receive(**worker).has_value());
  dialled->reset();
  const auto lost = loss(**worker);
  REQUIRE(lost.has_value());
  CHECK(lost->instance == instance(3));
}

TEST_CASE("host/links: a message to an instance that nobody told us of is a lost peer") {
  auto worker = Links::open(options("p0", 2), *parse_uri("tcp://127.0.0.1:1"));
  REQUIRE_OK(worker);
  (*worker)->send({"d7", instance(7), wire::Cancel{"r", 1, "deadline"}});
  const auto lost = loss(**worker);
  REQUIRE(lost.has_value());
  CHECK(lost->node == "d7");
  CHECK(lost->instance == instance(7));
}

TEST_CASE("host/links: messages that wait for a peer are a lost peer once it is no peer any more") {
  auto worker = Links::open(options("p0", 2), *parse_uri("tcp://127.0.0.1:1"), 3600s);
  REQUIRE_OK(worker);
  const Uri nobody = *parse_uri("tcp://127.0.0.1:1");
  (*worker)->set_peers({peer_of("d0", 3, nobody), peer_of("d1", 4, nobody)});
  (*worker)->send({"d0", instance(3), wire::Cancel{"r", 1, "deadline"}});
  (*worker)->send({"d0", instance(3), wire::Cancel{"q", 1, "deadline"}});
  (*worker)->send({"d1", instance(4), wire::Cancel{"r", 1, "deadline"}});
  (*worker)->set_peers({peer_of("d1", 4, nobody)});
  const auto lost = loss(**worker);
  REQUIRE(lost.has_value());
  CHECK(lost->node == "d0");
  CHECK(lost->instance == instance(3));
  CHECK_FALSE((*worker)->next().has_value());  // one report, and what waits for d1 waits on
}

TEST_CASE("host/links: a peer that is dropped from the list while it is spoken to is a lost peer") {
  auto worker = Links::open(options("p0", 2), *parse_uri("tcp://127.0.0.1:1"));
  REQUIRE_OK(worker);
  auto dialled = Links::open(options("d0", 3), *parse_uri("tcp://127.0.0.1:1"));
  REQUIRE_OK(dialled);
  (*worker)->set_peers({peer_of("d0", 3, (*dialled)->bound().front())});
  (*worker)->send({"d0", instance(3), wire::Cancel{"r", 1, "deadline"}});
  REQUIRE(receive_from(**worker, **dialled).has_value());
  (*worker)->send({"d0", instance(3), wire::Cancel{"q", 1, "deadline"}});
  (*worker)->set_peers({});
  const auto lost = loss(**worker);
  REQUIRE(lost.has_value());
  CHECK(lost->node == "d0");
  CHECK(lost->instance == instance(3));
}
