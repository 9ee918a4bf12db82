#include "xfer_rdma/probe.h"

#include <cstring>
#include <string>

#include "base/assert.h"
#include "base/fd.h"
#include "base/hash.h"
#include "base/rng.h"

namespace mc::xfer {
namespace {

constexpr size_t kPatternBytes = 64;
// The parts of a lane's slot.
constexpr size_t kWrittenByPeer = 0;
constexpr size_t kReadByPeer = 1;
constexpr size_t kOwnWrite = 2;
constexpr size_t kOwnRead = 3;
constexpr size_t kLaneBytes = 4 * kPatternBytes;

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

std::byte* RdmaProbe::slot(size_t lane, size_t part) const {
  MC_ASSERT_LT(lane, lanes_);
  return pages_.get() + lane * kLaneBytes + part * kPatternBytes;
}

Result<void> RdmaProbe::open(const RdmaDevice& device, const Attempt& attempt, size_t lanes) {
  MC_ASSERT(!pages_ && lanes > 0);
  attempt_ = attempt;
  lanes_ = lanes;
  const size_t bytes = lanes * kLaneBytes;
  pages_ = own_pages(bytes);
  region_.reset(::ibv_reg_mr(device.domain(), pages_.get(), bytes,
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE));
  if (!region_) return errno_error("rdma: register a scratch page on " + device.name());
  for (size_t i = 0; i < lanes; ++i) {
    const auto lane = static_cast<uint32_t>(i);
    const auto leave = path_pattern(attempt.path, attempt.epoch, lane, attempt.dialler, true);
    const auto write = path_pattern(attempt.path, attempt.epoch, lane, attempt.dialler, false);
    std::memcpy(slot(i, kReadByPeer), leave.data(), leave.size());
    std::memcpy(slot(i, kOwnWrite), write.data(), write.size());
  }
  return {};
}

Result<void> RdmaProbe::post(std::span<const std::unique_ptr<RdmaLane>> lanes, const wire::RdmaPathOffer& peer) {
  MC_ASSERT_EQ(lanes.size(), lanes_);
  MC_ASSERT(!posted_ && left_ == 0);
  posted_ = true;
  const auto address = [](const std::byte* p) { return reinterpret_cast<uint64_t>(p); };
  const uint32_t own = region_->lkey;
  for (size_t i = 0; i < lanes.size(); ++i) {
    const uint64_t there = peer.scratch + i * kLaneBytes;
    int error = lanes[i]->post_probe(Op::write, {address(slot(i, kOwnWrite)), kPatternBytes, own},
                                     there + kWrittenByPeer * kPatternBytes, peer.scratch_rkey);
    if (error == 0)
      error = lanes[i]->post_probe(Op::read, {address(slot(i, kOwnRead)), kPatternBytes, own},
                                   there + kReadByPeer * kPatternBytes, peer.scratch_rkey);
    if (error != 0) return errno_error("rdma: post a test request", error);
    left_ += 2;
  }
  return {};
}

Result<void> RdmaProbe::check_read() const {
  for (size_t i = 0; i < lanes_; ++i) {
    const auto expected =
        path_pattern(attempt_.path, attempt_.epoch, static_cast<uint32_t>(i), !attempt_.dialler, true);
    if (std::memcmp(slot(i, kOwnRead), expected.data(), expected.size()) != 0)
      return Error{Code::corrupt, "rdma: the test pattern read on lane " + std::to_string(i) + " is wrong"};
  }
  return {};
}

Result<void> RdmaProbe::check_written() const {
  for (size_t i = 0; i < lanes_; ++i) {
    const auto expected =
        path_pattern(attempt_.path, attempt_.epoch, static_cast<uint32_t>(i), !attempt_.dialler, false);
    if (std::memcmp(slot(i, kWrittenByPeer), expected.data(), expected.size()) != 0)
      return Error{Code::corrupt, "rdma: the test pattern the peer wrote on lane " + std::to_string(i) + " is wrong"};
  }
  return {};
}

}  // namespace mc::xfer
