#include "wire/codec.h"

#include <cmath>

#include "unit/wire/fill.h"
#include "unit/wire/golden.h"

using namespace mc;
using namespace mc::wire;

namespace {

std::string decode_error(std::string_view type, const MsgpackWriter& body) {
  const auto message = decode(type, body.bytes());
  REQUIRE_FALSE(message);
  return message.error().what;
}

}  // namespace

TEST_CASE("wire/codec: the bytes of one instance of each message are those of the golden file") {
  std::string text;
  for (size_t i = 0; i < message_types().size(); ++i)
    text += std::string(message_types()[i]) + " " + test::hex(encode(test::filled_message(i, 7 + i, 2))) + "\n";
  test::check_golden("messages.txt", text);
}

TEST_CASE("wire/codec: every message survives a round trip with default and with filled fields") {
  for (size_t i = 0; i < message_types().size(); ++i) {
    CAPTURE(message_types()[i]);
    for (size_t elements : {0u, 1u, 3u}) {
      const Message message = test::filled_message(i, test::seed() + i, elements);
      CHECK(type_name(message) == message_types()[i]);
      const auto back = decode(type_name(message), encode(message));
      REQUIRE_OK(back);
      CHECK(*back == message);
    }
  }
}

TEST_CASE("wire/codec: an unknown field is skipped, wherever it stands and whatever it holds") {
  MsgpackWriter body;
  body.map(6);
  body.str("new"), body.map(1), body.str("x"), body.array(2), body.u64(1), body.nil();
  body.str("dead_after_ms"), body.u64(900);
  body.str("newer"), body.bin({});
  body.str("heartbeat_ms"), body.u64(100);
  body.str("name"), body.str("p0");
  body.str("has_tenants"), body.boolean(true);
  const auto message = decode("welcome", body.bytes());
  REQUIRE_OK(message);
  CHECK(std::get<Welcome>(*message) == Welcome{"p0", 100, 900, true});
}

TEST_CASE("wire/codec: errors name the message, the field and what was found") {
  MsgpackWriter missing;
  missing.map(1), missing.str("name"), missing.str("p0");
  CHECK(decode_error("welcome", missing) == "welcome: heartbeat_ms is missing");

  MsgpackWriter kind;
  kind.map(1), kind.str("on"), kind.u64(1);
  CHECK(decode_error("drain", kind) == "drain: on must be true or false, is integer");

  MsgpackWriter wide;
  wide.map(2), wide.str("req"), wide.str("r"), wide.str("attempt"), wide.u64(1ull << 32);
  CHECK(decode_error("kv_done", wide) == "kv_done: attempt is 4294967296, beyond 32 bits");

  MsgpackWriter nested;
  nested.map(2), nested.str("version"), nested.u64(1), nested.str("peers"), nested.array(2);
  nested.map(5), nested.str("name"), nested.str("p"), nested.str("instance"), nested.bin(Bytes(16));
  nested.str("role"), nested.str("cache"), nested.str("control_uri"), nested.str(""), nested.str("data"),
      nested.bin({});
  nested.map(2), nested.str("name"), nested.str("q"), nested.str("instance"), nested.bin(Bytes(15));
  CHECK(decode_error("peers", nested) == "peers: peers[1].instance must be 16 bytes, is bytes");

  MsgpackWriter list;
  list.array(0);
  CHECK(decode_error("drain", list) == "drain: must be a map, is array");
  CHECK(decode("dance", list.bytes()).error().code == Code::unsupported);
}

