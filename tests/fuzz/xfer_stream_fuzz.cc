// links: xfer
// A TcpStream that reads what a stranger sends: bytes as they are, or frames whose headers are sound and
// say whatever the input wants, cut into pieces anywhere. Payloads go where the consumer said and
// nowhere else, whole, in order; a stream that is broken says why. Sealed streams read the same frames
// inside records, records of which one byte was changed, and bytes that are no records at all.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "xfer/tally.h"
#include "xfer/tcp_stream.h"

namespace {

using namespace mc;
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
  bool open = false;  // begun and not ended

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

/// The bytes in records of `length` each.
std::vector<std::byte> sealed(std::span<const std::byte> bytes, size_t length) {
  std::vector<std::byte> out;
  Seal seal(kSecret, 7);
  while (!bytes.empty()) {
    const auto plain = bytes.first(std::min(length, bytes.size()));
    const size_t at = out.size();
    out.resize(at + plain.size() + kRecordExtra);
    const iovec part{const_cast<std::byte*>(plain.data()), plain.size()};
    seal.seal({&part, 1}, std::span(out).subspan(at));
    bytes = bytes.subspan(plain.size());
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::span<const std::byte> input = std::as_bytes(std::span(data + 2, size - 2));
  std::vector<std::byte> made;
  if (data[0] % 4 != 0) made = framed(input);
  std::span<const std::byte> bytes = data[0] % 4 != 0 ? std::span<const std::byte>(made) : input;
  const size_t piece = 1 + size_t{data[1]} * 16;
  enum class Way : uint8_t { clear, honest, changed, garbage };
  const auto way = static_cast<Way>(data[0] / 8 % 4);
  std::vector<std::byte> records;
  if (way == Way::honest || way == Way::changed) {
    records = sealed(bytes, 1 + size_t{data[1]} * 250);
    if (way == Way::changed && !records.empty()) records[data[1] * size_t{997} % records.size()] ^= std::byte{16};
    bytes = records;
  }
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  static Tally tally;
  static const TcpIoChoice ios[] = {choose_tcp_io(kTcpIoEpoll.name, tally), choose_tcp_io(kTcpIoUring.name, tally)};
  const TcpIoChoice& io = ios[data[0] / 4 % 2];
  Fd there(ends[0]);
  TcpStream stream{Fd(ends[1]), *io.io};
  if (way != Way::clear) stream.seal({.out = {2}, .in = kSecret}, 7);
  Consumer consumer;
  while (!bytes.empty()) {
    const ssize_t sent = ::send(there.get(), bytes.data(), std::min(piece, bytes.size()), MSG_NOSIGNAL);
    if (sent > 0) bytes = bytes.subspan(static_cast<size_t>(sent));
    if (data[1] % 7 == 0 && stream.receiving()) {
      stream.discard_rest();
      consumer.kind = Sink::Kind::discard;
      consumer.memory.fill(kUntouched);
    }
    if (stream.receive(consumer, size_t{1} << 20) == TcpStream::Io::broken) {
      require(stream.code() != Code::ok && !stream.error().empty() && stream.reason()[0] != 0);
      return 0;
    }
  }
  there.reset();
  while (stream.receive(consumer, size_t{1} << 20) != TcpStream::Io::broken) {
  }
  require(stream.code() != Code::ok && !stream.error().empty());
  require(way != Way::changed || records.empty() || stream.code() == Code::corrupt);
  require(way != Way::honest || !std::string_view(stream.reason()).starts_with("seal: "));
  return 0;
}
