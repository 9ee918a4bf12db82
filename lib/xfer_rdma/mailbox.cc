#include "xfer_rdma/mailbox.h"

#include <algorithm>

#include "base/assert.h"
#include "base/fd.h"

namespace mc::xfer {
namespace {

constexpr size_t kSlotBytes = (wire::kRdmaNotifyHeaderBytes + kNotifyBytesMax + 63) / 64 * 64;

}  // namespace

std::byte* RdmaMailbox::slot(size_t index) const {
  MC_ASSERT_LT(index, RdmaLane::kReceives + RdmaLane::kMessages);
  return pages_.get() + index * kSlotBytes;
}

Result<void> RdmaMailbox::open(const RdmaDevice& device, RdmaLane& lane) {
  MC_ASSERT(!pages_);
  const size_t bytes = (RdmaLane::kMessages + RdmaLane::kReceives) * kSlotBytes;
  pages_ = own_pages(bytes);
  region_.reset(::ibv_reg_mr(device.domain(), pages_.get(), bytes, IBV_ACCESS_LOCAL_WRITE));
  if (!region_) return errno_error("rdma: register memory for notifies on " + device.name());
  for (uint32_t slot = 0; slot < RdmaLane::kReceives; ++slot)
    if (const int error = give_back(lane, slot); error != 0) return errno_error("rdma: post a receive", error);
  return {};
}

int RdmaMailbox::send(RdmaLane& lane, const wire::RdmaNotify& notify) {
  // The peer has delivered the slot's last notify, so it drops any repetition by the NIC.
  std::byte* from = slot(RdmaLane::kReceives + notify.sequence % RdmaLane::kMessages);
  const size_t bytes = wire::encode(notify, {from, kSlotBytes});
  return lane.post_send({reinterpret_cast<uint64_t>(from), static_cast<uint32_t>(bytes), region_->lkey});
}

std::span<const std::byte> RdmaMailbox::message(uint32_t slot, uint32_t bytes) const {
  MC_ASSERT_LT(slot, RdmaLane::kReceives);
  return {this->slot(slot), std::min<size_t>(bytes, kSlotBytes)};
}

int RdmaMailbox::give_back(RdmaLane& lane, uint32_t slot) {
  MC_ASSERT_LT(slot, RdmaLane::kReceives);
  const int error = lane.post_receive(slot, {reinterpret_cast<uint64_t>(this->slot(slot)), kSlotBytes, region_->lkey});
  if (error == 0) ++receives_;
  MC_ASSERT_LE(receives_, RdmaLane::kReceives);
  return error;
}

void RdmaMailbox::completed() {
  MC_ASSERT(receives_ > 0);
  --receives_;
}

}  // namespace mc::xfer
