// An engine that lies about who it is: it links this library, claims the instance of another process, and offers a
// newer descriptor with other bytes. Instance ids are public. Nobody may ask it in place of the process it names.
#include <unistd.h>

#include "unit/xfer/raw_peer.h"

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

constexpr size_t kBytes = size_t{1} << 20;
const std::string kSecret(32, 's');

/// Claims `who`, offers "kv" with bytes of its own, and has a descriptor far newer than anybody's.
struct Liar {
  mem::SharedBuffer kv = *mem::SharedBuffer::create(kBytes);
  Node node;

  Liar(const InstanceId& who, const std::string& transport, Options options = {})
      : node("liar", transport, [&] {
          options.instance = who;
          options.shm_path =
              "/tmp/mct-liar-" + std::to_string(::getpid());  // the abstract name would be the real one's
          return options;
        }()) {
    fill(kv.bytes(), 666);
    for (int i = 0; i < 50; ++i) {
      auto passing = node->register_buffer(kv, {"passing", AccessClass::blocks});
      REQUIRE_OK(passing);
      REQUIRE_OK(node->unregister(*passing, in(kLong)));
    }
    REQUIRE_OK(node->register_buffer(kv, {"kv", AccessClass::blocks}));
  }
  ~Liar() { node.engine.reset(); }

  /// The victim's answer to a connection.
  Event dial(const std::string& uri) {
    auto peer = node->connect(uri, in(kLong));
    REQUIRE_OK(peer);
    return node.wait([&](const Event& event) {
      return event.peer == *peer && (event.kind == Event::Kind::peer_up || event.kind == Event::Kind::peer_lost);
    });
  }
};

std::string tcp_of(Node& node) {
  for (const std::string& uri : node->uris())
    if (uri.starts_with("tcp://")) return uri;
  return {};
}

}  // namespace

TEST_CASE("xfer: who claims a known instance and proves nothing takes nobody's place") {
  for (const bool first : {false, true}) {  // before the real one is connected, and while it is
    CAPTURE(first);
    auto kv = mem::SharedBuffer::create(kBytes);
    REQUIRE_OK(kv);
    Node holder("holder", "tcp");
    fill(kv->bytes(), 7);
    auto kv_id = holder->register_buffer(*kv, {"kv", AccessClass::blocks});
    REQUIRE_OK(kv_id);
    Node victim("victim", "tcp");
    auto local = mem::HostBuffer::allocate(kBytes);
    REQUIRE_OK(local);
    REQUIRE_OK(victim->register_buffer(local->bytes(), {"local"}));
    Liar liar(holder->instance(), "tcp");
    if (first) liar.dial(tcp_of(victim));
    const auto peer = victim->connect(holder->describe(), in(kLong));
    REQUIRE_OK(peer);
    victim.wait([&](const Event& event) { return event.kind == Event::Kind::peer_up && event.peer == *peer; });
    if (!first) liar.dial(tcp_of(victim));
    for (int i = 0; i < 20; ++i) {
      std::fill(local->bytes().begin(), local->bytes().end(), std::byte{0});
      const Request request{
          .op = Op::read, .peer = *peer, .local = local->bytes(), .buffer = static_cast<uint32_t>(*kv_id)};
      std::string why;
      CHECK_MESSAGE(victim.run({{request}}, nullptr, &why) == Code::ok, why);
      CHECK(equal(local->bytes(), kv->bytes()));
    }
    CHECK(liar.node->counters().requests_served == 0);
    const auto descriptor = victim->descriptor(*peer);
    REQUIRE(descriptor != nullptr);
    CHECK(descriptor->uris == holder->uris());
    liar.node.engine.reset();  // its goodbye is not the real one's
    victim.seen.clear();
    const Request request{
        .op = Op::read, .peer = *peer, .local = local->bytes(), .buffer = static_cast<uint32_t>(*kv_id)};
    CHECK(victim.run({{request}}) == Code::ok);
    victim.engine.reset();
    holder.engine.reset();
  }
}

TEST_CASE("xfer: what a liar says comes from a peer of its own") {
  Node holder("holder", "tcp");
  Node victim("victim", "tcp");
  const auto peer = victim->connect(holder->describe(), in(kLong));
  REQUIRE_OK(peer);
  victim.wait(Event::Kind::peer_up);
  Liar liar(holder->instance(), "tcp");
  const auto to_victim = liar.node->connect(tcp_of(victim), in(kLong));
  REQUIRE_OK(to_victim);
  liar.node.wait(Event::Kind::peer_up);
  REQUIRE(liar.node->notify(*to_victim, std::vector<std::byte>(8)) == Code::ok);
  const Event said = victim.wait(Event::Kind::notify);
  CHECK(said.peer != *peer);
  // nor does the victim's own word to the real one reach the liar
  REQUIRE(victim->notify(*peer, std::vector<std::byte>(9)) == Code::ok);
  CHECK(holder.wait(Event::Kind::notify).bytes.size() == 9);
}

TEST_CASE("xfer: with a secret, a liar without it or with another gets no byte over any transport") {
  for (const std::string transport : {"tcp", "shm"}) {
    CAPTURE(transport);
    Pair pair(transport, kBytes, {.secret = kSecret}, {.secret = kSecret});
    std::string uri;
    for (const std::string& each : pair.reader->uris())
      if (each.starts_with(transport)) uri = each;
    for (const std::string& guess : {std::string(), std::string(32, 'x')}) {
      Liar liar(pair.holder->instance(), transport, {.secret = guess});
      CHECK(liar.dial(uri).kind == Event::Kind::peer_lost);
      CHECK(liar.dial(pair.holder->uris().front()).kind == Event::Kind::peer_lost);
    }
    CHECK(pair.reader.run({{pair.read(0, 0, kBytes)}}) == Code::ok);
    CHECK(equal(pair.local.bytes(), pair.kv.bytes()));
    CHECK(pair.reader->counters().requests_served == 0);
  }
}

TEST_CASE("xfer: strangers that come and go leave no peer behind") {
  Node victim("victim", "tcp", {.peers_max = 8});
  for (int i = 0; i < 40; ++i) {
    Liar liar(instance(static_cast<uint8_t>(i + 1)), "tcp");
    CHECK(liar.dial(tcp_of(victim)).kind == Event::Kind::peer_up);
    victim.wait(Event::Kind::peer_up);
    liar.node.engine.reset();
    victim.wait(Event::Kind::peer_lost);
  }
  std::vector<std::unique_ptr<Node>> friends;
  for (int i = 0; i < 8; ++i) {
    friends.push_back(std::make_unique<Node>("friend", "tcp"));
    const TimePoint limit = in(kLong);  // the last stranger is forgotten a moment after it was reported as lost
    auto peer = victim->connect((*friends.back())->describe(), in(kLong));
    while (!peer && in(Duration{}) < limit) peer = victim->connect((*friends.back())->describe(), in(kLong));
    REQUIRE_OK(peer);
    victim.wait(Event::Kind::peer_up);
  }
}