TEST_CASE("wire/codec: a node that does not announce its device, capacity, prompts, age or values may join") {
  Hello hello;
  hello.name = "p0", hello.version = "0.1.0", hello.device = "emu", hello.cache_bytes = 1;
  hello.inline_tokens = 2, hello.member_ms = 3, hello.keeps_values = false;
  Bytes bytes = encode(Message(hello));
  // Device, capacity, prompts, age and values are the last of 22 fields. The message of an older node has 17.
  REQUIRE(bytes.size() > 67);
  REQUIRE(Bytes(bytes.begin(), bytes.begin() + 3) == Bytes{0xde, 0, 22});
  // "device": "emu", "cache_bytes": 1, "inline_tokens": 2, "member_ms": 3, "keeps_values": false
  bytes.erase(bytes.end() - 64, bytes.end());
  bytes[2] = 17;
  const auto decoded = decode("hello", bytes);
  REQUIRE_OK(decoded);
  hello.device.clear(), hello.cache_bytes = 0, hello.inline_tokens = 0, hello.member_ms = 0;
  hello.keeps_values = true;
  CHECK(std::get<Hello>(*decoded) == hello);
}

TEST_CASE(
    "wire/codec: a message of a sender that does not know a later field is sound, and the field has its default") {
  MsgpackWriter grant;
  grant.map(4);
  grant.str("lease"), grant.u64(7), grant.str("blocks"), grant.array(0), grant.str("ttl_ms"), grant.u64(0);
  grant.str("reason"), grant.str("evicted");
  const auto decoded = decode("lease_grant", grant.bytes());
  REQUIRE_OK(decoded);
  CHECK(std::get<LeaseGrant>(*decoded) == LeaseGrant{7, {}, 0, Fallback::evicted, 0});

  MsgpackWriter first;
  first.map(6);
  first.str("req"), first.str("r"), first.str("attempt"), first.u64(1), first.str("token"), first.u64(2);
  first.str("logprobs"), first.map(2), first.str("chosen"), first.f64(0), first.str("top"), first.array(0);
  first.str("finish_reason"), first.str("");
  first.str("report"), first.map(10);
  for (const char* key : {"cached_local", "cached_remote", "chunks"}) first.str(key), first.u64(0);
  for (const char* key : {"queue_ms", "fetch_ms", "accept_ms", "compute_ms"}) first.str(key), first.f64(0);
  first.str("sources"), first.array(0), first.str("miss_reason"), first.str("cold");
  first.str("fallback"), first.str("of a later version");
  const auto token = decode("first_token", first.bytes());
  REQUIRE_OK(token);
  const PrefillReport& report = std::get<FirstToken>(*token).report;
  CHECK(report.misses == std::vector<Miss>{{MissKind::cold, 0, 0, "", 0}});
  CHECK(report.fallback == Fallback::none);
}

TEST_CASE("wire/codec: a report has no more nodes, reads and misses than a receiver keeps, and no long names") {
  FirstToken first;
  first.report.reads.assign(5000, {"c0", 64, 1});
  first.report.sources.assign(5000, {"c0", "64"});
  first.report.misses.assign(5000, {MissKind::evicted, 0, 1, "c0", 9});
  first.embedding = {1, 2, 3};  // the field behind the report
  const auto decoded = decode("first_token", encode(Message(first)));
  REQUIRE_OK(decoded);
  first.report.reads.resize(kEndedReadsMax), first.report.sources.resize(kReportNodesMax);
  first.report.misses.resize(kReportMissesMax);
  CHECK(std::get<FirstToken>(*decoded) == first);

  KvReport kv;
  kv.holders.assign(5000, {"c0", "64"}), kv.reads.assign(5000, {"c0", 64, 1});
  const auto report = decode("kv_report", encode(Message(kv)));
  REQUIRE_OK(report);
  kv.holders.resize(kReportNodesMax), kv.reads.resize(kEndedReadsMax);
  CHECK(std::get<KvReport>(*report) == kv);

  kv.req = std::string(300, 'r');  // only texts in these lists are short
  kv.reads[1].node = std::string(257, 'n');
  const auto refused = decode("kv_report", encode(Message(kv)));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().what == "kv_report: reads[1].node has 257 bytes, at most 256 are allowed");
}

