// The handshake without sockets, and the access table under it.
#include "xfer/handshake.h"

#include "pair.h"
#include "transports/transports.h"
#include "xfer/access.h"
#include "xfer/auth.h"
#include "xfer/tally.h"

namespace handshake_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

struct Side {
  Options options;
  Access access;
  Tally tally;
  Services services;
  explicit Side(const std::string& name, const std::string& secret = {}) {
    options.name = name;
    options.secret = secret;
    services.options = &options;
    services.access = &access;
    services.tally = &tally;
    static_cast<Id128&>(services.instance) = random_id();
  }
};

/// Passes frames to and fro until one side is complete or fails; the failure.
std::optional<Handshake::Step> converse(Handshake& dialler, Handshake& listener) {
  OutFrame frame = dialler.opening();
  for (bool to_listener = true;; to_listener = !to_listener) {
    Handshake::Step step = (to_listener ? listener : dialler).take(frame.header, frame.payload);
    if (step.failed) return step;
    if (!step.send) return std::nullopt;
    frame = std::move(*step.send);
  }
}

}  // namespace

TEST_CASE("xfer/handshake: an identity is established by the secret, by the ticket, or by the address that was given") {
  const auto meet = [](const std::string& secret, const InstanceId& wanted, const wire::Ticket& ticket, Side& b,
                       auto check) {
    Side a("a", secret);
    Handshake dialler = Handshake::dial(a.services, wanted, random_id(), 0, 1, wire::SealSetting::never, ticket);
    Handshake listener = Handshake::listen(b.services);
    REQUIRE(!converse(dialler, listener).has_value());
    check(dialler, listener, a.services.instance);
  };
  const std::string secret(32, 'k');
  Side secured("b", secret), open("b");
  open.services.ticket = random_ticket();
  const InstanceId none{};
  meet(secret, none, {}, secured, [&](Handshake& dialler, Handshake& listener, const InstanceId& self) {
    CHECK(dialler.proven());
    CHECK(dialler.identity() == secured.services.instance);
    CHECK(listener.proven());
    CHECK(listener.identity() == self);
  });
  meet("", open.services.instance, open.services.ticket, open,
       [&](auto& dialler, auto& listener, const InstanceId& self) {
         CHECK_FALSE(dialler.proven());
         CHECK(dialler.identity() == open.services.instance);
         CHECK(listener.proven());
         CHECK(listener.identity() == self);
       });
  for (const wire::Ticket& wrong : {wire::Ticket{}, random_ticket()})
    meet("", none, wrong, open, [&](Handshake& dialler, Handshake& listener, const InstanceId& self) {
      CHECK_FALSE(dialler.proven());
      CHECK(dialler.identity() == none);
      CHECK_FALSE(listener.proven());
      CHECK(listener.identity() == none);
      CHECK(listener.peer_instance() == self);  // as it says
    });
}

TEST_CASE("xfer/handshake: both sides learn each other, with and without a secret") {
  for (const std::string& secret : {std::string(), std::string(32, 'k')}) {
    Side a("a", secret);
    Side b("b", secret);
    Handshake dialler = Handshake::dial(a.services, b.services.instance, random_id(), 0, 3);
    Handshake listener = Handshake::listen(b.services);
    CHECK(!converse(dialler, listener).has_value());
    CHECK(dialler.complete());
    CHECK(listener.complete());
    CHECK(dialler.peer_instance() == b.services.instance);
    CHECK(listener.peer_instance() == a.services.instance);
    CHECK(dialler.peer_name() == "b");
    CHECK(listener.peer_name() == "a");
    CHECK(listener.descriptor()->name == "a");
    CHECK(listener.hello().lane_count == 3);
  }
}

TEST_CASE("xfer/handshake: data lanes carry no descriptor") {
  Side a("a");
  Side b("b");
  Handshake dialler = Handshake::dial(a.services, b.services.instance, random_id(), 1, 3);
  Handshake listener = Handshake::listen(b.services);
  CHECK(!converse(dialler, listener).has_value());
  CHECK(listener.descriptor() == nullptr);
  Handshake other = Handshake::dial(a.services, b.services.instance, random_id(), 1, 3);
  Handshake hearing = Handshake::listen(b.services);
  const auto hello = other.opening();
  const auto challenge = hearing.take(hello.header, hello.payload);
  auto proof = other.take(challenge.send->header, challenge.send->payload);
  proof.send->payload.resize(proof.send->payload.size() + 10);
  CHECK(hearing.take(proof.send->header, proof.send->payload).failed.has_value());
}

