#include "xfer_rdma/lane.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "base/fd.h"
#include "xfer/auth.h"

namespace mc::xfer {
namespace {

Error modify_error(const char* to, int error) {
  return errno_error(std::string("rdma: move a queue pair to ") + to, error);
}

/// A random packet number, so that old packets of an earlier connection with equal numbers do not fit the new one.
uint32_t random_psn() {
  const Id128 id = random_id();
  uint32_t psn;
  std::memcpy(&psn, id.bytes.data(), sizeof psn);
  return psn & 0xffffff;
}

ibv_qp_init_attr queue_attr(const RdmaDevice& device, ibv_cq* queue) {
  ibv_qp_init_attr attr{};
  attr.send_cq = queue;
  attr.recv_cq = queue;
  attr.qp_type = IBV_QPT_RC;
  const auto depth_max = static_cast<uint32_t>(device.limits().max_qp_wr);
  attr.cap.max_send_wr = std::min(RdmaLane::kDepth + RdmaLane::kMessages, depth_max);
  attr.cap.max_recv_wr = RdmaLane::kReceives;
  attr.cap.max_send_sge = std::min(RdmaLane::kGatherMax, static_cast<uint32_t>(device.limits().max_sge));
  attr.cap.max_recv_sge = 1;
  attr.cap.max_inline_data = RdmaLane::kInlineMax;
  return attr;
}

}  // namespace

WorkStatus work_status(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS: return WorkStatus::ok;
    case IBV_WC_WR_FLUSH_ERR: return WorkStatus::flushed;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR: return WorkStatus::retry_exceeded;
    case IBV_WC_RNR_RETRY_EXC_ERR: return WorkStatus::rnr_retry_exceeded;
    case IBV_WC_REM_ACCESS_ERR: return WorkStatus::remote_access;
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_INV_RD_REQ_ERR: return WorkStatus::remote_invalid_request;
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_ABORT_ERR: return WorkStatus::remote_operation;
    case IBV_WC_LOC_LEN_ERR: return WorkStatus::local_length;
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR: return WorkStatus::local_protection;
    case IBV_WC_LOC_QP_OP_ERR: return WorkStatus::local_operation;
    case IBV_WC_FATAL_ERR:
    case IBV_WC_GENERAL_ERR: return WorkStatus::fatal;
    default: return WorkStatus::other;
  }
}

