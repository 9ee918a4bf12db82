#include "wire/rdma_frame.h"

#include <bit>
#include <cstring>

#include "base/assert.h"
#include "base/hash.h"
#include "wire/frame_codec.h"
#include "wire/xfer_frame.h"

namespace mc::wire {
namespace {

bool valid_mtu(uint16_t mtu) {
  return mtu >= 256 && mtu <= 4096 && std::has_single_bit(mtu);
}

constexpr uint32_t kWord24 = (1u << 24) - 1;  // queue pair and packet sequence numbers

}  // namespace

std::vector<std::byte> encode(const RdmaNics& nics) {
  Writer out;
  out.number(kRdmaVersion);
  out.number(static_cast<uint16_t>(nics.nics.size()));
  for (const RdmaNic& nic : nics.nics) {
    out.text(nic.name, kXferNameBytesMax);
    out.number(nic.port);
    out.number(static_cast<uint8_t>(nic.active));
    out.number(nic.lid);
    out.number(nic.mtu);
    out.number(nic.rd_atomic);
    out.number(static_cast<uint16_t>(nic.gids.size()));
    for (const RdmaGid& gid : nic.gids) {
      out.raw(gid.gid);
      out.number(gid.prefix);
    }
  }
  return std::move(out.bytes());
}

Result<RdmaNics> decode_rdma_nics(std::span<const std::byte> bytes) {
  Reader in(bytes);
  if (const auto version = in.number<uint16_t>(); !in.failed() && version != kRdmaVersion)
    return Error{Code::unsupported, "xfer: the peer uses rdma set-up version " + std::to_string(version) +
                                        ", this process uses " + std::to_string(kRdmaVersion) +
                                        ": run one release on all hosts"};
  const size_t nic_count = in.number<uint16_t>();
  if (in.failed() || nic_count == 0 || nic_count > kRdmaNicsMax) return malformed("nics", bytes.size());
  RdmaNics nics;
  for (size_t i = 0; i < nic_count && !in.failed(); ++i) {
    RdmaNic nic;
    nic.name = in.text(kXferNameBytesMax);
    nic.port = in.number<uint8_t>();
    nic.active = in.flag();
    nic.lid = in.number<uint16_t>();
    nic.mtu = in.number<uint16_t>();
    nic.rd_atomic = in.number<uint8_t>();
    const size_t gid_count = in.number<uint16_t>();
    if (in.failed() || gid_count > kRdmaGidsMax || !valid_mtu(nic.mtu) || nic.port == 0)
      return malformed("nics", bytes.size());
    for (size_t k = 0; k < gid_count; ++k) {
      RdmaGid gid;
      in.raw(gid.gid);
      gid.prefix = in.number<uint8_t>();
      if (gid.prefix > 128) return malformed("nics", bytes.size());
      nic.gids.push_back(gid);
    }
    nics.nics.push_back(std::move(nic));
  }
  if (!in.done()) return malformed("nics", bytes.size());
  return nics;
}

std::vector<std::byte> encode(const RdmaKeys& keys) {
  Writer out;
  out.number(keys.buffer);
  out.number(keys.snapshot);
  out.number(keys.base);
  out.number(keys.length);
  out.number(keys.chunk_bytes);
  out.number(keys.nics);
  out.number(static_cast<uint32_t>(keys.chunks()));
  for (const uint32_t rkey : keys.rkeys) out.number(rkey);
  return std::move(out.bytes());
}

Result<RdmaKeys> decode_rdma_keys(std::span<const std::byte> bytes) {
  Reader in(bytes);
  RdmaKeys keys;
  keys.buffer = in.number<uint32_t>();
  keys.snapshot = in.number<uint32_t>();
  keys.base = in.number<uint64_t>();
  keys.length = in.number<uint64_t>();
  keys.chunk_bytes = in.number<uint64_t>();
  keys.nics = in.number<uint16_t>();
  const uint64_t chunks = in.number<uint32_t>();
  // No sum below overflows, because length and chunk are bounded first.
  constexpr uint64_t kBytesMax = uint64_t{1} << 60;
  const bool sane = !in.failed() && keys.buffer != 0 && keys.length > 0 && keys.length <= kBytesMax &&
                    keys.base <= UINT64_MAX - keys.length && keys.chunk_bytes > 0 && keys.chunk_bytes <= kBytesMax &&
                    keys.nics > 0 && keys.nics <= kRdmaNicsMax && chunks <= kRdmaChunksMax && chunks == keys.chunks();
  if (!sane) return malformed("keys", bytes.size());
  keys.rkeys.resize(keys.nics * chunks);
  for (uint32_t& rkey : keys.rkeys) rkey = in.number<uint32_t>();
  if (!in.done()) return malformed("keys", bytes.size());
  return keys;
}

std::vector<std::byte> encode(const RdmaPathOffer& offer) {
  Writer out;
  out.number(offer.path);
  out.number(offer.path_count);
  out.number(offer.epoch);
  out.number(offer.nic_from);
  out.number(offer.nic_to);
  out.raw(offer.gid_from);
  out.raw(offer.gid_to);
  out.number(offer.lid);
  out.number(offer.mtu);
  out.number(offer.rd_atomic);
  out.number(offer.scratch);
  out.number(offer.scratch_rkey);
  out.number(static_cast<uint16_t>(offer.lanes.size()));
  for (const RdmaLaneAddress& lane : offer.lanes) {
    out.number(lane.qpn);
    out.number(lane.psn);
  }
  return std::move(out.bytes());
}

Result<RdmaPathOffer> decode_rdma_path_offer(std::span<const std::byte> bytes) {
  Reader in(bytes);
  RdmaPathOffer offer;
  offer.path = in.number<uint32_t>();
  offer.path_count = in.number<uint32_t>();
  offer.epoch = in.number<uint32_t>();
  offer.nic_from = in.number<uint16_t>();
  offer.nic_to = in.number<uint16_t>();
  in.raw(offer.gid_from);
  in.raw(offer.gid_to);
  offer.lid = in.number<uint16_t>();
  offer.mtu = in.number<uint16_t>();
  offer.rd_atomic = in.number<uint8_t>();
  offer.scratch = in.number<uint64_t>();
  offer.scratch_rkey = in.number<uint32_t>();
  const size_t lane_count = in.number<uint16_t>();
  const bool sane = !in.failed() && offer.path_count > 0 && offer.path_count <= kRdmaPathsMax &&
                    offer.path < offer.path_count && offer.epoch > 0 && offer.nic_from < kRdmaNicsMax &&
                    offer.nic_to < kRdmaNicsMax && valid_mtu(offer.mtu) && lane_count > 0 &&
                    lane_count <= kRdmaLanesMax;
  if (!sane) return malformed("path offer", bytes.size());
  for (size_t i = 0; i < lane_count; ++i) {
    RdmaLaneAddress lane;
    lane.qpn = in.number<uint32_t>();
    lane.psn = in.number<uint32_t>();
    if (lane.qpn > kWord24 || lane.psn > kWord24) return malformed("path offer", bytes.size());
    offer.lanes.push_back(lane);
  }
  if (!in.done()) return malformed("path offer", bytes.size());
  return offer;
}

std::vector<std::byte> encode(const RdmaPathReady& ready) {
  Writer out;
  out.number(ready.path);
  out.number(ready.epoch);
  return std::move(out.bytes());
}

Result<RdmaPathReady> decode_rdma_path_ready(std::span<const std::byte> bytes) {
  Reader in(bytes);
  RdmaPathReady ready;
  ready.path = in.number<uint32_t>();
  ready.epoch = in.number<uint32_t>();
  if (!in.done() || ready.path >= kRdmaPathsMax) return malformed("path ready", bytes.size());
  return ready;
}

std::vector<std::byte> encode(const RdmaPathDown& down) {
  Writer out;
  out.number(down.path);
  out.number(down.epoch);
  out.number(down.cause);
  out.text(down.text, kReasonBytesMax);
  return std::move(out.bytes());
}

Result<RdmaPathDown> decode_rdma_path_down(std::span<const std::byte> bytes) {
  Reader in(bytes);
  RdmaPathDown down;
  down.path = in.number<uint32_t>();
  down.epoch = in.number<uint32_t>();
  down.cause = in.number<uint8_t>();
  down.text = in.text(kReasonBytesMax);
  if (!in.done() || down.path >= kRdmaPathsMax) return malformed("path down", bytes.size());
  return down;
}

namespace {

struct NotifyHead {
  uint64_t sequence = 0;
  uint64_t heard = 0;
  uint32_t length = 0;
  uint32_t crc = 0;
};
static_assert(sizeof(NotifyHead) == kRdmaNotifyHeaderBytes && std::endian::native == std::endian::little);

uint32_t notify_crc(NotifyHead head, std::span<const std::byte> bytes) {
  head.crc = 0;
  return crc32c(bytes, crc32c(std::as_bytes(std::span(&head, 1))));
}

}  // namespace

size_t encode(const RdmaNotify& notify, std::span<std::byte> out) {
  const size_t bytes = kRdmaNotifyHeaderBytes + notify.bytes.size();
  MC_ASSERT_LE(notify.bytes.size(), kNotifyBytesMax);
  MC_ASSERT_LE(bytes, out.size());
  NotifyHead head{
      .sequence = notify.sequence, .heard = notify.heard, .length = static_cast<uint32_t>(notify.bytes.size())};
  head.crc = notify_crc(head, notify.bytes);
  std::memcpy(out.data(), &head, sizeof head);
  if (!notify.bytes.empty()) std::memcpy(out.data() + sizeof head, notify.bytes.data(), notify.bytes.size());
  return bytes;
}

Result<RdmaNotify> decode_rdma_notify(std::span<const std::byte> bytes) {
  NotifyHead head;
  if (bytes.size() < sizeof head) return malformed("notify", bytes.size());
  std::memcpy(&head, bytes.data(), sizeof head);
  const auto payload = bytes.subspan(sizeof head);
  if (payload.size() > kNotifyBytesMax || head.length != payload.size() || head.crc != notify_crc(head, payload))
    return malformed("notify", bytes.size());
  return RdmaNotify{head.sequence, head.heard, payload};
}

}  // namespace mc::wire
