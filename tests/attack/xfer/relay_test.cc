// An attacker on the path who relays the handshake and then changes what follows. On a stream that is not sealed it
// reads and changes everything; on a sealed one it can only end the connection.
#include "relay.h"

#include <cstdlib>
#include <map>

#include "base/hash.h"
#include "count.h"
#include "xfer/stream.h"

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

wire::FrameHeader header_of(const Bytes& frame) {
  wire::FrameHeader header;
  const char* why = nullptr;
  REQUIRE(wire::decode(std::span<const std::byte>(frame).first<wire::kFrameHeaderBytes>(), header, why) == Code::ok);
  return header;
}

/// The frame with another payload, and every checksum right.
Bytes reframed(wire::FrameHeader header, const Bytes& payload) {
  header.length = payload.size();
  if ((header.flags & wire::kFrameHasPayloadCrc) != 0) header.payload_crc = crc32c(payload);
  const auto head = wire::encode(header);
  Bytes out(head.begin(), head.end());
  out.insert(out.end(), payload.begin(), payload.end());
  return out;
}

Bytes payload_of(const Bytes& frame) {
  return {frame.begin() + wire::kFrameHeaderBytes, frame.end()};
}

/// Fate of one sealed record, whose number in its direction was chosen.
class Tamper {
 public:
  enum Kind { length, cipher, tag, drop, repeat, swap, truncate, splice_lane, splice_direction, insert, kinds };
  static constexpr const char* kNames[] = {"length",     "cipher",          "tag",   "drop", "repeat", "swap", "cut",
                                           "other lane", "other direction", "insert"};

  Tamper(Kind kind, bool to_listener, size_t lane, size_t number, uint64_t seed)
      : kind_(kind), to_listener_(to_listener), lane_(lane), number_(number), rng_(seed) {}
  bool fired() const { return fired_; }

  std::optional<Bytes> operator()(const Relay::Piece& piece) {
    if (piece.handshake) return piece.bytes;
    const bool ours = piece.to_listener == to_listener_ && piece.lane == lane_;
    if (!ours) {
      if (piece.to_listener == to_listener_) other_lane_ = piece.bytes;
      if (piece.lane == lane_) other_direction_ = piece.bytes;
      return piece.bytes;
    }
    if (!held_.empty()) {  // the second of two that change places
      Bytes both = piece.bytes;
      both.insert(both.end(), held_.begin(), held_.end());
      held_.clear();
      fired_ = true;
      return both;
    }
    if (fired_ || piece.number < number_) return piece.bytes;
    return strike(piece.bytes);
  }

 private:
  std::optional<Bytes> strike(Bytes bytes) {
    const auto flip = [&](size_t from, size_t count) {
      bytes[from + rng_.below(count)] ^= std::byte(1u << rng_.below(8));
    };
    switch (kind_) {
      case length: flip(0, kRecordHead); break;
      case cipher: flip(kRecordHead, bytes.size() - kRecordExtra); break;
      case tag: flip(bytes.size() - kRecordTag, kRecordTag); break;
      case drop: bytes.clear(); break;
      case repeat: bytes.insert(bytes.end(), bytes.begin(), bytes.end()); break;
      case swap: held_ = std::exchange(bytes, {}); return bytes;
      case truncate:
        if (std::exchange(cut_, true)) return std::nullopt;
        fired_ = true;
        return std::nullopt;
      case splice_lane:
        if (other_lane_.empty()) return bytes;
        bytes = other_lane_;
        break;
      case splice_direction:
        if (other_direction_.empty()) return bytes;
        bytes = other_direction_;
        break;
      default: {
        Bytes made(kRecordExtra + 1 + rng_.below(3000));
        fill(std::span(made).first(made.size() / 8 * 8), rng_.next());
        const auto word = static_cast<uint32_t>(made.size() - kRecordExtra);
        std::memcpy(made.data(), &word, sizeof word);
        bytes.insert(bytes.begin(), made.begin(), made.end());
      }
    }
    fired_ = true;
    return bytes;
  }

  const Kind kind_;
  const bool to_listener_;
  const size_t lane_, number_;
  Rng rng_;
  Bytes held_, other_lane_, other_direction_;
  bool cut_ = false;
  std::atomic<bool> fired_ = false;
};

}  // namespace

