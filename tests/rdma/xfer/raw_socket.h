// A member of the cluster that lies over rdma: what the hostile tests share. It proves itself on the socket, where
// there is no secret, and says what it wants from then on.
#pragma once

#include "machine.h"
#include "unit/xfer/raw_peer.h"
#include "wire/rdma_frame.h"

namespace mc::xfer::test {

/// Completes the handshake of an rdma socket, with any number of lanes it claims to have.
inline RawSocket join(const std::string& rdma_uri, uint16_t lanes = 1) {
  RawSocket raw = dial_raw("tcp://" + rdma_uri.substr(7));
  wire::XferHello hello{.instance = instance(0x33), .lane_count = lanes, .name = "liar"};
  hello.connection.bytes.fill(5);
  REQUIRE(raw.send(FrameType::hello, wire::encode(hello)));
  REQUIRE(raw.receive()->header.kind() == FrameType::challenge);
  std::vector<std::byte> proof(32);
  const auto descriptor = wire::encode(raw_descriptor(hello.instance));
  proof.insert(proof.end(), descriptor.begin(), descriptor.end());
  REQUIRE(raw.send(FrameType::proof, std::move(proof)));
  REQUIRE(raw.receive()->header.kind() == FrameType::ready);
  return raw;
}

/// The payload of the next frame of that kind; others are dropped.
inline std::vector<std::byte> next_of(RawSocket& raw, FrameType kind) {
  for (;;) {
    auto got = raw.receive();
    REQUIRE(got.has_value());
    if (got->header.kind() == kind) return got->payload;
  }
}

}  // namespace mc::xfer::test
