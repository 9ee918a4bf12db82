#include "xfer_rdma/attempt.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/assert.h"
#include "base/fd.h"

namespace mc::xfer {
namespace {

/// The queue pair of a lane whose attempt is over. Each one is destroyed by itself, and the other objects with the last
/// one.
struct LaneRemains final : public RdmaReaper::Remains {
  LaneRemains(std::shared_ptr<RdmaAttempt> all, std::unique_ptr<RdmaLane> one)
      : rest(std::move(all)), lane(std::move(one)) {}
  std::shared_ptr<RdmaAttempt> rest;  // shared by the lanes
  std::unique_ptr<RdmaLane> lane;
};

}  // namespace

Result<wire::RdmaPathOffer> RdmaAttempt::open(RdmaRail& rail, const RdmaPort& port, const RdmaProbe::Attempt& attempt,
                                              size_t lanes) {
  MC_ASSERT(lanes_.empty() && !queue_ && lanes > 0);
  device_ = port.device;
  const RdmaDevice& device = *device_;
  MC_CHECK(probe.open(device, attempt, lanes));
  const size_t completions = RdmaLane::kDepth * lanes + RdmaLane::kMessages + RdmaLane::kReceives;
  const int depth = std::min(static_cast<int>(completions), device.limits().max_cqe);
  anchor_ = std::make_unique<RailAnchor>(RailAnchor{&rail});
  queue_.reset(::ibv_create_cq(device.context(), depth, anchor_.get(), device.channel(), 0));
  if (!queue_) return errno_error("rdma: create a completion queue on " + device.name());
  wire::RdmaPathOffer offer{.path = attempt.path, .epoch = attempt.epoch, .lid = port.lid, .mtu = port.mtu};
  for (size_t i = 0; i < lanes; ++i) {
    MC_TRY(lane, RdmaLane::open(device, queue_.get(), port.number, static_cast<uint8_t>(i)));
    offer.lanes.push_back(lane->address());
    lanes_.push_back(std::move(lane));
  }
  MC_ASSERT_EQ(offer.lanes.size(), lanes);
  MC_CHECK(mailbox_.open(device, *lanes_[0]));
  offer.rd_atomic = static_cast<uint8_t>(std::clamp(device.limits().max_qp_rd_atom, 1, 16));
  offer.scratch = probe.address();
  offer.scratch_rkey = probe.key();
  return offer;
}

size_t RdmaAttempt::tells_left() const {
  MC_ASSERT(!lanes_.empty());
  MC_ASSERT_LE(landed_, lanes_[0]->immediates());
  MC_ASSERT_LE(lanes_[0]->immediates() - landed_, wire::kRdmaImmediatesAhead);
  return static_cast<size_t>(wire::kRdmaImmediatesAhead - (lanes_[0]->immediates() - landed_));
}

bool RdmaAttempt::landed(uint64_t count) {
  if (lanes_.empty() || count > lanes_[0]->immediates()) return false;
  landed_ = std::max(landed_, count);
  return true;
}

Result<RdmaAttempt::Work> RdmaAttempt::connect(const RdmaPort& port, const wire::Gid& own_gid,
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
  arm();  // armed before anything can complete
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

Result<void> RdmaAttempt::allow_writes(bool allowed) {
  for (const auto& lane : lanes_) MC_CHECK(lane->allow_writes(allowed));
  return {};
}

void RdmaAttempt::poll(Polled& out) {
  if (!queue_) return;
  std::array<ibv_wc, 32> done;
  for (;;) {
    const int count = ::ibv_poll_cq(queue_.get(), static_cast<int>(done.size()), done.data());
    if (count <= 0) return;
    for (int i = 0; i < count; ++i) handle(done[static_cast<size_t>(i)], out);
  }
}

void RdmaAttempt::handle(const ibv_wc& done, Polled& out) {
  const size_t index = RdmaLane::lane_of(done.wr_id);
  MC_ASSERT_LT(index, lanes_.size());
  WorkStatus status = work_status(done.status);
  ++out.completions;
  if (RdmaLane::is_receive(done.wr_id)) {
    MC_ASSERT_LT(RdmaLane::slot_of(done.wr_id), RdmaLane::kReceives);
    mailbox_.completed();
    const bool told = done.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
    if (status == WorkStatus::ok)
      out.messages.push_back({RdmaLane::slot_of(done.wr_id), told ? 0 : done.byte_len,
                              told ? std::optional(ntohl(done.imm_data)) : std::nullopt});
    else if (status != WorkStatus::flushed)
      status = WorkStatus::other;  // the message is too long or was refused: the peer is at fault, not this process
  } else {
    probe.completed();
    lanes_[index]->complete(done.wr_id, status, out.ok);
  }
  if (status == WorkStatus::ok) return;
  // The first error is the cause. A flush is only its consequence, unless there is no other error.
  if (out.failure == WorkStatus::ok || (out.failure == WorkStatus::flushed && status != WorkStatus::flushed)) {
    out.failure = status;
    out.failed_lane = index;
  }
}

void RdmaAttempt::arm() {
  armed_ = queue_ && ::ibv_req_notify_cq(queue_.get(), 0) == 0;
}

void RdmaAttempt::fail_lanes() {
  for (const auto& lane : lanes_) lane->fail();
}

bool RdmaAttempt::drained() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->drained(); });
}

bool RdmaAttempt::has(const ibv_qp* pair) const {
  return std::any_of(lanes_.begin(), lanes_.end(), [&](const auto& lane) { return lane->pair() == pair; });
}

size_t RdmaAttempt::outstanding() const {
  size_t count = 0;
  for (const auto& lane : lanes_) count += lane->outstanding();
  return count;
}

uint64_t RdmaAttempt::bytes() const {
  uint64_t bytes = 0;
  for (const auto& lane : lanes_) bytes += lane->bytes();
  return bytes;
}

std::vector<RdmaLane::Failed> RdmaAttempt::close(RdmaReaper& reaper) {
  const bool over = drained();
  std::vector<RdmaLane::Failed> failed;
  for (const auto& lane : lanes_) {
    auto some = lane->take_failed();
    failed.insert(failed.end(), some.begin(), some.end());
  }
  if (anchor_) anchor_->rail = nullptr;
  auto lanes = std::exchange(lanes_, {});
  const auto rest = std::make_shared<RdmaAttempt>(std::exchange(*this, RdmaAttempt()));  // shared by the lanes
  for (auto& lane : lanes) {
    auto remains = std::make_unique<LaneRemains>(rest, std::move(lane));
    if (over) reaper.take(std::move(remains));
  }
  return failed;
}

}  // namespace mc::xfer
