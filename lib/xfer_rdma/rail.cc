#include "xfer_rdma/rail.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/fd.h"
#include "base/hash.h"
#include "base/rng.h"
#include "xfer_rdma/reaper.h"

namespace mc::xfer {
namespace {

constexpr size_t kPatternBytes = 64;
// A batch may end this much later than it could when the slowest path got the last slices; completions
// are seen far sooner than they take to run dry. Well below the packet timeout (67 ms at rdma_timeout 14):
// what waits longer than that behind our own requests is sent again.
constexpr Duration kAheadTime = 45ms;
constexpr Duration kSliceTime = 10ms;
constexpr Duration kBurstTime = 1ms;
// While the speed is not known: 52 ms at 10 MB/s, and 25 GB/s over a round trip of 20 us.
constexpr uint64_t kFirstAhead = uint64_t{768} << 10;
constexpr uint64_t kFirstSlice = uint64_t{256} << 10;
constexpr uint64_t kLeastBurst = uint64_t{64} << 10;
constexpr uint64_t kLeastAhead = uint64_t{192} << 10;
// parts of a lane's slot
constexpr size_t kWrittenByPeer = 0;
constexpr size_t kReadByPeer = 1;
constexpr size_t kOwnWrite = 2;
constexpr size_t kOwnRead = 3;
constexpr size_t kSlotBytes = 4 * kPatternBytes;
constexpr size_t kMailBytes = (wire::kRdmaNotifyHeaderBytes + kNotifyBytesMax + 63) / 64 * 64;

}  // namespace

std::array<std::byte, 64> path_pattern(uint32_t path, uint32_t epoch, uint32_t lane, bool dialler, bool read) {
  std::array<std::byte, kPatternBytes> out;
  const uint64_t key = uint64_t{path} << 32 | epoch;
  const uint64_t stream = uint64_t{lane} << 2 | (dialler ? 2u : 0u) | (read ? 1u : 0u);
  for (size_t i = 0; i < kPatternBytes / 16; ++i) {
    const auto words = philox4x32(key, i, stream);
    std::memcpy(out.data() + i * 16, words.data(), 16);
  }
  const uint32_t crc = crc32c(std::span(out).first(kPatternBytes - 4));
  std::memcpy(out.data() + kPatternBytes - 4, &crc, 4);
  return out;
}

OwnPages own_pages(size_t bytes) {
  constexpr size_t kPage = 4096;
  const size_t whole = (bytes + kPage - 1) / kPage * kPage;
  auto* pages = static_cast<std::byte*>(std::aligned_alloc(kPage, whole));
  MC_ASSERT(pages != nullptr);
  std::memset(pages, 0, whole);
  return OwnPages(pages);
}

std::byte* RdmaRail::slot(size_t lane, size_t part) const {
  return scratch_.get() + lane * kSlotBytes + part * kPatternBytes;
}

Result<wire::RdmaPathOffer> RdmaRail::open(const RdmaPort& port, size_t lanes, bool dialler) {
  MC_ASSERT(lanes_.empty() && !queue_);
  dialler_ = dialler;
  device_ = port.device;
  const RdmaDevice& device = *device_;
  const size_t bytes = lanes * kSlotBytes;
  scratch_ = own_pages(bytes);
  scratch_region_.reset(::ibv_reg_mr(device.domain(), scratch_.get(), bytes,
                                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE));
  if (!scratch_region_) return errno_error("rdma: register a scratch page on " + device.name());
  const size_t completions = RdmaLane::kDepth * lanes + RdmaLane::kMessages + RdmaLane::kReceives;
  const int depth = std::min(static_cast<int>(completions), device.limits().max_cqe);
  anchor_ = std::make_unique<RailAnchor>(RailAnchor{this});
  queue_.reset(::ibv_create_cq(device.context(), depth, anchor_.get(), device.channel(), 0));
  if (!queue_) return errno_error("rdma: create a completion queue on " + device.name());
  wire::RdmaPathOffer offer{.path = id_, .epoch = machine.epoch(), .lid = port.lid, .mtu = port.mtu};
  for (size_t i = 0; i < lanes; ++i) {
    MC_TRY(lane, RdmaLane::open(device, queue_.get(), port.number, static_cast<uint8_t>(i)));
    offer.lanes.push_back(lane->address());
    lanes_.push_back(std::move(lane));
    const auto own = static_cast<uint32_t>(i);
    const auto leave = path_pattern(id_, machine.epoch(), own, dialler, true);
    const auto write = path_pattern(id_, machine.epoch(), own, dialler, false);
    std::memcpy(slot(i, kReadByPeer), leave.data(), leave.size());
    std::memcpy(slot(i, kOwnWrite), write.data(), write.size());
  }
  MC_CHECK(open_mail(device));
  offer.rd_atomic = static_cast<uint8_t>(std::clamp(device.limits().max_qp_rd_atom, 1, 16));
  offer.scratch = reinterpret_cast<uint64_t>(scratch_.get());
  offer.scratch_rkey = scratch_region_->rkey;
  return offer;
}

std::byte* RdmaRail::mail_slot(size_t index) const {
  return mail_.get() + index * kMailBytes;
}

Result<void> RdmaRail::open_mail(const RdmaDevice& device) {
  const size_t bytes = (RdmaLane::kMessages + RdmaLane::kReceives) * kMailBytes;
  mail_ = own_pages(bytes);
  mail_region_.reset(::ibv_reg_mr(device.domain(), mail_.get(), bytes, IBV_ACCESS_LOCAL_WRITE));
  if (!mail_region_) return errno_error("rdma: register memory for notifies on " + device.name());
  for (uint32_t slot = 0; slot < RdmaLane::kReceives; ++slot)  // before the peer can send at all
    if (const int error = give_back(slot); error != 0) return errno_error("rdma: post a receive", error);
  return {};
}

int RdmaRail::send(const wire::RdmaNotify& notify) {
  // the slot's last user has been heard: what the NIC might repeat of it, the peer has, and drops
  std::byte* slot = mail_slot(RdmaLane::kReceives + notify.sequence % RdmaLane::kMessages);
  const size_t bytes = wire::encode(notify, {slot, kMailBytes});
  return lanes_[0]->post_send({reinterpret_cast<uint64_t>(slot), static_cast<uint32_t>(bytes), mail_region_->lkey});
}

std::span<const std::byte> RdmaRail::message(uint32_t slot, uint32_t bytes) const {
  MC_ASSERT_LT(slot, RdmaLane::kReceives);
  return {mail_slot(slot), std::min<size_t>(bytes, kMailBytes)};
}

int RdmaRail::give_back(uint32_t slot) {
  const int error =
      lanes_[0]->post_receive(slot, {reinterpret_cast<uint64_t>(mail_slot(slot)), kMailBytes, mail_region_->lkey});
  if (error == 0) ++receives_;
  return error;
}

size_t RdmaRail::tells_left() const {
  return static_cast<size_t>(wire::kRdmaImmediatesAhead - (lanes_[0]->immediates() - landed_));
}

bool RdmaRail::landed(uint64_t count) {
  if (lanes_.empty() || count > lanes_[0]->immediates()) return false;
  landed_ = std::max(landed_, count);
  return true;
}

Result<RdmaRail::Work> RdmaRail::connect(const RdmaPort& port, const wire::Gid& own_gid,
                                         const wire::RdmaPathOffer& peer, uint16_t mtu, const Options& options) {
  const GidEntry* gid = port.find(own_gid);
  if (gid == nullptr)
    return Error{Code::not_found, "rdma: " + port.name() + " has no address " + gid_text(own_gid) + " (any more)"};
  if (peer.lanes.size() != lanes_.size())
    return Error{Code::corrupt, "rdma: the peer answered with another number of lanes"};
  peer_ = peer;
  mtu_ = mtu;
  const auto& limits = port.device->limits();
  LaneConnect to{.mtu = mtu,
                 .port = port.number,
                 .gid_index = static_cast<uint8_t>(gid->index),
                 .peer_gid = peer.gid_from,
                 .peer_lid = peer.lid,
                 .global = port.ethernet,
                 .reads_in = static_cast<uint8_t>(std::clamp(limits.max_qp_rd_atom, 1, 16)),
                 .options = &options};
  to.reads_out =
      static_cast<uint8_t>(std::clamp<int>(peer.rd_atomic, 1, std::clamp(limits.max_qp_init_rd_atom, 1, 16)));
  arm();  // before anything can complete
  std::vector<std::pair<RdmaLane*, LaneConnect>> works;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    to.peer = peer.lanes[i];
    works.emplace_back(lanes_[i].get(), to);
  }
  return Work([works = std::move(works)]() -> Result<void> {
    for (const auto& [lane, where] : works) MC_CHECK(lane->connect(where));
    return {};
  });
}