TEST_CASE("wire/codec: an offer of a prefill node that knows no sources names none") {
  Bytes bytes = encode(Message(KvOffer{}));
  REQUIRE(bytes.size() > 9);
  bytes.resize(bytes.size() - 9);  // "sources": []
  REQUIRE(bytes[0] == 0x82);
  bytes[0] = 0x81;
  const auto offer = decode("kv_offer", bytes);
  REQUIRE_OK(offer);
  CHECK(std::get<KvOffer>(*offer) == KvOffer{});
}

TEST_CASE("wire/codec: block events of a node without tiers mean memory, and an unknown tier means the slowest") {
  const auto event_with = [](const char* tier) {
    const std::vector<uint8_t> id(16, 3);
    MsgpackWriter events;
    events.map(2), events.str("first_seq"), events.u64(9), events.str("events"), events.array(1);
    events.map(2), events.str("stored"), events.boolean(true), events.str("block");
    events.map(tier ? 3 : 2), events.str("hash"), events.bin(id), events.str("parent"), events.bin(id);
    if (tier) events.str("tier"), events.str(tier);
    const auto decoded = decode("block_events", events.bytes());
    REQUIRE_OK(decoded);
    return std::get<BlockEvents>(*decoded).events.at(0).block.tier;
  };
  CHECK(event_with(nullptr) == Tier::host);
  CHECK(event_with("disk") == Tier::disk);
  CHECK(event_with("device") == Tier::device);
  CHECK(event_with("tape") == Tier::disk);
}

TEST_CASE("wire/codec: the end of a demotion or a copy keeps its word, and an unknown word is another reason") {
  const auto body = [](const char* number, const char* second, std::string_view reason) {
    MsgpackWriter out;
    out.map(3), out.str(number), out.u64(7), out.str(second);
    if (second == std::string_view("stored"))
      out.array(0);
    else
      out.u64(0);
    out.str("reason"), out.str(reason);
    return out;
  };
  const auto demoted = [&](std::string_view reason) {
    const auto decoded = decode("demote_done", body("lease", "stored", reason).bytes());
    REQUIRE_OK(decoded);
    return std::get<DemoteDone>(*decoded);
  };
  const auto copied = [&](std::string_view reason) {
    const auto decoded = decode("copy_done", body("copy", "blocks", reason).bytes());
    REQUIRE_OK(decoded);
    return std::get<CopyDone>(*decoded);
  };
  for (const char* word : {"", "full", "failed", "corrupt", "draining", "layout", "unknown_peer"}) {
    CAPTURE(word);
    CHECK(demoted(word).reason != DemoteEnd::other);
    CHECK(test::hex(encode(demoted(word))) == test::hex(body("lease", "stored", word).bytes()));
  }
  for (const char* word : {"", "busy", "no_space", "bad_grant", "not_found", "timeout", "io"}) {
    CAPTURE(word);
    CHECK(copied(word).reason != CopyEnd::other);
    CHECK(test::hex(encode(copied(word))) == test::hex(body("copy", "blocks", word).bytes()));
  }
  CHECK(demoted("moved").reason == DemoteEnd::other);
  CHECK(copied("moved").reason == CopyEnd::other);
}

TEST_CASE("wire/codec: every truncation of every message is refused") {
  for (size_t i = 0; i < message_types().size(); ++i) {
    const Bytes whole = encode(test::filled_message(i, test::seed() + i, 2));
    for (size_t length = 0; length < whole.size(); ++length)
      REQUIRE_FALSE(decode(message_types()[i], std::span(whole).first(length)));
  }
}

TEST_CASE("wire/codec: stray bytes behind a message are refused") {
  Bytes body = encode(Drain{});
  body.push_back(0xc0);
  CHECK(decode("drain", body).error().what == "drain: msgpack: 1 stray bytes behind the value");
}

