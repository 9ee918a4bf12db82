// Two queue pairs of two devices of scripts/rdma-vm, connected with bare verbs and nothing of ours in
// between: rxe0 and rxe1 (10.0.0.1, 10.0.0.2). For tests of what the machine does, not of lib/xfer.
#pragma once

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <poll.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "test.h"

namespace mc::test::verbs {

using Time = std::chrono::steady_clock;
inline constexpr auto kDeadline = std::chrono::seconds(20);  // an emulated machine that shares its host
inline constexpr int kGidIndex = 1;                          // the port's IPv4 address as RoCE v2
inline constexpr size_t kBufferBytes = 1 << 20;

template <class T>
using Owned = std::unique_ptr<T, int (*)(T*)>;

inline Owned<ibv_context> open_device(const std::string& name) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  REQUIRE(list != nullptr);
  ibv_context* context = nullptr;
  for (int i = 0; i < count; ++i)
    if (name == ibv_get_device_name(list[i])) context = ibv_open_device(list[i]);
  ibv_free_device_list(list);
  REQUIRE_MESSAGE(context != nullptr, name << " is absent or cannot be opened");
  return {context, ibv_close_device};
}

/// One end of a connection: device, memory, queue pair. Members are destroyed in the order the kernel wants.
struct End {
  explicit End(const std::string& device, int completions = 256)
      : context(open_device(device)),
        pd(ibv_alloc_pd(context.get()), ibv_dealloc_pd),
        cq(ibv_create_cq(context.get(), completions, nullptr, nullptr, 0), ibv_destroy_cq),
        buffer(kBufferBytes),
        mr(ibv_reg_mr(pd.get(), buffer.data(), buffer.size(),
                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE),
           ibv_dereg_mr),
        qp(nullptr, ibv_destroy_qp) {
    REQUIRE(mr != nullptr);
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq.get();
    init.qp_type = IBV_QPT_RC;
    init.cap = {.max_send_wr = 128, .max_recv_wr = 16, .max_send_sge = 16, .max_recv_sge = 1, .max_inline_data = 220};
    qp.reset(ibv_create_qp(pd.get(), &init));
    REQUIRE(qp != nullptr);
    CHECK(init.cap.max_inline_data >= 220);
    REQUIRE(ibv_query_gid(context.get(), 1, kGidIndex, &gid) == 0);
  }

  /// Gives up after 7 times 67 ms without an answer, or 7 answers that no receive is posted.
  void connect(const End& peer, unsigned access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = access;
    REQUIRE(ibv_modify_qp(qp.get(), &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attr = {};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_4096;
    attr.dest_qp_num = peer.qp->qp_num;
    attr.max_dest_rd_atomic = 16;
    attr.min_rnr_timer = 12;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh = {
        .dgid = peer.gid, .flow_label = 0, .sgid_index = kGidIndex, .hop_limit = 64, .traffic_class = 0};
    // The kernel resolves the peer's address here. On a host that stands still for a second the resolution times out.
    const auto receive = [&] {
      return ibv_modify_qp(qp.get(), &attr,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    };
    int status = receive();
    for (int again = 0; again < 10 && status == ETIMEDOUT; ++again) status = receive();
    REQUIRE(status == 0);
    attr = {};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 6;  // 7 never gives up on rxe
    attr.rnr_retry = 6;
    attr.max_rd_atomic = 16;
    REQUIRE(ibv_modify_qp(qp.get(), &attr,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                              IBV_QP_MAX_QP_RD_ATOMIC) == 0);
  }

  ibv_sge piece(size_t offset, size_t bytes) const {
    return {reinterpret_cast<uint64_t>(buffer.data()) + offset, static_cast<uint32_t>(bytes), mr->lkey};
  }

  void post_receive(ibv_sge piece) {
    ibv_recv_wr receive{.wr_id = 7, .next = nullptr, .sg_list = &piece, .num_sge = 1};
    ibv_recv_wr* bad = nullptr;
    REQUIRE(ibv_post_recv(qp.get(), &receive, &bad) == 0);
  }

  void post(ibv_send_wr& first) {
    ibv_send_wr* bad = nullptr;
    REQUIRE(ibv_post_send(qp.get(), &first, &bad) == 0);
  }

  ibv_wc completion() {
    ibv_wc wc{};
    const auto deadline = Time::now() + kDeadline;
    int count = 0;
    while ((count = ibv_poll_cq(cq.get(), 1, &wc)) == 0 && Time::now() < deadline) std::this_thread::yield();
    REQUIRE_MESSAGE(count == 1, "no completion");
    return wc;
  }

  ibv_qp_state state() {
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    REQUIRE(ibv_query_qp(qp.get(), &attr, IBV_QP_STATE, &init) == 0);
    return attr.qp_state;
  }

  void fill(uint8_t salt) {
    for (size_t i = 0; i < buffer.size(); ++i) buffer[i] = static_cast<uint8_t>(i * 131 + (i >> 8) + salt);
  }

  Owned<ibv_context> context;
  Owned<ibv_pd> pd;
  Owned<ibv_cq> cq;
  std::vector<uint8_t> buffer;
  Owned<ibv_mr> mr;
  Owned<ibv_qp> qp;
  ibv_gid gid{};
};

struct Pair {
  /// `access`: what the far one allows.
  explicit Pair(unsigned access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE) : near("rxe0"), far("rxe1") {
    near.connect(far);
    far.connect(near, access);
  }
  End near, far;
};

inline ibv_send_wr one_sided(ibv_wr_opcode opcode, ibv_sge* pieces, int piece_count, const End& target, size_t offset) {
  ibv_send_wr wr{};
  wr.opcode = opcode;
  wr.sg_list = pieces;
  wr.num_sge = piece_count;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(target.buffer.data()) + offset;
  wr.wr.rdma.rkey = target.mr->rkey;
  return wr;
}

inline ibv_event_type next_event(ibv_context* context) {
  pollfd wait{context->async_fd, POLLIN, 0};
  REQUIRE_MESSAGE(::poll(&wait, 1, 20'000) == 1, "no event");
  ibv_async_event event{};
  REQUIRE(ibv_get_async_event(context, &event) == 0);
  ibv_ack_async_event(&event);
  return event.event_type;
}

}  // namespace mc::test::verbs