Result<void> RdmaRail::probe() {
  probing_ = true;
  const auto address = [](const std::byte* p) { return reinterpret_cast<uint64_t>(p); };
  const uint32_t key = scratch_region_->lkey;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const uint64_t there = peer_.scratch + i * kSlotBytes;
    int error = lanes_[i]->post_probe(Op::write, {address(slot(i, kOwnWrite)), kPatternBytes, key},
                                      there + kWrittenByPeer * kPatternBytes, peer_.scratch_rkey);
    if (error == 0)
      error = lanes_[i]->post_probe(Op::read, {address(slot(i, kOwnRead)), kPatternBytes, key},
                                    there + kReadByPeer * kPatternBytes, peer_.scratch_rkey);
    if (error != 0) return errno_error("rdma: post a test request", error);
    probes_left_ += 2;
  }
  return {};
}

Result<void> RdmaRail::check_read() const {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const auto expected = path_pattern(id_, machine.epoch(), static_cast<uint32_t>(i), !dialler_, true);
    if (std::memcmp(slot(i, kOwnRead), expected.data(), expected.size()) != 0)
      return Error{Code::corrupt, "rdma: the test pattern read on lane " + std::to_string(i) + " is wrong"};
  }
  return {};
}

Result<void> RdmaRail::check_written() const {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const auto expected = path_pattern(id_, machine.epoch(), static_cast<uint32_t>(i), !dialler_, false);
    if (std::memcmp(slot(i, kWrittenByPeer), expected.data(), expected.size()) != 0)
      return Error{Code::corrupt, "rdma: the test pattern the peer wrote on lane " + std::to_string(i) + " is wrong"};
  }
  return {};
}

