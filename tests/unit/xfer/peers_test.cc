// Connections: who is let in, what happens when they die, how work finds another way.
#include <algorithm>

#include "raw_peer.h"
#include "transports/transports.h"

namespace peers_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

const std::string kSecret(32, 's');

bool is_lost(const Event& event) {
  return event.kind == Event::Kind::peer_lost;
}

void check_idle(Node& node) {
  const Counters counters = node->counters();
  CHECK(counters.slices_in_flight == 0);
  CHECK(counters.quarantined_bytes == 0);
  CHECK(counters.batches_open == 0);
}

}  // namespace

TEST_CASE("xfer: auto takes shm on one host and says why, tcp where shm does not reach") {
  Pair pair("auto");
  CHECK(pair.reader->transport(pair.peer) == "shm");
  const Event up = pair.holder.wait(Event::Kind::peer_up);
  CHECK(pair.holder->transport(up.peer) == "shm");
  CHECK(up.text.starts_with("shm: "));
  CHECK_FALSE(up.networked);

  Node plain("plain", "tcp");
  auto peer = pair.reader->connect(plain->describe(), in(kLong));
  const Event event = pair.reader.wait(Event::Kind::peer_up);
  CHECK(pair.reader->transport(*peer) == "tcp");
  CHECK(event.text == "tcp: reaches every host; not shm: the peer does not listen on shm");
  CHECK(event.networked);
}

TEST_CASE("xfer: a peer on another host is not dialled over shm") {
  Node reader("reader", "shm");
  auto descriptor = *wire::decode_descriptor(Node("far", "shm")->describe());
  descriptor.boot.bytes.fill(1);
  REQUIRE_OK(reader->connect(wire::encode(descriptor), in(kLong)));
  const Event lost = reader.wait(is_lost);
  CHECK(lost.text.find("shm: another host (boot id 01010101") != std::string::npos);
}

TEST_CASE("xfer: a secret on both sides connects; a wrong, missing or extra one is refused with a reason") {
  for (const std::string transport : {"tcp", "shm", "shm-engine"}) {
    CAPTURE(transport);
    Node holder("holder", transport, {.secret = kSecret});
    const auto attempt = [&](const std::string& secret) {
      Node reader("reader", transport, {.secret = secret});
      auto peer = reader->connect(holder->describe(), in(kLong));
      REQUIRE_OK(peer);
      return reader.wait([](const Event& e) { return e.kind == Event::Kind::peer_up || is_lost(e); });
    };
    CHECK(attempt(kSecret).kind == Event::Kind::peer_up);
    const Event wrong = attempt(std::string(32, 'x'));
    CHECK(wrong.code == Code::invalid);
    CHECK(wrong.mismatch == wire::Mismatch::secret);
    CHECK(wrong.text.find("does not hold this cluster's secret") != std::string::npos);
    CHECK(attempt("").mismatch == wire::Mismatch::secret);
    CHECK(attempt("").text.find("requires the cluster secret, the peer has none") != std::string::npos);
    CHECK(holder->counters().failures.size() >= 1);
  }
  Node open_holder("holder", "tcp");
  Node reader("reader", "tcp", {.secret = kSecret});
  REQUIRE_OK(reader->connect(open_holder->describe(), in(kLong)));
  CHECK(reader.wait(is_lost).text.find("has no cluster secret, the peer has one") != std::string::npos);
}

TCP_TEST_CASE("xfer: with a secret, transfers and notifies work as without") {
  const Options secured{.secret = kSecret, .payload_crc = true};
  for (const std::string transport : {"tcp", "shm", "shm-engine"}) {
    Pair pair(transport, Pair::kDefaultBytes, secured, secured);
    CHECK(pair.reader.run({{pair.read(0, 0, 1 << 20), pair.write(1 << 20, 0, 1 << 20)}}) == Code::ok);
    CHECK(equal(pair.local.bytes().first(1 << 20), pair.kv.bytes().first(1 << 20)));
    CHECK(pair.reader->notify(pair.peer, {}) == Code::ok);
    CHECK(pair.holder.wait(Event::Kind::notify).bytes.empty());
  }
}