TEST_CASE("attack/xfer: without sealing a relay changes KV together with its checksum, and the reader takes it") {
  for (const char* seal : {"none", "off"}) {
    CAPTURE(seal);
    std::atomic<int> seen = 0;  // before the relay, which ends with the pair
    Relayed pair(seal, seal);
    pair.relay.attack([&](const Relay::Piece& piece) -> std::optional<Bytes> {
      if (piece.handshake || piece.lane == 0 || piece.to_listener) return piece.bytes;
      const auto header = header_of(piece.bytes);
      if (header.kind() != wire::FrameType::data) return piece.bytes;
      Bytes payload = payload_of(piece.bytes);
      payload[100] ^= std::byte{1};
      ++seen;
      return reframed(header, payload);
    });
    pair.connect();
    const Request request = pair.read(0, 65536);
    CHECK(pair.reader.run({&request, 1}) == Code::ok);
    CHECK(seen > 0);
    CHECK_FALSE(equal(pair.local.bytes().first(65536), pair.kv.bytes().first(65536)));  // wrong, and nobody knows
  }
}

TEST_CASE(
    "attack/xfer: on a sealed stream a changed, lost, repeated, moved or spliced record never becomes wrong bytes") {
  const uint64_t seed = mc::test::seed();
  std::map<std::string, int> fired;
  const int rounds = ::mc::test::count(1, 40);
  for (int round = 0; round < rounds; ++round)
    for (int kind = 0; kind < Tamper::kinds; ++kind)
      for (const bool to_listener : {false, true}) {
        const std::string name = Tamper::kNames[kind];
        CAPTURE(name);
        CAPTURE(to_listener);
        CAPTURE(round);
        Rng rng(seed * 1000 + static_cast<uint64_t>(round * 100 + kind * 2 + (to_listener ? 1 : 0)));
        Tamper tamper(static_cast<Tamper::Kind>(kind), to_listener, 1, 1 + rng.below(8), rng.next());
        Relayed pair("on", "on");
        pair.connect();
        const PeerId back = pair.holder.wait(Event::Kind::peer_up).peer;
        CHECK(pair.reader->counters().streams_sealed >= 3);  // more where a busy machine needs a second attempt
        pair.relay.attack([&](const Relay::Piece& piece) { return tamper(piece); });
        fill(pair.local.bytes(), 1);
        int turns = 0;
        for (; !tamper.fired() && turns < 200; ++turns) {
          const size_t at = rng.below(Relayed::kBytes / 2);
          const size_t length = 1 + (rng.chance(0.5) ? rng.below(5000) : rng.below(Relayed::kBytes / 2));
          std::memset(pair.local.bytes().data(), turns, at);
          std::vector<Request> requests{pair.read(at, length), pair.read(Relayed::kBytes - 1000, 1000)};
          if (at > 0) requests.push_back(pair.write(0, at));
          const std::byte note[100]{};  // another lane
          (void)pair.reader->notify(pair.peer, note);
          (void)pair.holder->notify(back, note);
          std::vector<RequestResult> results;
          (void)pair.reader.run(requests, &results);
          for (size_t i = 0; i < requests.size(); ++i) {
            if (results[i].code != Code::ok) continue;
            const auto& there = requests[i].op == Op::read ? pair.kv : pair.landing;
            CHECK(equal(requests[i].local, there.bytes().subspan(requests[i].offset, requests[i].local.size())));
          }
        }
        fired[name] += tamper.fired() ? 1 : 0;
        REQUIRE(tamper.fired());
        const Request again = pair.read(0, Relayed::kBytes);  // over a new connection
        CHECK(pair.reader.run({&again, 1}) == Code::ok);
        CHECK(equal(pair.local.bytes(), pair.kv.bytes()));
        // a length that grew is waited for, until the lane has stalled
        if (kind != Tamper::truncate && kind != Tamper::drop && kind != Tamper::swap)
          CHECK(pair.failures("seal: ") + pair.failures("stalled lane") >= 1);
      }
  CHECK(fired.size() == Tamper::kinds);
}