Result<void> RdmaRail::allow_writes(bool allowed) {
  for (const auto& lane : lanes_) MC_CHECK(lane->allow_writes(allowed));
  return {};
}

void RdmaRail::poll(Polled& out) {
  if (!queue_) return;
  std::array<ibv_wc, 32> done;
  for (;;) {
    const int count = ::ibv_poll_cq(queue_.get(), static_cast<int>(done.size()), done.data());
    if (count <= 0) return;
    for (int i = 0; i < count; ++i) {
      const ibv_wc& each = done[static_cast<size_t>(i)];
      const size_t index = RdmaLane::lane_of(each.wr_id);
      MC_ASSERT_LT(index, lanes_.size());
      WorkStatus status = work_status(each.status);
      ++out.completions;
      if (RdmaLane::is_receive(each.wr_id)) {
        --receives_;
        const bool told = each.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
        if (status == WorkStatus::ok)
          out.messages.push_back({RdmaLane::slot_of(each.wr_id), told ? 0 : each.byte_len,
                                  told ? std::optional(ntohl(each.imm_data)) : std::nullopt});
        else if (status != WorkStatus::flushed)
          status = WorkStatus::other;  // too long, or refused: the peer's fault, not a bug of ours
      } else {
        if (probes_left_ > 0) --probes_left_;
        lanes_[index]->complete(each.wr_id, status, out.ok);
      }
      if (status == WorkStatus::ok) continue;
      // the first error is the cause; a flush is only its consequence, unless it is all there is
      if (out.failure == WorkStatus::ok || (out.failure == WorkStatus::flushed && status != WorkStatus::flushed)) {
        out.failure = status;
        out.failed_lane = index;
      }
    }
  }
}