TEST_CASE("xfer/handshake: another instance than wanted is gone, whoever notices") {
  Side a("a");
  Side b("b");
  InstanceId stale = b.services.instance;
  stale.bytes[0] ^= 1;
  Handshake dialler = Handshake::dial(a.services, stale, random_id(), 0, 1);
  Handshake listener = Handshake::listen(b.services);
  const auto opening = dialler.opening();
  const auto refused = listener.take(opening.header, opening.payload);
  REQUIRE(refused.failed.has_value());
  const auto heard = dialler.take(refused.send->header, refused.send->payload);
  CHECK(heard.gone);
  CHECK(heard.failed->code == Code::peer_lost);
  // a listener that answers under another instance without complaint
  Handshake again = Handshake::dial(a.services, stale, random_id(), 0, 1);
  wire::XferChallenge challenge{.instance = b.services.instance, .name = "b"};
  const auto frame = control_frame(wire::FrameType::challenge, wire::encode(challenge));
  const auto step = again.take(frame.header, frame.payload);
  CHECK(step.gone);
  CHECK(step.failed->code == Code::peer_lost);
}

TEST_CASE("xfer/handshake: a process does not connect to itself") {
  Side a("a");
  Handshake dialler = Handshake::dial(a.services, {}, random_id(), 0, 1);
  Handshake listener = Handshake::listen(a.services);
  CHECK(converse(dialler, listener)->failed->code == Code::invalid);
}

TEST_CASE("xfer/handshake: proofs bind direction, nonces, instances, names and lane") {
  const std::string secret(32, 'k');
  wire::XferHello hello{.instance = {}, .lane = 1, .lane_count = 4, .name = "a"};
  hello.nonce = random_nonce();
  wire::XferChallenge challenge{.name = "b"};
  challenge.nonce = random_nonce();
  const auto proof = prove(secret, "dialler", hello, challenge);
  CHECK(same(proof, prove(secret, "dialler", hello, challenge)));
  CHECK(!same(proof, prove(secret, "listener", hello, challenge)));
  CHECK(!same(proof, prove(std::string(32, 'K'), "dialler", hello, challenge)));
  const auto differs = [&](auto change) {
    auto other_hello = hello;
    auto other_challenge = challenge;
    change(other_hello, other_challenge);
    return !same(proof, prove(secret, "dialler", other_hello, other_challenge));
  };
  CHECK(differs([](auto& h, auto&) { h.nonce[0] ^= 1; }));
  CHECK(differs([](auto&, auto& c) { c.nonce[31] ^= 1; }));
  CHECK(differs([](auto& h, auto&) { h.instance.bytes[3] ^= 1; }));
  CHECK(differs([](auto&, auto& c) { c.instance.bytes[3] ^= 1; }));
  CHECK(differs([](auto& h, auto&) { h.connection.bytes[3] ^= 1; }));
  CHECK(differs([](auto& h, auto&) { h.lane = 2; }));
  CHECK(differs([](auto& h, auto&) { h.lane_count = 5; }));
  CHECK(differs([](auto& h, auto& c) { h.name = "ab", c.name = ""; }));
}

TEST_CASE("xfer/handshake: a proof replayed on another connection is refused") {
  const std::string secret(32, 'k');
  Side a("a", secret);
  Side b("b", secret);
  Handshake dialler = Handshake::dial(a.services, b.services.instance, random_id(), 0, 1);
  Handshake first = Handshake::listen(b.services);
  Handshake second = Handshake::listen(b.services);
  const auto hello = dialler.opening();
  const auto challenge = first.take(hello.header, hello.payload);
  const auto proof = dialler.take(challenge.send->header, challenge.send->payload);
  (void)second.take(hello.header, hello.payload);  // same hello, but its own nonce
  const auto step = second.take(proof.send->header, proof.send->payload);
  REQUIRE(step.failed.has_value());
  CHECK(step.failed->what.find("secret") != std::string::npos);
  CHECK(!first.take(proof.send->header, proof.send->payload).failed.has_value());
}

TEST_CASE("xfer/access: ranges are checked without overflow and pins hold a buffer") {
  static_assert(inside(0, 0, 0) && inside(10, 0, 10) && inside(0, 10, 10) && inside(9, 1, 10));
  static_assert(!inside(11, 0, 10) && !inside(10, 1, 10) && !inside(UINT64_MAX, 2, 10) && !inside(2, UINT64_MAX, 10));
  static_assert(inside(0, UINT64_MAX, UINT64_MAX) && !inside(1, UINT64_MAX, UINT64_MAX));
  Access access;
  std::vector<std::byte> memory(100);
  const auto id = access.add(memory, {"kv", AccessClass::blocks}, -1);
  REQUIRE_OK(id);
  const auto number = static_cast<uint32_t>(*id);
  CHECK(access.grant(Op::read, number, 90, 11, {}).code == Code::invalid);
  const auto grant = access.grant(Op::read, number, 90, 10, {});
  CHECK(grant.code == Code::ok);
  CHECK(grant.memory.data() == memory.data() + 90);
  CHECK(access.remove(*id, in(1ms)).error().code == Code::timeout);
  CHECK(access.grant(Op::read, number, 0, 1, {}).code == Code::not_found);  // revoked at once
  std::vector<BufferId> pins;
  CHECK(access.pin_local({{{.local = memory}}}, pins) == 0);
  CHECK(pins.empty());
  access.unpin(number);
  CHECK(access.remove(*id, in(1ms)).has_value());
  CHECK(access.pin_count() == 0);
}

