// The leader of a pipeline at a bench. Its later stages are only names, me.1, me.2 and so on.
#pragma once

#include "bench.h"
#include "node/prefill.h"

namespace mc::node::bench {

inline constexpr uint32_t kChunk = 128;

inline ActivationSlots slots() {
  return {.base = 1 << 20, .slot_bytes = 4096, .row_bytes = 16};
}

struct LeaderBench : Bench<Prefill, PrefillOptions> {
  explicit LeaderBench(uint32_t of = 2) : Bench(wire::Role::prefill, 32, options(of), of), stages(of) { members(true); }
  static PrefillOptions options(uint32_t stages) {
    PrefillOptions o;
    o.chunk_tokens = kChunk;
    o.stages = stages;
    o.slots = slots();
    return o;
  }
  Actions members(bool stage, uint64_t version = 2) {
    wire::Peers peers{version, {{"d0", instance(2), wire::Role::decode, "sim:d0", {}}}};
    for (uint32_t n = 1; stage && n < stages; ++n)
      peers.peers.push_back(
          {"me." + std::to_string(n), instance(static_cast<uint8_t>(6 + n)), wire::Role::stage, "sim:s", {}});
    return from_conductor(peers);
  }
  /// The member and p1, which may hold blocks.
  Actions members_and_holder(uint64_t version) {
    return from_conductor(wire::Peers{version,
                                      {{"d0", instance(2), wire::Role::decode, "sim:d0", {}},
                                       {"p1", instance(4), wire::Role::prefill, "sim:p1", {}},
                                       {"me.1", instance(7), wire::Role::stage, "sim:s", {}}}});
  }
  /// A prompt of two blocks and a part, whose blocks are fetched from p1: what p1 is asked for.
  wire::LeaseRequest fetch(const std::string& req) {
    members_and_holder(3);
    wire::RequestSpec spec = spec_of(req, std::vector<uint32_t>(2 * 64 + 5, 5));
    const auto asked = sent<wire::LeaseRequest>(
        from_conductor(wire::PrefillStart{std::move(spec), "d0", instance(2), {{"p1", instance(4), 0, 2, 0}}}), "p1");
    REQUIRE(asked.size() == 1);
    from("d0", 2, wire::KvAccept{req, 1, 0});
    return asked[0];
  }
  Actions start(const std::string& req, size_t tokens) {
    wire::RequestSpec spec = spec_of(req, std::vector<uint32_t>(tokens, 5));
    spec.ns = namespace_of(layout_of(stages)).id();
    from_conductor(wire::PrefillStart{std::move(spec), "d0", instance(2), {}});
    return from("d0", 2, wire::KvAccept{req, 1, 0});
  }
  Actions computed(const RunChunk& run) {
    for (uint32_t layer = run.first_layer; layer < run.end_layer; ++layer)
      give(LayerDone{run.run, layer, run.start / 64, std::vector<uint32_t>(run.pages.size() - run.start / 64, 1)});
    ChunkDone done;
    done.run = run.run, done.activations_crc = 77;
    return give(done);
  }
  Actions staged(uint64_t run, uint32_t token = 0) {
    return from("me.1", 7, wire::StageDone{run, 1, Code::ok, "", {{3, 4}}, token, {}, {}});
  }

  uint32_t stages;
};

inline const std::string kTo(kConductor);

}  // namespace mc::node::bench