Result<std::unique_ptr<RdmaLane>> RdmaLane::open(const RdmaDevice& device, ibv_cq* queue, uint8_t port, uint8_t index) {
  auto lane = std::make_unique<RdmaLane>();
  ibv_qp_init_attr attr = queue_attr(device, queue);
  lane->pair_.reset(::ibv_create_qp(device.domain(), &attr));
  if (!lane->pair_) {  // some devices refuse this much inline data or this many pieces
    attr = queue_attr(device, queue);
    attr.cap.max_inline_data = 0;
    attr.cap.max_send_sge = 1;
    lane->pair_.reset(::ibv_create_qp(device.domain(), &attr));
  }
  if (!lane->pair_) return errno_error("rdma: " + device.name() + ": create a queue pair");
  lane->index_ = index;
  lane->psn_ = random_psn();
  lane->inline_max_ = std::min(attr.cap.max_inline_data, kInlineMax);
  lane->gather_max_ = std::clamp(attr.cap.max_send_sge, 1u, kGatherMax);
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = port;
  // Until the path is verified, the peer writes its test pattern; see allow_writes().
  init.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  const int rc =
      ::ibv_modify_qp(lane->pair(), &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (rc != 0) return modify_error("INIT", rc);
  return lane;
}

Result<void> RdmaLane::connect(const LaneConnect& to) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = to_verbs_mtu(to.mtu);
  attr.dest_qp_num = to.peer.qpn;
  attr.rq_psn = to.peer.psn;
  attr.max_dest_rd_atomic = to.reads_in;
  attr.min_rnr_timer = 12;
  attr.ah_attr.is_global = to.global ? 1 : 0;
  attr.ah_attr.dlid = to.peer_lid;
  attr.ah_attr.port_num = to.port;
  std::memcpy(attr.ah_attr.grh.dgid.raw, to.peer_gid.data(), to.peer_gid.size());
  attr.ah_attr.grh.sgid_index = to.gid_index;
  attr.ah_attr.grh.hop_limit = 64;
  attr.ah_attr.grh.traffic_class = static_cast<uint8_t>(to.options->rdma_traffic_class);
  int rc = ::ibv_modify_qp(pair(), &attr,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (rc != 0) return modify_error("RTR", rc);
  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = static_cast<uint8_t>(to.options->rdma_timeout);
  attr.retry_cnt = static_cast<uint8_t>(to.options->rdma_retry);
  attr.rnr_retry = 3;  // finite (7 is for ever), because every SEND has a receive that waits for it
  attr.sq_psn = psn_;
  attr.max_rd_atomic = to.reads_out;
  rc = ::ibv_modify_qp(
      pair(), &attr,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  if (rc != 0) return modify_error("RTS", rc);
  return {};
}

Result<void> RdmaLane::allow_writes(bool allowed) {
  ibv_qp_attr attr{};
  attr.qp_access_flags = IBV_ACCESS_REMOTE_READ | (allowed ? IBV_ACCESS_REMOTE_WRITE : 0);
  if (const int rc = ::ibv_modify_qp(pair(), &attr, IBV_QP_ACCESS_FLAGS); rc != 0)
    return errno_error("rdma: change the access of a queue pair", rc);
  return {};
}

bool RdmaLane::signal_next(bool last, uint64_t bytes, uint64_t bytes_most) {
  unsignalled_bytes_ += bytes;
  if (!last && ++unsignalled_ < kSignalEvery && unsignalled_bytes_ < bytes_most) return false;
  unsignalled_ = 0;
  unsignalled_bytes_ = 0;
  return true;
}

/// Makes linked verbs requests from the plan.
void RdmaLane::link(size_t count, bool shallow) {
  MC_ASSERT_LE(count, plan_.works.size());
  requests_.assign(count, {});
  pieces_.clear();
  for (const LocalPiece& piece : plan_.pieces) pieces_.push_back({piece.address, piece.bytes, piece.key});
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) bytes += plan_.works[i].bytes;
  const uint64_t signal_bytes = shallow ? std::max(bytes / 2, kSignalBytesMin) : UINT64_MAX;
  for (size_t i = 0; i < count; ++i) {
    const RdmaWork& work = plan_.works[i];
    MC_ASSERT_LE(work.first_piece + work.piece_count, pieces_.size());
    ibv_send_wr& request = requests_[i];
    request.wr_id = uint64_t{index_} << 56 | (work_.posted() + i + 1);
    request.next = i + 1 < count ? &requests_[i + 1] : nullptr;
    request.sg_list = pieces_.data() + work.first_piece;
    request.num_sge = static_cast<int>(work.piece_count);
    request.opcode = work.op == Op::read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    if (work.immediate) {
      request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      request.imm_data = htonl(*work.immediate);
    }
    if (signal_next(i + 1 == count, work.bytes, signal_bytes)) request.send_flags |= IBV_SEND_SIGNALED;
    if (work.op == Op::write && work.bytes <= inline_max_) request.send_flags |= IBV_SEND_INLINE;
    request.wr.rdma.remote_addr = work.remote;
    request.wr.rdma.rkey = work.key;
  }
}

/// Posts the requests of link(), with a doorbell for every `burst` bytes. Returns how many were taken.
size_t RdmaLane::ring(size_t count, uint64_t burst, int& error) {
  MC_ASSERT_LE(count, requests_.size());
  for (size_t first = 0; first < count;) {
    uint64_t bytes = 0;
    size_t end = first;
    while (end < count && (end == first || bytes + plan_.works[end].bytes <= burst)) bytes += plan_.works[end++].bytes;
    requests_[end - 1].next = nullptr;
    ibv_send_wr* refused = nullptr;
    error = ::ibv_post_send(pair(), &requests_[first], &refused);
    if (error != 0) {
      MC_ASSERT(refused >= &requests_[first] && refused < &requests_[first] + (end - first));
      return static_cast<size_t>(refused - requests_.data());
    }
    first = end;
  }
  return count;
}

int RdmaLane::post_slice(const Slice& slice, const SingleWork& work) {
  ibv_send_wr request{};
  request.opcode = slice.op == Op::read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  if (slice.op == Op::write && work.local.bytes <= inline_max_) request.send_flags = IBV_SEND_INLINE;
  request.wr.rdma.remote_addr = work.remote;
  request.wr.rdma.rkey = work.key;
  if (const int error = post_one(request, work.local); error != 0) return error;
  unsignalled_ = 0;
  unsignalled_bytes_ = 0;
  MC_ASSERT_EQ(uint64_t{work.local.bytes}, slice.local.size());
  work_.carry(slice, work_.posted());
  return 0;
}

RdmaLane::Posted RdmaLane::post(std::span<const PlanItem> items, bool shallow, uint64_t burst) {
  const auto used = static_cast<size_t>(work_.outstanding());
  if (used >= kDepth || items.empty()) return {};
  Posted result;
  SingleWork single;
  const PlanItem& first = items[0];
  if (items.size() == 1 && !first.slice.immediate && plan_one(first.slice, first.local, first.remote, single)) {
    result.error = post_slice(first.slice, single);
    result.taken = result.error == 0 ? 1 : 0;
    return result;
  }
  const size_t free = kDepth - used;
  plan_works(items, {.works = free, .gather = gather_max_, .bytes = std::min(burst, kGatherBytesMax)}, plan_);
  const size_t count = plan_.works.size();
  if (count == 0) return {};
  link(count, shallow);
  const size_t sent = ring(count, burst, result.error);
  MC_ASSERT_LE(sent, count);
  size_t item = 0;
  for (size_t i = 0; i < sent; ++i)
    for (size_t ended = 0; ended < plan_.works[i].slices_ended; ++ended, ++item)
      work_.carry(items[item].slice, work_.posted() + i + 1);
  // The next slice may be partly posted. It belongs to the lane as well, because the NIC has its memory.
  if (sent > 0 && sent < count) work_.carry_part(items[item++].slice, work_.posted() + sent);
  work_.post(sent);
  MC_ASSERT_LE(item, items.size());
  MC_ASSERT_LE(work_.outstanding(), kDepth + kMessages);
  result.taken = item;
  return result;
}

int RdmaLane::post_one(ibv_send_wr& request, const LocalPiece& local) {
  ibv_sge piece{local.address, local.bytes, local.key};
  ibv_send_wr* refused = nullptr;
  request.wr_id = uint64_t{index_} << 56 | (work_.posted() + 1);
  request.sg_list = &piece;
  request.num_sge = 1;
  request.send_flags |= IBV_SEND_SIGNALED;
  const int error = ::ibv_post_send(pair(), &request, &refused);
  if (error == 0) work_.post(1);
  MC_ASSERT_LE(work_.outstanding(), kDepth + kMessages);
  return error;
}

int RdmaLane::post_probe(Op op, const LocalPiece& local, uint64_t remote, uint32_t key) {
  ibv_send_wr request{};
  request.opcode = op == Op::read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  request.wr.rdma.remote_addr = remote;
  request.wr.rdma.rkey = key;
  return post_one(request, local);
}

int RdmaLane::post_send(const LocalPiece& message) {
  if (work_.outstanding() >= kDepth + kMessages) return ENOMEM;
  ibv_send_wr request{};
  request.opcode = IBV_WR_SEND;
  if (message.bytes <= inline_max_) request.send_flags = IBV_SEND_INLINE;
  return post_one(request, message);
}

int RdmaLane::post_receive(uint32_t slot, const LocalPiece& place) {
  MC_ASSERT_LT(slot, kReceives);
  ibv_sge piece{place.address, place.bytes, place.key};
  ibv_recv_wr request{};
  ibv_recv_wr* refused = nullptr;
  request.wr_id = uint64_t{0x80u | index_} << 56 | slot;
  request.sg_list = &piece;
  request.num_sge = 1;
  return ::ibv_post_recv(pair(), &request, &refused);
}

void RdmaLane::complete(uint64_t wr_id, WorkStatus status, std::vector<Slice>& ok) {
  work_.complete(wr_id & kSequenceMask, status, ok);
}

void RdmaLane::fail() {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  (void)::ibv_modify_qp(pair(), &attr, IBV_QP_STATE);
}

}  // namespace mc::xfer