TEST_CASE("wire/codec: numbers keep their sign and fraction, and integers serve as doubles") {
  KvRefuse refuse{.req = "r", .predicted_ms = -0.0, .allowed_ms = 2.0};
  const auto back = decode("kv_refuse", encode(refuse));
  REQUIRE_OK(back);
  CHECK(std::signbit(std::get<KvRefuse>(*back).predicted_ms));
  MsgpackWriter body;
  body.map(5), body.str("req"), body.str("r"), body.str("attempt"), body.u64(1), body.str("reason"), body.str("");
  body.str("predicted_ms"), body.u64(7), body.str("allowed_ms"), body.i64(-7);
  const auto whole = decode("kv_refuse", body.bytes());
  REQUIRE_OK(whole);
  CHECK(std::get<KvRefuse>(*whole).predicted_ms == 7.0);
  CHECK(std::get<KvRefuse>(*whole).allowed_ms == -7.0);
}

TEST_CASE("wire/codec: a description shows every field with its value") {
  CHECK(describe(Welcome{"p0", 100, 900}).dump() ==
        R"({"type":"welcome","name":"p0","heartbeat_ms":100,"dead_after_ms":900,"has_tenants":false})");
  CHECK(describe(LeaseRelease{UINT64_MAX}).dump() == R"({"type":"lease_release","lease":"18446744073709551615"})");
}

TEST_CASE("wire/msgpack: containers that announce more than they bring cost nothing") {
  // array32 of 2^32-1 elements, and arrays of arrays that each claim the rest of the message
  const Bytes huge = {0xdd, 0xff, 0xff, 0xff, 0xff};
  CHECK(parse_msgpack(huge).error().what == "msgpack: announces more values than it has bytes");
  Bytes nest;
  for (int i = 0; i < 10; ++i) nest.insert(nest.end(), {0xdc, 0x00, 0x20});
  CHECK(parse_msgpack(nest).error().what == "msgpack: announces more values than it has bytes");
  const Bytes map = {0xdf, 0x80, 0x00, 0x00, 0x00, 0xa1};
  CHECK_FALSE(parse_msgpack(map));
}

TEST_CASE("wire/msgpack: depth, nodes and size are bounded") {
  const Bytes deep(20, 0x91);
  CHECK(parse_msgpack(deep).error().what == "msgpack: is nested too deeply");
  Bytes wide = {0xdc, 0x00, 0x64};
  wide.resize(103, 0x01);
  CHECK(parse_msgpack(wide)->size() == 101);
  CHECK(parse_msgpack(wide, {.nodes = 100}).error().what == "msgpack: has too many values");
  CHECK(parse_msgpack(wide, {.bytes = 102}).error().what == "msgpack: 103 bytes, at most 102 are allowed");
}

TEST_CASE("wire/msgpack: what is not one whole value is refused with its place") {
  CHECK(parse_msgpack({}).error().code == Code::corrupt);
  const Bytes reserved = {0xc1};
  CHECK(parse_msgpack(reserved).error().what == "msgpack: is malformed at byte 0");
  const Bytes extension = {0xd4, 0x01, 0x00};
  CHECK(parse_msgpack(extension).error().what == "msgpack: extension types are not used here");
  const Bytes cut = {0xa5, 'a', 'b'};
  CHECK(parse_msgpack(cut).error().what.find("ends too early") != std::string::npos);
}

TEST_CASE("wire/msgpack: nodes skip over whole values") {
  MsgpackWriter out;
  out.map(2), out.str("a"), out.array(2), out.u64(1), out.i64(-2), out.str("b"), out.boolean(true);
  const auto nodes = parse_msgpack(out.bytes());
  REQUIRE_OK(nodes);
  REQUIRE(nodes->size() == 7);
  CHECK((*nodes)[0].next == 7);
  CHECK((*nodes)[2].next == 5);
  CHECK((*nodes)[4].i64 == -2);
  CHECK((*nodes)[6].boolean);
}