void RdmaRail::arm() {
  armed_ = queue_ && ::ibv_req_notify_cq(queue_.get(), 0) == 0;
}

void RdmaRail::fail_lanes() {
  for (const auto& lane : lanes_) lane->fail();
}

bool RdmaRail::drained() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->drained(); });
}

bool RdmaRail::has(const ibv_qp* pair) const {
  return std::any_of(lanes_.begin(), lanes_.end(), [&](const auto& lane) { return lane->pair() == pair; });
}

size_t RdmaRail::outstanding() const {
  size_t count = 0;
  for (const auto& lane : lanes_) count += lane->outstanding();
  return count;
}

uint64_t RdmaRail::bytes() const {
  uint64_t bytes = 0;
  for (const auto& lane : lanes_) bytes += lane->bytes();
  return bytes;
}

void RdmaRail::started(TimePoint now) {
  measured_from_ = now;
  measured_bytes_ = 0;
}

void RdmaRail::moved(uint64_t bytes, TimePoint now) {
  measured_bytes_ += bytes;
  if (measured_bytes_ < 256 * 1024 || now - measured_from_ < 20ms) return;
  const double seconds = std::chrono::duration<double>(now - measured_from_).count();
  const double sample = static_cast<double>(measured_bytes_) / seconds;
  bytes_per_s_ = bytes_per_s_ == 0 ? sample : (bytes_per_s_ + sample) / 2;
  started(now);
}

uint64_t RdmaRail::allowance() const {
  if (bytes_per_s_ == 0) return kFirstAhead;
  return std::max(kLeastAhead, static_cast<uint64_t>(bytes_per_s_ * std::chrono::duration<double>(kAheadTime).count()));
}

uint64_t RdmaRail::slice_bytes() const {
  if (bytes_per_s_ == 0) return kFirstSlice;
  return static_cast<uint64_t>(bytes_per_s_ * std::chrono::duration<double>(kSliceTime).count());
}

uint64_t RdmaRail::burst() const {
  const double bytes = bytes_per_s_ * std::chrono::duration<double>(kBurstTime).count();
  return std::clamp(static_cast<uint64_t>(bytes), kLeastBurst, RdmaLane::kWindowBytes);
}

std::vector<RdmaLane::Failed> RdmaRail::close(RdmaReaper& reaper) {
  const bool over = drained();
  std::vector<RdmaLane::Failed> failed;
  for (const auto& lane : lanes_) {
    auto some = lane->take_failed();
    failed.insert(failed.end(), some.begin(), some.end());
  }
  if (anchor_) anchor_->rail = nullptr;
  const auto rest = std::make_shared<RailRemains>(  // shared by the lanes
      RailRemains{std::move(device_), std::move(scratch_), std::move(mail_), std::move(anchor_),
                  std::move(scratch_region_), std::move(mail_region_), std::move(queue_)});
  for (auto& lane : std::exchange(lanes_, {})) {
    auto remains = std::make_unique<LaneRemains>(rest, std::move(lane));
    if (over) reaper.take(std::move(remains));
  }
  probing_ = told_ready = armed_ = false;
  receives_ = 0;
  landed_ = 0;
  heard = {};
  cancelled.clear();
  cancelled_since = kNever;
  probes_left_ = 0;
  return failed;
}

}  // namespace mc::xfer
