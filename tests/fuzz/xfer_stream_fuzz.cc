// links: xfer_tcp
// A FrameStream that reads what a stranger sends: bytes as they are, or frames whose headers are sound and
// say whatever the input wants, cut into pieces anywhere. Payloads go where the consumer said and
// nowhere else, whole, in order; a stream that is broken says why. Sealed streams read the same frames
// inside records, bytes that are no records at all, and records as an attacker on the path changes, cuts, repeats,
// moves or drops them: then the consumer gets frames of the untouched stream up to there, and nothing else.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "fuzz_target.h"
#include "xfer/stream.h"
#include "xfer/tally.h"
#include "xfer_tcp/io.h"

namespace mc::xfer_stream_fuzz {
namespace {

using namespace mc::xfer;

void require(bool ok) {
  if (!ok) std::abort();
}

constexpr size_t kRoom = 4096;
constexpr size_t kCollected = size_t{64} << 10;  // the engine collects bounded frames only
constexpr std::byte kUntouched{0xA5};

struct Consumer final : FrameConsumer {
  std::array<std::byte, kRoom + 64> memory;
  Sink::Kind kind{};
  bool open = false;            // begun and not ended
  std::vector<uint32_t> ended;  // a sum of each frame

  Code begin(const wire::FrameHeader& header, Sink& sink, const char*& why) override {
    require(!open);
    memory.fill(kUntouched);
    const size_t bytes = header.payload_bytes();
    if (header.id % 16 == 15) {
      why = "refused";
      return Code::corrupt;
    }
    kind = header.id % 3 == 0 && bytes <= kRoom        ? Sink::Kind::direct
           : header.id % 3 == 1 && bytes <= kCollected ? Sink::Kind::collect
                                                       : Sink::Kind::discard;
    sink = {kind, memory.data(), header.id % 2 == 0};
    open = true;
    return Code::ok;
  }
  Code end(const wire::FrameHeader& header, std::span<const std::byte> collected, uint32_t crc, const char*&) override {
    require(std::exchange(open, false));
    const size_t bytes = header.payload_bytes();
    const size_t written = kind == Sink::Kind::direct ? bytes : 0;
    if (kind == Sink::Kind::collect) require(collected.size() == bytes);
    if (kind == Sink::Kind::direct && header.id % 2 == 0) require(crc == crc32c(std::span(memory).first(bytes)));
    require(std::all_of(memory.begin() + static_cast<long>(written), memory.end(),
                        [](std::byte each) { return each == kUntouched; }));
    const uint32_t sum = crc32c(wire::encode(header), crc32c(collected));
    ended.push_back(crc32c(std::span(memory).first(written), sum));
    return Code::ok;
  }
};

/// [type u8][flags u8][id u8][length u32][payload]...: each with a header whose checksum is right.
std::vector<std::byte> framed(std::span<const std::byte> input) {
  std::vector<std::byte> out;
  while (input.size() >= 7) {
    wire::FrameHeader header;
    header.type = static_cast<uint8_t>(input[0]);
    header.flags = static_cast<uint8_t>(input[1]);
    header.id = static_cast<uint8_t>(input[2]);
    uint32_t length;
    std::memcpy(&length, input.data() + 3, sizeof length);
    header.length = length & 0x80000000u ? length : length % 8192;
    input = input.subspan(7);
    const auto head = wire::encode(header);
    out.insert(out.end(), head.begin(), head.end());
    const size_t payload = std::min<size_t>(input.size(), header.payload_bytes());
    out.insert(out.end(), input.begin(), input.begin() + static_cast<long>(payload));
    input = input.subspan(payload);
  }
  return out;
}

constexpr SealSecret kSecret{1};

using Records = std::vector<std::vector<std::byte>>;

/// The bytes in records of `length` each.
Records sealed(std::span<const std::byte> bytes, size_t length) {
  Records out;
  Seal seal(kSecret, 7);
  while (!bytes.empty()) {
    const auto plain = bytes.first(std::min(length, bytes.size()));
    const iovec part{const_cast<std::byte*>(plain.data()), plain.size()};
    seal.seal({&part, 1}, out.emplace_back(plain.size() + kRecordExtra));
    bytes = bytes.subspan(plain.size());
  }
  return out;
}

enum class Way : uint8_t { clear, honest, changed, garbage, cut, repeated, moved, dropped };

void attack(Records& records, Way way, size_t at) {
  const auto record = records.begin() + static_cast<std::ptrdiff_t>(at % records.size());
  const auto next = record + 1 == records.end() ? records.begin() : record + 1;
  switch (way) {
    case Way::changed: (*record)[at % record->size()] ^= std::byte{16}; break;
    case Way::cut:
      record->resize(at % record->size());
      records.erase(record + 1, records.end());
      break;
    case Way::repeated: records.insert(record, *record); break;
    case Way::moved: std::swap(*record, *next); break;
    case Way::dropped: records.erase(record); break;
    default: break;
  }
}

struct Outcome {
  std::vector<uint32_t> ended;
  Code code{};
  std::string_view reason;
};

/// The outcome of a stream that reads the bytes in pieces until they end.
Outcome read(std::span<const std::byte> bytes, size_t piece, StreamIo& io, bool seals, bool discards) {
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  Fd there(ends[0]);
  FrameStream stream{Fd(ends[1]), io};
  if (seals) stream.seal({.out = {2}, .in = kSecret}, 7);
  Consumer consumer;
  for (;;) {
    if (bytes.empty()) there.reset();
    const ssize_t sent = there ? ::send(there.get(), bytes.data(), std::min(piece, bytes.size()), MSG_NOSIGNAL) : 0;
    if (sent > 0) bytes = bytes.subspan(static_cast<size_t>(sent));
    if (discards && stream.receiving()) {
      stream.discard_rest();
      consumer.kind = Sink::Kind::discard;
      consumer.memory.fill(kUntouched);
    }
    if (stream.receive(consumer, size_t{1} << 20) == FrameStream::Io::broken) break;
  }
  require(stream.code() != Code::ok && !stream.error().empty() && stream.reason()[0] != 0);
  return {std::move(consumer.ended), stream.code(), stream.reason()};
}

}  // namespace

FUZZ_TARGET(xfer_stream) {
  if (size < 2) return 0;
  static Tally tally;
  static const TcpIoChoice ios[] = {choose_tcp_io(kTcpIoEpoll.name, tally), choose_tcp_io(kTcpIoUring.name, tally)};
  StreamIo& io = *ios[data[0] / 4 % 2].io;
  const auto way = static_cast<Way>(data[0] / 8 % 8);
  const size_t piece = 1 + size_t{data[1]} * 16;
  const bool discards = data[1] % 7 == 0;
  const std::span<const std::byte> input = std::as_bytes(std::span(data + 2, size - 2));
  std::vector<std::byte> made;
  if (data[0] % 4 != 0) made = framed(input);
  const std::span<const std::byte> bytes = data[0] % 4 != 0 ? std::span<const std::byte>(made) : input;
  if (way == Way::clear || way == Way::garbage || bytes.empty()) {
    (void)read(bytes, piece, io, way != Way::clear, discards);
    return 0;
  }
  Records records = sealed(bytes, 1 + size_t{data[1]} * 250);
  const bool lonely = records.size() == 1;
  attack(records, way, data[1] * size_t{997} + size);
  std::vector<std::byte> wire;
  for (const auto& record : records) wire.insert(wire.end(), record.begin(), record.end());
  const Outcome got = read(wire, piece, io, true, discards);
  if (discards) return 0;  // when a frame is discarded depends on the pieces
  const Outcome wanted = read(bytes, piece, io, false, false);
  require(got.ended.size() <= wanted.ended.size());
  require(std::equal(got.ended.begin(), got.ended.end(), wanted.ended.begin()));
  // the untouched stream may break before the attack
  const bool whole = got.ended == wanted.ended && got.reason == wanted.reason;
  const bool cut = way == Way::cut || way == Way::dropped;  // perhaps between two records
  const bool none = way == Way::honest || (way == Way::moved && lonely);
  if (none) require(whole);
  require(whole || got.reason.starts_with("seal: ") || (cut && got.code == Code::peer_lost));
  return 0;
}

}  // namespace mc::xfer_stream_fuzz