namespace {

/// A handshake whose sides wish that; the failure, or nothing when both are complete.
struct Sealing {
  Side a, b;
  Handshake dialler, listener;
  std::optional<SealSecrets> dialler_keys, listener_keys;
  std::optional<Handshake::Step> failed;

  Sealing(wire::SealSetting dials, wire::SealSetting listens, const std::string& secret = std::string(32, 'k'))
      : a("a", secret),
        b("b", secret),
        dialler(Handshake::dial(a.services, b.services.instance, random_id(), 0, 1, dials)),
        listener(Handshake::listen(b.services, listens)) {
    OutFrame frame = dialler.opening();
    for (bool to_listener = true; !failed; to_listener = !to_listener) {
      Handshake::Step step = (to_listener ? listener : dialler).take(frame.header, frame.payload);
      if (step.seal) (to_listener ? listener_keys : dialler_keys) = step.seal;
      if (step.failed) failed = step;
      if (!step.send) break;
      frame = std::move(*step.send);
    }
  }
};

}  // namespace

TEST_CASE("xfer/handshake: a refusal carries the setting that differs, and an unknown one is none") {
  Side a("a");
  Handshake dialler = Handshake::dial(a.services, {}, random_id(), 0, 1);
  auto frame = refusal(Code::invalid, "why", wire::Mismatch::secret);
  CHECK(dialler.take(frame.header, frame.payload).mismatch == wire::Mismatch::secret);
  frame.header.id = 200;  // of a later release
  const auto step = dialler.take(frame.header, frame.payload);
  CHECK(step.mismatch == wire::Mismatch::none);
  CHECK(step.failed.has_value());
}

TEST_CASE("xfer/handshake: a stream is sealed when one side must and the other may") {
  using enum wire::SealSetting;
  for (const auto dials : {never, may, must})
    for (const auto listens : {never, may, must}) {
      CAPTURE(static_cast<int>(dials));
      CAPTURE(static_cast<int>(listens));
      Sealing both(dials, listens);
      const bool wanted = dials == must || listens == must;
      const bool refused = wanted && (dials == never || listens == never);
      CHECK(both.failed.has_value() == refused);
      if (refused) {
        CHECK(both.failed->failed->code == Code::invalid);
        CHECK(both.failed->mismatch == wire::Mismatch::seal);
        CHECK(both.failed->failed->what.find("tcp_seal off") != std::string::npos);
        CHECK(both.failed->failed->what.find("tcp_seal on, or auto off loopback") != std::string::npos);
        continue;
      }
      CHECK(both.dialler.complete());
      CHECK(both.listener.complete());
      CHECK(both.dialler_keys.has_value() == wanted);
      CHECK(both.listener_keys.has_value() == wanted);
      if (!wanted) continue;
      CHECK(both.dialler_keys->out == both.listener_keys->in);
      CHECK(both.dialler_keys->in == both.listener_keys->out);
      CHECK(Sealing(dials, listens).dialler_keys->out != both.dialler_keys->out);  // another exchange
    }
}

TEST_CASE("xfer/handshake: what --tcp-seal means depends on the secret and on where the other end is") {
  using enum wire::SealSetting;
  Options options{.secret = std::string(32, 'k')};
  CHECK(seal_setting(options, true) == may);
  CHECK(seal_setting(options, false) == must);
  options.tcp_seal = "on";
  CHECK(seal_setting(options, true) == must);
  options.tcp_seal = "off";
  CHECK(seal_setting(options, false) == never);
  options.tcp_seal = "auto";
  options.secret.clear();
  CHECK(seal_setting(options, false) == never);
  options.tcp_seal = "on";
  const auto refused = open_engine(options);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().what.find("tcp_seal on needs a secret") != std::string::npos);
  options.tcp_seal = "perhaps";
  CHECK(open_engine(options).error().what == "xfer: tcp_seal 'perhaps' is unknown; there are: auto, off, on");
}

TEST_CASE("xfer/handshake: a key share of small order is refused") {
  Side a("a", std::string(32, 'k'));
  Side b("b", std::string(32, 'k'));
  Handshake dialler = Handshake::dial(a.services, b.services.instance, random_id(), 0, 1, wire::SealSetting::must);
  Handshake listener = Handshake::listen(b.services, wire::SealSetting::may);
  auto hello = dialler.hello();
  hello.share = {};
  const auto frame = control_frame(wire::FrameType::hello, wire::encode(hello));
  const auto step = listener.take(frame.header, frame.payload);
  REQUIRE(step.failed.has_value());
  CHECK(step.failed->code == Code::corrupt);
  CHECK_FALSE(step.seal.has_value());
}

}  // namespace handshake_test