TCP_TEST_CASE("xfer: a peer that leaves is reported at once, and its work fails as lost") {
  for (const std::string transport : {"tcp", "shm", "auto"}) {
    CAPTURE(transport);
    Pair pair(transport);
    Node other("other", transport);
    auto other_peer = pair.reader->connect(other->describe(), in(kLong));
    pair.reader.wait(Event::Kind::peer_up);
    pair.holder.engine.reset();
    const Event lost = pair.reader.wait(is_lost);
    CHECK(lost.peer == pair.peer);
    CHECK(lost.gone);
    CHECK(lost.text.find("the peer left") != std::string::npos);
    std::string text;
    CHECK(pair.reader.run({{pair.read(0, 0, 4096)}}, nullptr, &text) == Code::peer_lost);
    CHECK(pair.reader->notify(pair.peer, {}) == Code::peer_lost);
    CHECK(pair.reader->transport(pair.peer).empty());
    CHECK(pair.reader->notify(*other_peer, {}) == Code::ok);  // nobody else noticed
    other.wait(Event::Kind::notify);
    check_idle(pair.reader);
  }
}

TCP_TEST_CASE("xfer: a peer restarted under its name is refused, until its new descriptor is used") {
  Options fixed;
  for (const std::string transport : {"tcp", "shm", "shm-engine"}) {
    CAPTURE(transport);
    auto first = std::make_unique<Node>("d0", transport, Options{.shm_path = ""});
    const std::string uri = (*first)->uris()[0];
    const auto old_descriptor = (*first)->describe();
    Node reader("reader", transport);
    auto by_descriptor = reader->connect(old_descriptor, in(kLong));
    reader.wait(Event::Kind::peer_up);
    auto by_uri = reader->connect(uri, in(kLong));
    reader.wait(Event::Kind::peer_up);
    first.reset();
    reader.wait(is_lost);
    reader.wait(is_lost);
    // the same address again, another process; shm's abstract name carries the instance, so say it
    Options again;
    if (transport == "tcp") {
      again.tcp_bind = uri.substr(6);
      Node second("d0", transport, again);
      REQUIRE_OK(reader->connect(old_descriptor, in(kLong)));
      const Event refused = reader.wait(is_lost);
      CHECK(refused.gone);
      // a new reader that holds the old descriptor meets the new process, and is told
      Node late("late", transport);
      REQUIRE_OK(late->connect(old_descriptor, in(kLong)));
      const Event stale = late.wait(is_lost);
      CHECK(stale.gone);
      CHECK(stale.code == Code::peer_lost);
      CHECK(stale.text.find("restarted?") != std::string::npos);
      REQUIRE_OK(late->connect(second->describe(), in(kLong)));
      CHECK(late.wait(Event::Kind::peer_up).kind == Event::Kind::peer_up);
    }
    CHECK(*by_descriptor != *by_uri);
  }
}

TEST_CASE("xfer: connecting by URI waits for a peer that starts later") {
  // a port that was just free
  std::string uri;
  {
    Node probe("probe", "tcp");
    uri = probe->uris()[0];
  }
  Node reader("reader", "tcp", {.backoff_min = 1ms, .backoff_max = 5ms});
  auto peer = reader->connect(uri, in(kLong));
  REQUIRE_OK(peer);
  std::vector<Event> none;
  CHECK(reader->poll(none, in(20ms)) == 0);
  Node holder("late", "tcp", {.tcp_bind = uri.substr(6)});
  const Event up = reader.wait(Event::Kind::peer_up);
  CHECK(up.peer == *peer);
  CHECK(reader->descriptor(*peer)->name == "late");
}

TEST_CASE("xfer: connecting to nobody ends at its deadline with the last reason") {
  std::string uri;
  {
    Node probe("probe", "tcp");
    uri = probe->uris()[0];
  }
  Node reader("reader", "tcp", {.backoff_min = 1ms, .backoff_max = 5ms});
  REQUIRE_OK(reader->connect(uri, in(2s)));
  const Event lost = reader.wait(is_lost);
  CHECK(lost.code == Code::timeout);
  CHECK(lost.text.find("Connection refused") != std::string::npos);
  CHECK(reader->connect("rdma://mlx5_0:1", in(kLong)).error().code == Code::unsupported);
  CHECK(reader->connect(reader->describe(), in(kLong)).error().code == Code::invalid);
  const std::vector<std::byte> junk(100);
  CHECK(reader->connect(junk, in(kLong)).error().code == Code::corrupt);
}

