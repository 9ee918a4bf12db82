// Twelve transfers that are under way when a process is killed: what the kill tests over tcp, shm and rdma share.
#pragma once

#include <vector>

#include "base/rng.h"
#include "pair.h"

namespace mc::xfer::test {

/// Twelve transfers with the child "holder": all of its "kv" into `local`, its two halves by turns, or `local` into its
/// "landing".
struct Twelve {
  std::vector<BatchId> batches;
  uint32_t kv = 0;

  Twelve(Node& reader, PeerId peer, std::span<std::byte> local, bool writes, uint32_t sum) {
    const size_t arena = local.size() / 2;
    kv = reader->descriptor(peer)->find("kv")->id;
    const uint32_t landing = reader->descriptor(peer)->find("landing")->id;
    for (size_t i = 0; i < 12; ++i) {
      Request request{.op = writes ? Op::write : Op::read,
                      .peer = peer,
                      .local = local.subspan(i % 2 * arena, arena),
                      .buffer = writes ? landing : kv};
      if (!writes) request.crc32c = sum;
      auto batch = reader->submit({{request}}, in(kLong), i);
      REQUIRE_OK(batch);
      batches.push_back(*batch);
    }
  }

  /// Somewhere in the middle: waits until a random number of them is done, up to three.
  void finish_some(Node& reader, Rng& rng) {
    for (uint64_t wait_for = rng.below(4); wait_for > 0; --wait_for) {
      const Event event = reader.wait(Event::Kind::batch_done);
      CHECK_MESSAGE(event.code == Code::ok, event.text);
      REQUIRE_OK(reader->close(event.batch, in(kLong)));
      std::erase(batches, event.batch);
    }
  }

  /// After the kill: every batch ends, well or as lost; how many were lost.
  size_t finish_all(Node& reader) {
    size_t lost = 0;
    for (const BatchId batch : batches) {
      const Event event = reader.done(batch);
      CHECK_MESSAGE((event.code == Code::ok || event.code == Code::peer_lost), event.text);
      if (event.code == Code::peer_lost) ++lost;
      REQUIRE_OK(reader->close(batch, in(kLong)));
    }
    return lost;
  }
};

/// Nothing of what is over is left in the engine.
inline void check_nothing_held(Node& node) {
  const Counters counters = node->counters();
  CHECK(counters.slices_in_flight == 0);
  CHECK(counters.quarantined_bytes == 0);
  CHECK(counters.batches_open == 0);
  CHECK(counters.checksum_failures == 0);
}

}  // namespace mc::xfer::test
