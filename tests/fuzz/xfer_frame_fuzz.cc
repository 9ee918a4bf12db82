// links: xfer
// rounds: 5000
// Frames and handshakes as a stranger sends them. The input is a stream of frames for a listener that
// has a secret and one that has none (lengths and checksums put right, so that the fuzzer gets behind
// them), what an attacker on the path puts behind the first frames of two honest sides, and raw bytes for every
// decoder. What decodes must encode to the same bytes.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/hash.h"
#include "fuzz_target.h"
#include "wire/rdma_frame.h"
#include "wire/xfer_frame.h"
#include "xfer/access.h"
#include "xfer/handshake.h"
#include "xfer/tally.h"

namespace mc::xfer_frame_fuzz {
namespace {

void require(bool ok) {
  if (!ok) std::abort();
}

void decoders(std::span<const std::byte> bytes) {
  if (bytes.size() >= wire::kFrameHeaderBytes) {
    wire::FrameHeader header;
    const char* why = nullptr;
    const std::span<const std::byte, wire::kFrameHeaderBytes> head(bytes.data(), wire::kFrameHeaderBytes);
    if (wire::decode(head, header, why) == Code::ok) {
      const auto again = wire::encode(header);
      require(std::equal(again.begin(), again.end(), head.begin()));
    }
  }
  const auto round_trip = [&](const auto& decoded) {
    if (!decoded) return;
    const auto again = wire::encode(*decoded);
    require(again.size() == bytes.size() && std::equal(again.begin(), again.end(), bytes.begin()));
  };
  round_trip(wire::decode_hello(bytes));
  round_trip(wire::decode_challenge(bytes));
  round_trip(wire::decode_rdma_nics(bytes));
  round_trip(wire::decode_rdma_keys(bytes));
  round_trip(wire::decode_rdma_path_offer(bytes));
  round_trip(wire::decode_rdma_path_ready(bytes));
  round_trip(wire::decode_rdma_path_down(bytes));
  if (const auto notify = wire::decode_rdma_notify(bytes)) {
    std::vector<std::byte> again(bytes.size());
    require(wire::encode(*notify, again) == bytes.size() && std::equal(again.begin(), again.end(), bytes.begin()));
  }
  const auto descriptor = wire::decode_descriptor(bytes);
  round_trip(descriptor);
  if (descriptor) (void)wire::dump(*descriptor);
}

void with_checksum(std::span<const std::byte> bytes) {
  std::vector<std::byte> fixed(bytes.begin(), bytes.end());
  if (fixed.size() >= 4) {
    const uint32_t crc = crc32c(std::span(fixed).first(fixed.size() - 4));
    std::memcpy(fixed.data() + fixed.size() - 4, &crc, 4);
    decoders(fixed);
  }
  if (bytes.size() >= wire::kRdmaNotifyHeaderBytes) {
    wire::RdmaNotify notify{.bytes = bytes.subspan(wire::kRdmaNotifyHeaderBytes)};
    notify.bytes = notify.bytes.first(std::min(notify.bytes.size(), wire::kNotifyBytesMax));
    std::memcpy(&notify.sequence, bytes.data(), 8);
    std::memcpy(&notify.heard, bytes.data() + 8, 8);
    std::vector<std::byte> sound(wire::kRdmaNotifyHeaderBytes + notify.bytes.size());
    require(wire::encode(notify, sound) == sound.size() && wire::decode_rdma_notify(sound).has_value());
    decoders(sound);
  }
  if (bytes.size() >= wire::kFrameHeaderBytes) {
    wire::FrameHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    const auto head = wire::encode(header);
    decoders(head);
  }
}

struct Side {
  xfer::Options options;
  xfer::Access access;
  xfer::Tally tally;
  xfer::Services services;
  explicit Side(const std::string& secret, uint8_t instance = 7) {
    options.secret = secret;
    services.options = &options;
    services.access = &access;
    services.tally = &tally;
    services.instance.bytes.fill(instance);
  }
};

/// [type u8][length u16][payload] ... : each becomes a well-formed frame.
void converse(xfer::Handshake handshake, std::span<const std::byte> bytes) {
  for (int frames = 0; bytes.size() >= 3 && frames < 16; ++frames) {
    wire::FrameHeader header;
    header.type =
        static_cast<uint8_t>(static_cast<uint8_t>(bytes[0]) % (static_cast<uint8_t>(wire::kFrameTypeLast) + 2));
    uint16_t length;
    std::memcpy(&length, bytes.data() + 1, 2);
    bytes = bytes.subspan(3);
    const size_t size = std::min<size_t>(length, bytes.size());
    header.length = size;
    const auto step = handshake.take(header, bytes.first(size));
    bytes = bytes.subspan(size);
    require(!handshake.complete() || !handshake.peer_instance().is_zero());
    if (step.failed) {
      require(step.reason != nullptr && !step.failed->what.empty());
      return;
    }
  }
}

/// A handshake of two honest sides of which an attacker on the path replaces what follows `frames` frames. Where the
/// stream is sealed, both sides have the same keys by then.
void converse_behind(Side& here, Side& there, wire::SealSetting setting, int frames, std::span<const std::byte> bytes) {
  auto dialler = xfer::Handshake::dial(here.services, {}, {}, 0, 1, setting);
  auto listener = xfer::Handshake::listen(there.services, setting);
  std::optional<xfer::SealSecrets> listeners;
  xfer::OutFrame frame = dialler.opening();
  for (int i = 0; i < frames; ++i) {
    auto& to = i % 2 == 0 ? listener : dialler;
    auto step = to.take(frame.header, frame.payload);
    require(!step.failed);
    if (step.seal && i == 0) listeners = step.seal;
    if (step.seal && i == 1) require(listeners->out == step.seal->in && listeners->in == step.seal->out);
    if (step.send) frame = std::move(*step.send);
  }
  require((setting == wire::SealSetting::must) == listeners.has_value());
  require(dialler.complete() == (frames == 4) && listener.complete() == (frames >= 3));
  converse(std::move(dialler), bytes);
  converse(std::move(listener), bytes);
}

}  // namespace

FUZZ_TARGET(xfer_frame) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  decoders(bytes);
  with_checksum(bytes);
  static Side open_side{std::string()};
  static Side secured_side{std::string(32, 's')};
  for (Side* side : {&open_side, &secured_side}) {
    const auto setting =
        side->options.secret.empty() || size % 2 == 0 ? wire::SealSetting::never : wire::SealSetting::must;
    converse(xfer::Handshake::listen(side->services, setting), bytes);
    converse(xfer::Handshake::dial(side->services, {}, {}, 0, 2, setting), bytes);
    // behind the hello: a listener that already knows somebody
    xfer::Handshake known = xfer::Handshake::listen(side->services);
    wire::XferHello hello{.lane_count = 1, .secured = !side->options.secret.empty(), .name = "x"};
    hello.instance.bytes.fill(9);
    const auto frame = xfer::control_frame(wire::FrameType::hello, wire::encode(hello));
    require(!known.take(frame.header, frame.payload).failed);
    converse(std::move(known), bytes);
  }
  static Side open_peer{std::string(), 8};
  static Side secured_peer{std::string(32, 's'), 8};
  const int frames = 1 + static_cast<int>(size % 4);
  converse_behind(open_peer, open_side, wire::SealSetting::never, frames, bytes);
  converse_behind(secured_peer, secured_side, wire::SealSetting::must, frames, bytes);
  return 0;
}

}  // namespace mc::xfer_frame_fuzz