TCP_TEST_CASE("xfer: a lost connection to a living peer is dialled again by the work that needs it") {
  for (const std::string transport : {"tcp", "shm", "shm-engine"}) {
    CAPTURE(transport);
    Options holder;
    holder.secret.assign(32, 'k');  // the holder dials back, and without proof would be a second peer
    Options options = holder;
    options.backoff_min = 1ms;
    options.faults = {.seed = mc::test::seed() + 1, .lose_peer = 0.2};
    Pair pair(transport, Pair::kDefaultBytes, holder, options);
    for (int i = 0; i < 50; ++i) {
      fill(pair.local.bytes().first(1 << 16), 1);
      REQUIRE(pair.reader.run({{pair.read(0, static_cast<size_t>(i) << 16, 1 << 16)}}) == Code::ok);
      REQUIRE(equal(pair.local.bytes().first(1 << 16), pair.kv.bytes().subspan(static_cast<size_t>(i) << 16, 1 << 16)));
    }
    CHECK(pair.reader->counters().peers_lost > 0);
    CHECK(pair.reader->counters().peers_up == pair.reader->counters().peers_lost + 1);
    check_idle(pair.reader);
  }
}

TCP_TEST_CASE("xfer: private memory of a peer on this host goes over tcp while its arenas go over shm") {
  Pair pair("shm,tcp");
  auto plain = mem::HostBuffer::allocate(1 << 20);
  fill(plain->bytes(), 5);
  auto id = pair.holder->register_buffer(plain->bytes(), {"plain", AccessClass::blocks});
  REQUIRE_OK(id);
  while (pair.reader->descriptor(pair.peer)->find("plain") == nullptr) pair.reader.wait(Event::Kind::peer_changed);
  Request request = pair.read(0, 1000, 100000);
  request.buffer = static_cast<uint32_t>(*id);
  CHECK(pair.reader.run({{request, pair.read(1 << 20, 0, 100000)}}) == Code::ok);
  CHECK(equal(pair.local.bytes().first(100000), plain->bytes().subspan(1000, 100000)));
  const auto flows = pair.reader->counters().flows;
  for (const auto& flow : flows)
    if (flow.transport != "rdma") CHECK(flow.read_bytes == 100000);
  // it can be read in place only where it is shared
  CHECK(pair.reader->map(pair.peer, static_cast<uint32_t>(*id), 0, 10).error().code == Code::unsupported);
  pair.reader.engine.reset();
  pair.holder.engine.reset();
}

TCP_TEST_CASE("xfer: when shm cannot be dialled, the work fails over to tcp") {
  Pair pair("auto");
  Node reader("second", "auto");
  auto local = mem::HostBuffer::allocate(1 << 20);
  REQUIRE_OK(reader->register_buffer(local->bytes(), {"local"}));
  auto descriptor = *wire::decode_descriptor(pair.holder->describe());
  for (auto& uri : descriptor.uris)
    if (uri.starts_with("shm://")) uri = "shm://mc-xfer-nobody-is-here";
  auto peer = reader->connect(wire::encode(descriptor), in(kLong));
  REQUIRE_OK(peer);
  Request request{.op = Op::read, .peer = *peer, .local = local->bytes(), .buffer = pair.kv_id};
  CHECK(reader.run({{request}}) == Code::ok);
  CHECK(reader->transport(*peer) == "tcp");
  CHECK(equal(local->bytes(), pair.kv.bytes().first(1 << 20)));
  reader.engine.reset();
}

TEST_CASE("xfer/shm: a mapped view shows the peer's bytes, is bounded, and outlives the peer") {
  Pair pair("shm");
  auto view = pair.reader->map(pair.peer, pair.kv_id, 4096, 8192);
  REQUIRE_OK(view);
  CHECK(equal(view->bytes(), pair.kv.bytes().subspan(4096, 8192)));
  pair.kv.bytes()[5000] ^= std::byte{1};
  CHECK(view->bytes()[5000 - 4096] == pair.kv.bytes()[5000]);
  const auto code = [&](uint32_t buffer, uint64_t offset, uint64_t length) {
    auto refused = pair.reader->map(pair.peer, buffer, offset, length);
    return refused ? Code::ok : refused.error().code;
  };
  CHECK(code(pair.kv_id, Pair::kDefaultBytes, 0) == Code::ok);
  CHECK(code(pair.kv_id, Pair::kDefaultBytes, 1) == Code::invalid);
  CHECK(code(pair.kv_id, UINT64_MAX, 2) == Code::invalid);
  CHECK(code(pair.landing_id, 0, 1) == Code::invalid);
  CHECK(code(99, 0, 1) == Code::unsupported);
  CHECK(pair.reader->map(PeerId{99}, 1, 0, 1).error().code == Code::not_found);
  const std::vector<std::byte> before(view->bytes().begin(), view->bytes().end());
  pair.holder.engine.reset();
  pair.reader.wait(is_lost);
  CHECK(code(pair.kv_id, 0, 1) == Code::unsupported);
  CHECK(equal(view->bytes(), before));
}

