#include "wire/envelope.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/errors.h"
#include "wire/msgpack.h"

namespace mc::wire {
namespace {

constexpr uint64_t kDeadlineMsMax = uint64_t{1} << 40;  // 35 years, which converts to a Duration without overflow

Error bad(std::string what) {
  return user_error(err::kPeerGarbage, "envelope: " + std::move(what));
}

/// The values of one parsed map by key. It has fewer than twenty keys, so a linear search is fastest.
class Map {
 public:
  explicit Map(std::span<const MsgpackNode> nodes) : nodes_(nodes) {}

  const MsgpackNode* find(std::string_view key) const {
    for (uint32_t at = 1; at < nodes_[0].next; at = nodes_[nodes_[at].next].next)
      if (nodes_[at].type == MsgpackType::str && nodes_[at].text() == key) return &nodes_[nodes_[at].next];
    return nullptr;
  }

  Result<void> u64(std::string_view key, bool must, uint64_t& out) const {
    const MsgpackNode* node = find(key);
    if (node == nullptr) return missing(key, must);
    if (node->type != MsgpackType::u64) return wrong(key, *node, "an integer");
    out = node->u64;
    return {};
  }
  Result<void> text(std::string_view key, size_t min, std::string& out) const {
    const MsgpackNode* node = find(key);
    if (node == nullptr) return missing(key, true);
    if (node->type != MsgpackType::str) return wrong(key, *node, "a string");
    if (node->count < min || node->count > kEnvelopeTextMax)
      return bad(std::string(key) + " has " + std::to_string(node->count) + " bytes, " + std::to_string(min) + " to " +
                 std::to_string(kEnvelopeTextMax) + " are allowed");
    const auto printable = [](char c) { return c > ' ' && c < 0x7f; };
    if (!std::all_of(node->text().begin(), node->text().end(), printable))
      return bad(std::string(key) + " has bytes that are not printable ASCII");
    out = node->text();
    return {};
  }
  Result<void> id128(std::string_view key, bool must, Id128& out) const {
    const MsgpackNode* node = find(key);
    if (node == nullptr) return missing(key, must);
    if (node->type != MsgpackType::bin || node->count != out.bytes.size()) return wrong(key, *node, "16 bytes");
    std::memcpy(out.bytes.data(), node->data, out.bytes.size());
    return {};
  }

 private:
  static Result<void> missing(std::string_view key, bool must) {
    if (!must) return {};
    return bad(std::string(key) + " is missing");
  }
  static Error wrong(std::string_view key, const MsgpackNode& node, std::string_view wanted) {
    return bad(std::string(key) + " must be " + std::string(wanted) + ", is " + std::string(to_string(node.type)));
  }

  std::span<const MsgpackNode> nodes_;
};

}  // namespace

std::vector<uint8_t> encode(const Envelope& envelope, uint32_t version) {
  MC_ASSERT(!envelope.type.empty());
  MC_ASSERT_LE(envelope.type.size(), kEnvelopeTextMax);
  MC_ASSERT_LE(envelope.from.size(), kEnvelopeTextMax);
  MsgpackWriter out;
  out.map(6 + (envelope.re != 0) + !envelope.to.is_zero() + envelope.deadline.has_value());
  out.str("v");
  out.u64(version);
  out.str("type");
  out.str(envelope.type);
  out.str("id");
  out.u64(envelope.id);
  if (envelope.re != 0) {
    out.str("re");
    out.u64(envelope.re);
  }
  out.str("from");
  out.str(envelope.from);
  out.str("inst");
  out.bin(envelope.instance.bytes);
  if (!envelope.to.is_zero()) {
    out.str("to");
    out.bin(envelope.to.bytes);
  }
  out.str("epoch");
  out.u64(envelope.epoch);
  if (envelope.deadline) {
    const int64_t ns = std::max<int64_t>(envelope.deadline->count(), 0);
    out.str("deadline_ms");
    out.u64(std::min<uint64_t>(static_cast<uint64_t>(ns) / 1'000'000 + (ns % 1'000'000 != 0), kDeadlineMsMax));
  }
  return out.take();
}

std::vector<uint8_t> numbered(std::span<const uint8_t> encoded, uint64_t seq, const Id128& sum) {
  constexpr uint8_t kSmallMap = 0x80, kSmallMapMax = 0x8f;
  MC_ASSERT(!encoded.empty() && encoded[0] >= kSmallMap && encoded[0] + 2 <= kSmallMapMax);
  MsgpackWriter added;
  added.str("seq");
  added.u64(seq);
  added.str("sum");
  added.bin(sum.bytes);
  const std::vector<uint8_t> tail = added.take();
  std::vector<uint8_t> out;
  out.reserve(encoded.size() + tail.size());
  out.assign(encoded.begin(), encoded.end());
  out[0] += 2;
  out.insert(out.end(), tail.begin(), tail.end());
  return out;
}

Result<Envelope> decode_envelope(std::span<const uint8_t> bytes) {
  auto nodes = parse_msgpack(bytes, {.bytes = kEnvelopeBytesMax, .nodes = 64, .depth = 4});
  if (!nodes) return bad(nodes.error().what);
  if ((*nodes)[0].type != MsgpackType::map) return bad("is no map");
  const Map map(*nodes);
  uint64_t version = 0;
  MC_CHECK(map.u64("v", true, version));
  if (version != kEnvelopeVersion)
    return user_error(err::kProtocolVersion, "the peer uses protocol version " + std::to_string(version) +
                                                 ", this program uses " + std::to_string(kEnvelopeVersion));
  Envelope envelope;
  MC_CHECK(map.text("type", 1, envelope.type));
  MC_CHECK(map.u64("id", true, envelope.id));
  MC_CHECK(map.u64("re", false, envelope.re));
  MC_CHECK(map.text("from", 0, envelope.from));
  MC_CHECK(map.id128("inst", true, envelope.instance));
  MC_CHECK(map.id128("to", false, envelope.to));
  MC_CHECK(map.u64("epoch", true, envelope.epoch));
  MC_CHECK(map.u64("seq", false, envelope.seq));
  MC_CHECK(map.id128("sum", envelope.seq != 0, envelope.sum));
  if (envelope.instance.is_zero()) return bad("inst is zero");
  if (map.find("deadline_ms") != nullptr) {
    uint64_t ms = 0;
    MC_CHECK(map.u64("deadline_ms", true, ms));
    if (ms > kDeadlineMsMax)
      return bad("deadline_ms is " + std::to_string(ms) + ", at most " + std::to_string(kDeadlineMsMax) +
                 " are allowed");
    envelope.deadline = std::chrono::milliseconds(static_cast<int64_t>(ms));
  }
  return envelope;
}

}  // namespace mc::wire
