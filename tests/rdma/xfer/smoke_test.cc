// Every verb, flag and event that lib/xfer_rdma uses, shown to work on this machine between the two ends of a link,
// without the transport. The tests run inside scripts/rdma-vm. A case that fails here means that the machine is
// broken, not the transport. One process
// holds both ends: rxe0 and rxe1 for data (rdma/verbs.h), rxe2 for the cut link.
#include <arpa/inet.h>

#include "rdma/netdev.h"
#include "rdma/verbs.h"

namespace smoke_test {

using namespace mc::test;
using namespace mc::test::verbs;

namespace {

TEST_CASE("rdma/smoke: four devices are up with their IPv4 address as RoCE v2 in GID 1") {
  for (int i = 0; i < 4; ++i) {
    CAPTURE(i);
    const auto context = open_device("rxe" + std::to_string(i));
    ibv_port_attr port{};
    REQUIRE(ibv_query_port(context.get(), 1, &port) == 0);
    CHECK(port.state == IBV_PORT_ACTIVE);
    CHECK(port.active_mtu == IBV_MTU_4096);
    CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET);
    ibv_gid_entry entry{};
    REQUIRE(ibv_query_gid_ex(context.get(), 1, kGidIndex, &entry, 0) == 0);
    CHECK(entry.gid_type == IBV_GID_TYPE_ROCE_V2);
    char text[INET6_ADDRSTRLEN] = "";
    inet_ntop(AF_INET6, entry.gid.raw, text, sizeof(text));
    CHECK(std::string(text) == "::ffff:10.0." + std::to_string(i / 2) + "." + std::to_string(i % 2 + 1));
  }
}

TEST_CASE("rdma/smoke: WRITE and READ move the right bytes and cross the link") {
  Pair pair;
  pair.near.fill(1);
  const uint64_t before = sent("v0", "packets");
  ibv_sge piece = pair.near.piece(0, 300'000);
  ibv_send_wr write = one_sided(IBV_WR_RDMA_WRITE, &piece, 1, pair.far, 5);
  pair.near.post(write);
  CHECK(pair.near.completion().status == IBV_WC_SUCCESS);
  CHECK(std::memcmp(&pair.far.buffer[5], &pair.near.buffer[0], 300'000) == 0);
  CHECK(sent("v0", "packets") >= before + 300'000 / 4096);

  pair.far.fill(77);
  piece = pair.near.piece(11, 300'000);
  ibv_send_wr read = one_sided(IBV_WR_RDMA_READ, &piece, 1, pair.far, 3);
  pair.near.post(read);
  CHECK(pair.near.completion().status == IBV_WC_SUCCESS);
  CHECK(std::memcmp(&pair.near.buffer[11], &pair.far.buffer[3], 300'000) == 0);
}

TEST_CASE("rdma/smoke: SEND fills a posted buffer, WRITE_WITH_IMM delivers its number after its bytes") {
  Pair pair;
  pair.near.fill(2);
  ibv_sge landing = pair.far.piece(4096, 4096);
  ibv_recv_wr receive{.wr_id = 7, .next = nullptr, .sg_list = &landing, .num_sge = 1};
  ibv_recv_wr* bad = nullptr;
  REQUIRE(ibv_post_recv(pair.far.qp.get(), &receive, &bad) == 0);
  ibv_sge piece = pair.near.piece(0, 1000);
  ibv_send_wr send{};
  send.opcode = IBV_WR_SEND;
  send.sg_list = &piece;
  send.num_sge = 1;
  send.send_flags = IBV_SEND_SIGNALED;
  pair.near.post(send);
  CHECK(pair.near.completion().status == IBV_WC_SUCCESS);
  ibv_wc arrived = pair.far.completion();
  CHECK(arrived.opcode == IBV_WC_RECV);
  CHECK(arrived.byte_len == 1000);
  CHECK(std::memcmp(&pair.far.buffer[4096], &pair.near.buffer[0], 1000) == 0);

  receive = {.wr_id = 8, .next = nullptr, .sg_list = nullptr, .num_sge = 0};
  REQUIRE(ibv_post_recv(pair.far.qp.get(), &receive, &bad) == 0);
  ibv_send_wr write = one_sided(IBV_WR_RDMA_WRITE_WITH_IMM, &piece, 1, pair.far, 0);
  write.imm_data = htonl(0xfeed);
  pair.near.post(write);
  CHECK(pair.near.completion().status == IBV_WC_SUCCESS);
  arrived = pair.far.completion();
  CHECK(arrived.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(ntohl(arrived.imm_data) == 0xfeed);
  CHECK(arrived.wr_id == 8);
  CHECK(std::memcmp(&pair.far.buffer[0], &pair.near.buffer[0], 1000) == 0);
}

TEST_CASE("rdma/smoke: a chain posted with one call completes once when only its last part is signalled") {
  Pair pair;
  pair.near.fill(3);
  constexpr size_t kCount = 64;
  constexpr size_t kBytes = 4096;
  std::vector<ibv_sge> pieces(kCount);
  std::vector<ibv_send_wr> chain(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    pieces[i] = pair.near.piece(i * kBytes, kBytes);
    chain[i] = one_sided(IBV_WR_RDMA_WRITE, &pieces[i], 1, pair.far, (kCount - 1 - i) * kBytes);
    chain[i].wr_id = i;
    chain[i].send_flags = i + 1 == kCount ? static_cast<unsigned>(IBV_SEND_SIGNALED) : 0;
    chain[i].next = i + 1 == kCount ? nullptr : &chain[i + 1];
  }
  pair.near.post(chain[0]);
  const ibv_wc wc = pair.near.completion();
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(wc.wr_id == kCount - 1);
  ibv_wc more{};
  CHECK(ibv_poll_cq(pair.near.cq.get(), 1, &more) == 0);
  for (size_t i = 0; i < kCount; ++i)
    CHECK(std::memcmp(&pair.far.buffer[(kCount - 1 - i) * kBytes], &pair.near.buffer[i * kBytes], kBytes) == 0);
}

TEST_CASE("rdma/smoke: an inline WRITE of 220 bytes leaves its source free at once and needs no key") {
  Pair pair;
  std::vector<uint8_t> source(220);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i + 1);
  const std::vector<uint8_t> copy = source;
  ibv_sge piece{reinterpret_cast<uint64_t>(source.data()), 220, 0};
  ibv_send_wr write = one_sided(IBV_WR_RDMA_WRITE, &piece, 1, pair.far, 0);
  write.send_flags |= IBV_SEND_INLINE;
  pair.near.post(write);
  std::fill(source.begin(), source.end(), 0);
  CHECK(pair.near.completion().status == IBV_WC_SUCCESS);
  CHECK(std::memcmp(pair.far.buffer.data(), copy.data(), copy.size()) == 0);
}

TEST_CASE("rdma/smoke: one READ scatters into pieces of unequal length") {
  Pair pair;
  pair.far.fill(4);
  const size_t lengths[] = {1, 64, 4095, 4096, 4097, 100'000, 7};
  std::vector<ibv_sge> pieces;
  size_t place = 0;
  for (size_t length : lengths) {
    pieces.push_back(pair.near.piece(place, length));
    place += length + 64;
  }
  ibv_send_wr read = one_sided(IBV_WR_RDMA_READ, pieces.data(), static_cast<int>(pieces.size()), pair.far, 1000);
  pair.near.post(read);
  CHECK(pair.near.completion().status == IBV_WC_SUCCESS);
  size_t from = 1000;
  place = 0;
  for (size_t length : lengths) {
    CAPTURE(length);
    CHECK(std::memcmp(&pair.near.buffer[place], &pair.far.buffer[from], length) == 0);
    CHECK(pair.near.buffer[place + length] == 0);
    from += length;
    place += length + 64;
  }
}

TEST_CASE("rdma/smoke: a wrong key and a range past the region are refused, and end the connection") {
  for (bool wrong_key : {true, false}) {
    CAPTURE(wrong_key);
    Pair pair;
    ibv_sge piece = pair.near.piece(0, 4096);
    ibv_send_wr read = one_sided(IBV_WR_RDMA_READ, &piece, 1, pair.far, wrong_key ? 0 : kBufferBytes - 4095);
    if (wrong_key) read.wr.rdma.rkey ^= 0x5a00;
    pair.near.post(read);
    CHECK(pair.near.completion().status == IBV_WC_REM_ACCESS_ERR);
    CHECK(pair.near.state() == IBV_QPS_ERR);
    ibv_send_wr later = one_sided(IBV_WR_RDMA_READ, &piece, 1, pair.far, 0);
    pair.near.post(later);
    CHECK(pair.near.completion().status == IBV_WC_WR_FLUSH_ERR);
  }
}

TEST_CASE("rdma/smoke: a link that goes down and up is told as port events") {
  const auto context = open_device("rxe2");
  set_link("v2", false);
  CHECK(next_event(context.get()) == IBV_EVENT_PORT_ERR);
  ibv_port_attr port{};
  REQUIRE(ibv_query_port(context.get(), 1, &port) == 0);
  CHECK(port.state == IBV_PORT_DOWN);
  set_link("v2", true);
  ibv_event_type event = next_event(context.get());
  while (event == IBV_EVENT_GID_CHANGE) event = next_event(context.get());
  CHECK(event == IBV_EVENT_PORT_ACTIVE);
}

}  // namespace

}  // namespace smoke_test