TCP_TEST_CASE("xfer: a cancelled batch ends as cancelled and lets its memory go") {
  RawPair pair;
  auto batch = pair.reader->submit({{pair.read(1 << 20), pair.write(1 << 19)}}, in(kLong));
  pair.server.data.receive();
  CHECK(pair.reader->close(*batch).error().code == Code::busy);
  CHECK(pair.reader->close(*batch, in(5ms)).error().code == Code::timeout);
  CHECK(pair.reader->results(*batch).empty());
  pair.reader->cancel(*batch);
  pair.reader->cancel(*batch);
  const Event event = pair.reader.done(*batch);
  CHECK(event.code == Code::cancelled);
  for (const auto& result : pair.reader->results(*batch)) CHECK(result.code == Code::cancelled);
  REQUIRE_OK(pair.reader->close(*batch, in(kLong)));
  CHECK(pair.reader->close(*batch).error().code == Code::not_found);
  pair.reader->cancel(*batch);
  check_idle(pair.reader);
}

TCP_TEST_CASE("xfer: disconnecting fails the peer's work as cancelled and forgets it") {
  RawPair pair;
  auto batch = pair.reader->submit({{pair.read(1 << 20)}}, in(kLong));
  pair.server.data.receive();
  pair.reader->disconnect(pair.peer);
  CHECK(pair.reader.done(*batch).code == Code::cancelled);
  REQUIRE_OK(pair.reader->close(*batch, in(kLong)));
  std::optional<RawSocket::Got> last;
  while (auto got = pair.server.control.receive()) last = got;
  REQUIRE(last.has_value());
  CHECK(last->header.kind() == FrameType::goodbye);
  CHECK(pair.reader->descriptor(pair.peer) == nullptr);
  auto again = pair.reader->submit({{pair.read(1)}}, in(kLong));
  CHECK(pair.reader.done(*again).code == Code::not_found);
  REQUIRE_OK(pair.reader->close(*again, in(kLong)));
  check_idle(pair.reader);
}

TCP_TEST_CASE("xfer/tcp: IPv6 loopback works where the machine has it") {
  auto opened = open_engine({.name = "six", .transport = "tcp", .tcp_bind = "[::1]:0", .insecure = true});
  if (!opened) return;  // no ::1 here
  CHECK((*opened)->uris()[0].starts_with("tcp://[::1]:"));
  Node reader("reader", "tcp");
  REQUIRE_OK(reader->connect((*opened)->describe(), in(kLong)));
  reader.wait(Event::Kind::peer_up);
}

TCP_TEST_CASE("xfer: a deadline in the past, and one with nobody there, end the batch as timeout") {
  Pair pair("tcp");
  auto batch = pair.reader->submit({{pair.read(0, 0, 1 << 20)}}, SystemClock::instance().now() - 1s);
  CHECK(pair.reader.done(*batch).code == Code::timeout);
  REQUIRE_OK(pair.reader->close(*batch, in(kLong)));
  RawServer silent;  // its kernel accepts, nobody answers
  auto peer = pair.reader->connect(wire::encode(silent.descriptor()), in(kLong));
  Request request = pair.read(0, 0, 4096);
  request.peer = *peer;
  request.buffer = 1;
  auto stuck = pair.reader->submit({{request}}, in(30ms));
  const Event event = pair.reader.done(*stuck);
  CHECK(event.code == Code::timeout);
  CHECK(event.text.find("is not connected") != std::string::npos);
  REQUIRE_OK(pair.reader->close(*stuck, in(kLong)));
  check_idle(pair.reader);
}