TEST_CASE("attack/xfer: a relay that changes a seal setting, or puts its own key share, ends the handshake") {
  using Change = std::function<void(wire::XferHello*, wire::XferChallenge*)>;
  struct Downgrade {
    const char* name;
    const char* holder;
    const char* reader;
    Change change;
  };
  wire::KeyShare own{9};  // the base point: its private key is 1
  const Downgrade attacks[] = {
      {"hello never", "auto", "on",
       [](auto* hello, auto*) {
         if (hello) hello->seal = wire::SealSetting::never;
       }},
      {"hello may", "auto", "on",
       [](auto* hello, auto*) {
         if (hello) hello->seal = wire::SealSetting::may;
       }},
      {"challenge never", "on", "auto",
       [](auto*, auto* c) {
         if (c) c->seal = wire::SealSetting::never;
       }},
      {"challenge may", "on", "auto",
       [](auto*, auto* c) {
         if (c) c->seal = wire::SealSetting::may;
       }},
      {"both never", "on", "on",
       [](auto* hello, auto* c) {
         if (hello) hello->seal = wire::SealSetting::never;
         if (c) c->seal = wire::SealSetting::never;
       }},
      {"no secret", "auto", "on",
       [](auto* hello, auto* c) {
         if (hello) hello->secured = false, hello->seal = wire::SealSetting::never;
         if (c) c->secured = false, c->seal = wire::SealSetting::never;
       }},
      {"both shares", "on", "on",
       [own](auto* hello, auto* c) {
         if (hello) hello->share = own;
         if (c) c->share = own;
       }},
      {"hello share", "on", "on",
       [own](auto* hello, auto*) {
         if (hello) hello->share = own;
       }},
      {"no share", "on", "on",
       [](auto*, auto* c) {
         if (c) c->share = {};
       }},
      {"lanes", "on", "on",
       [](auto* hello, auto*) {
         if (hello) hello->lane_count = 2;
       }},
      {"name", "on", "on",
       [](auto*, auto* c) {
         if (c) c->name = "another";
       }},
  };
  for (const Downgrade& attack : attacks) {
    CAPTURE(attack.name);
    Relayed pair(attack.holder, attack.reader);
    pair.relay.attack([&](const Relay::Piece& piece) -> std::optional<Bytes> {
      if (!piece.handshake) return piece.bytes;
      const auto header = header_of(piece.bytes);
      if (header.kind() == wire::FrameType::hello) {
        auto hello = wire::decode_hello(payload_of(piece.bytes));
        attack.change(&*hello, nullptr);
        return reframed(header, wire::encode(*hello));
      }
      if (header.kind() != wire::FrameType::challenge) return piece.bytes;
      auto challenge = wire::decode_challenge(payload_of(piece.bytes));
      attack.change(nullptr, &*challenge);
      return reframed(header, wire::encode(*challenge));
    });
    pair.dial();
    const Event event = pair.reader.wait(
        [](const Event& e) { return e.kind == Event::Kind::peer_up || e.kind == Event::Kind::peer_lost; });
    CHECK(event.kind == Event::Kind::peer_lost);
    CHECK(pair.holder->counters().peers_up == 0);
    CHECK(pair.reader->counters().peers_up == 0);
    CHECK(pair.failures("handshake: ") + pair.failures("seal: ") >= 1);
  }
}