TEST_CASE("xfer: open batches are bounded, and closing makes room") {
  Pair pair("tcp", Pair::kDefaultBytes, {}, {.batches_max = 3});
  std::vector<BatchId> open;
  for (int i = 0; i < 3; ++i) open.push_back(*pair.reader->submit({{pair.read(0, 0, 10)}}, in(kLong)));
  CHECK(pair.reader->submit({{pair.read(0, 0, 10)}}, in(kLong)).error().code == Code::busy);
  REQUIRE_OK(pair.reader->close(open[0], in(kLong)));
  auto next = pair.reader->submit({{pair.read(0, 0, 10)}}, in(kLong));
  REQUIRE_OK(next);
  for (const BatchId batch : {open[1], open[2], *next}) REQUIRE_OK(pair.reader->close(batch, in(kLong)));
  check_idle(pair.reader);
}

TCP_TEST_CASE("xfer: two that dial each other at once are connected both ways") {
  for (const std::string transport : {"tcp", "shm", "shm-engine"}) {
    CAPTURE(transport);
    Node a("a", transport);
    Node b("b", transport);
    auto to_b = a->connect(b->describe(), in(kLong));
    auto to_a = b->connect(a->describe(), in(kLong));
    a.wait(Event::Kind::peer_up);
    b.wait(Event::Kind::peer_up);
    for (uint8_t i = 0; i < 100; ++i) {
      const std::vector<std::byte> message{std::byte{i}};
      REQUIRE(a->notify(*to_b, message) == Code::ok);
      REQUIRE(b->notify(*to_a, message) == Code::ok);
    }
    for (uint8_t i = 0; i < 100; ++i) {
      const Event at_b = b.wait(Event::Kind::notify);
      const Event at_a = a.wait(Event::Kind::notify);
      CHECK(at_b.bytes[0] == std::byte{i});
      CHECK(at_a.bytes[0] == std::byte{i});
      CHECK(at_b.peer == *to_a);  // one process is one peer, whoever dialled
      CHECK(at_a.peer == *to_b);
    }
  }
}

TCP_TEST_CASE("xfer: a late registration reaches connected peers, mapped before it is named") {
  for (const std::string transport : {"tcp", "shm", "shm-engine"}) {
    CAPTURE(transport);
    Pair pair(transport);
    std::vector<mem::SharedBuffer> arenas;
    for (int i = 0; i < 20; ++i) {
      auto arena = mem::SharedBuffer::create(8192);
      fill(arena->bytes(), static_cast<uint64_t>(i));
      arenas.push_back(std::move(*arena));
      auto id = pair.holder->register_buffer(arenas.back(), {"late" + std::to_string(i), AccessClass::blocks});
      REQUIRE_OK(id);
      while (pair.reader->descriptor(pair.peer)->find(static_cast<uint32_t>(*id)) == nullptr)
        pair.reader.wait(Event::Kind::peer_changed);
      Request request = pair.read(0, 0, 8192);
      request.buffer = static_cast<uint32_t>(*id);
      CHECK(pair.reader.run({{request}}) == Code::ok);
      CHECK(equal(pair.local.bytes().first(8192), arenas.back().bytes()));
    }
    pair.reader.engine.reset();
    pair.holder.engine.reset();
  }
}

TEST_CASE("xfer: a full table of peers refuses the next, and makes room when one is lost") {
  Node holder("holder", "tcp", {.peers_max = 2});
  auto first = std::make_unique<Node>("a", "tcp");
  Node second("b", "tcp");
  Node third("c", "tcp");
  REQUIRE_OK((*first)->connect(holder->describe(), in(kLong)));
  first->wait(Event::Kind::peer_up);
  REQUIRE_OK(second->connect(holder->describe(), in(kLong)));
  second.wait(Event::Kind::peer_up);
  holder.wait(Event::Kind::peer_up);
  holder.wait(Event::Kind::peer_up);
  REQUIRE_OK(third->connect(holder->describe(), in(50ms)));
  third.wait(is_lost);
  first.reset();
  holder.wait(is_lost);
  REQUIRE_OK(third->connect(holder->describe(), in(kLong)));
  holder.wait(Event::Kind::peer_up);
  CHECK(holder->connect(second->describe(), in(kLong)).has_value());  // known already
}

}  // namespace peers_test