namespace {

/// Sends the notify until it has arrived: a lane that made no progress is replaced, and its notify is lost.
bool is_told(Relayed& pair, const std::string& note) {
  for (const TimePoint limit = in(kLong); in(Duration{}) < limit;) {
    (void)pair.reader->notify(pair.peer, std::as_bytes(std::span(note)));
    pair.holder->poll(pair.holder.seen, in(200ms));
    for (const Event& event : pair.holder.seen)
      if (event.kind == Event::Kind::notify && event.bytes.size() == note.size()) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("attack/xfer: nothing of a sealed stream can be read on the path") {
  std::mutex mutex;
  Bytes seen;
  Relayed pair("on", "auto");
  std::fill(pair.kv.bytes().begin(), pair.kv.bytes().end(), std::byte{'K'});
  pair.relay.attack([&](const Relay::Piece& piece) {
    const std::lock_guard lock(mutex);
    seen.insert(seen.end(), piece.bytes.begin(), piece.bytes.end());
    return piece.bytes;
  });
  pair.connect();
  const Request request = pair.read(0, Relayed::kBytes);
  CHECK(pair.reader.run({&request, 1}) == Code::ok);
  const std::string note = "a notify that names a prompt";
  CHECK(is_told(pair, note));
  const std::lock_guard lock(mutex);
  CHECK(seen.size() > Relayed::kBytes);
  for (const std::string_view secret : {std::string_view("KKKKKKKK"), std::string_view("prompt"),
                                        std::string_view("landing"), std::string_view("tcp://")}) {
    const auto bytes = std::as_bytes(std::span(secret));
    CHECK(std::search(seen.begin(), seen.end(), bytes.begin(), bytes.end()) == seen.end());
  }
}

TEST_CASE("attack/xfer: sides that disagree about sealing refuse each other with both values") {
  struct Sides {
    const char* holder;
    const char* reader;
  };
  for (const Sides sides : {Sides{"on", "off"}, Sides{"off", "on"}}) {
    CAPTURE(sides.holder);
    Relayed pair(sides.holder, sides.reader);
    pair.dial();
    const Event lost = pair.reader.wait(Event::Kind::peer_lost);
    CHECK(lost.code == Code::invalid);
    CHECK(lost.text.find("tcp_seal off") != std::string::npos);
    CHECK(lost.text.find("tcp_seal on") != std::string::npos);
    CHECK(pair.failures("handshake: sealed on one side only") >= 1);
  }
}

TEST_CASE("attack/xfer: hostile records, one after the other, end their own connection and nothing else") {
  const auto rounds = ::mc::test::count<size_t>(60, 3000);
  Rng rng(mc::test::seed() + 77);
  Rng evil(mc::test::seed() + 78);  // of the relay's thread
  std::atomic<size_t> sent = 0;
  Relayed pair("on", "on");
  pair.connect();
  pair.relay.attack([&](const Relay::Piece& piece) -> std::optional<Bytes> {
    if (piece.handshake || !evil.chance(0.3)) return piece.bytes;
    Bytes bytes = piece.bytes;
    for (uint64_t i = 1 + evil.below(4); i > 0; --i) {
      const size_t skip = evil.chance(0.05) ? 0 : kRecordHead;  // likewise
      bytes[skip + evil.below(bytes.size() - skip)] ^= std::byte(1 + evil.below(255));
    }
    if (evil.chance(0.02)) bytes.resize(1 + evil.below(bytes.size()));  // seldom: the rest is waited for
    ++sent;
    return bytes;
  });
  while (sent < rounds) {
    const Request request = pair.read(rng.below(1000), 1 + rng.below(70'000));
    auto batch = pair.reader->submit({&request, 1}, in(100ms));
    REQUIRE_OK(batch);
    const Event event = pair.reader.done(*batch);
    if (event.code == Code::ok)
      CHECK(equal(request.local, pair.kv.bytes().subspan(request.offset, request.local.size())));
    REQUIRE_OK(pair.reader->close(*batch, in(kLong)));
    pair.reader.seen.clear();
    pair.holder.seen.clear();
    (void)pair.holder->poll(pair.holder.seen, in(0ms));
  }
  pair.relay.attack([](const Relay::Piece& piece) { return piece.bytes; });
  const Request last = pair.read(0, Relayed::kBytes);
  CHECK(pair.reader.run({&last, 1}) == Code::ok);
  CHECK(equal(pair.local.bytes(), pair.kv.bytes()));
  CHECK(pair.holder->counters().peers_up > 1);
}

namespace {

/// Takes every frame that comes and keeps their numbers.
struct Numbers final : FrameConsumer {
  std::vector<uint64_t> ids;
  Code begin(const wire::FrameHeader&, Sink& sink, const char*&) override {
    sink.kind = Sink::Kind::collect;
    return Code::ok;
  }
  Code end(const wire::FrameHeader& header, std::span<const std::byte>, uint32_t, const char*&) override {
    ids.push_back(header.id);
    return Code::ok;
  }
};

/// A sealed stream of eight frames as it is on the wire; each lies in a record of its own.
struct Recorded {
  std::vector<Bytes> records;
  Recorded(const SealSecret& secret, Rng& rng) {
    Seal seal(secret);
    for (uint64_t id = 0; id < 8; ++id) {
      wire::FrameHeader header;
      header.type = static_cast<uint8_t>(wire::FrameType::notify);
      header.id = id;
      Bytes payload(rng.below(2000));
      Bytes frame = reframed(header, payload);
      Bytes record(frame.size() + kRecordExtra);
      const iovec part{frame.data(), frame.size()};
      seal.seal({&part, 1}, record);
      records.push_back(std::move(record));
    }
  }
};

}  // namespace

TEST_CASE("attack/xfer: of a hostile mixture of records only what was sealed, in its order, reaches the frames") {
  const auto rounds = ::mc::test::count<size_t>(5000, 100'000);
  Rng rng(mc::test::seed() + 79);
  const SealSecret secret{3}, other{4};
  const Recorded ours(secret, rng), back(other, rng);
  size_t broken = 0;
  for (size_t round = 0; round < rounds; ++round) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    Fd there(ends[0]);
    FrameStream stream{Fd(ends[1])};
    stream.seal({.out = other, .in = secret});
    const size_t honest = rng.below(8);
    Bytes bytes;
    const auto add = [&](const Bytes& record) { bytes.insert(bytes.end(), record.begin(), record.end()); };
    for (size_t i = 0; i < honest; ++i) add(ours.records[i]);
    for (uint64_t i = 1 + rng.below(4); i > 0; --i) {
      Bytes record = rng.chance(0.5) ? ours.records[rng.below(8)] : back.records[rng.below(8)];
      if (rng.chance(0.5)) record[rng.below(record.size())] ^= std::byte(1 + rng.below(255));
      if (rng.chance(0.2)) record.resize(rng.below(record.size()));
      add(record);
    }
    REQUIRE(::send(there.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
    there.reset();
    Numbers numbers;
    while (stream.receive(numbers, size_t{1} << 20) != FrameStream::Io::broken) {
    }
    broken += stream.code() == Code::corrupt ? 1 : 0;
    REQUIRE(numbers.ids.size() >= honest);
    for (size_t i = 0; i < numbers.ids.size(); ++i) REQUIRE(numbers.ids[i] == i);  // a mixture may go on rightly
  }
  CHECK(broken > rounds / 2);
}
