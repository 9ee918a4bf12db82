// The leader's view of a pipeline: slots of activations, chunks in flow, members.

#include "node/pipeline.h"

#include "bench.h"

using namespace mc;
using namespace mc::node;

TEST_CASE("node/pipeline: a slot is free when the next stage has read it, or after its deadline") {
  HandedSlots slots;
  const TimePoint now = TimePoint{} + 10s;
  CHECK(slots.take(1) == ActivationSlots::kEach);
  CHECK(slots.take(2) == ActivationSlots::kEach + 1);
  CHECK_FALSE(slots.take(3));
  CHECK_FALSE(slots.is_sound(2));  // run 1 has neither a compute nor a deadline
  slots.handed_on(1, now + 1s);
  CHECK(slots.is_sound(2));
  CHECK(slots.next_wakeup() == now + 1s);
  slots.free_late(now);
  CHECK(slots.slot_of(1) == ActivationSlots::kEach);
  slots.free_late(now + 1s);
  CHECK_FALSE(slots.slot_of(1));
  CHECK(slots.next_wakeup() == kNever);
  CHECK(slots.take(3) == ActivationSlots::kEach);
  slots.free_others(2);
  CHECK_FALSE(slots.slot_of(3));
  slots.free(2);
  CHECK(slots.is_sound(0));
}

TEST_CASE("node/pipeline: chunks are done in order, each when every later stage has told its part") {
  ChunkFlow flow;
  flow.add(7, 0, 2, 3);
  flow.add(9, 2, 4, 3);
  for (const uint32_t stage : {1u, 2u}) ChunkFlow::told(flow.at(9), stage);
  CHECK_FALSE(flow.take_done());
  ChunkFlow::told(flow.at(7), 2);
  CHECK(ChunkFlow::waits_for(flow.at(7), 1));
  CHECK_FALSE(ChunkFlow::waits_for(flow.at(7), 2));
  CHECK_FALSE(flow.take_done());
  ChunkFlow::told(flow.at(7), 1);
  CHECK(flow.take_done()->first == 7);
  CHECK(flow.take_done()->second.end_block == 4);
  CHECK(flow.empty());
}

TEST_CASE("node/pipeline: only a listed process of role stage is a member, and layers must be counted alike") {
  const std::string leader = "p0";
  Peers peers{bench::instance(1)};
  wire::Peers list{1, {}};
  list.peers = {{"p0.1", bench::instance(2), wire::Role::stage, "", {}},
                {"p0.2", bench::instance(3), wire::Role::prefill, "", {}}};
  peers.take(list);
  const Pipeline pipeline(leader, peers, 3, 6);
  CHECK(pipeline.member(1) != nullptr);
  CHECK(pipeline.missing() == 2u);
  CHECK(pipeline.sender({"p0.1", bench::instance(2), wire::StageTaken{}}) == 1u);
  CHECK_FALSE(pipeline.sender({"p0.1", bench::instance(9), wire::StageTaken{}}));
  CHECK_FALSE(pipeline.sender({"p0.3", bench::instance(2), wire::StageTaken{}}));
  wire::StageDone done;
  done.first_layer = 2;
  done.crcs = {{1, 2}, {3, 4}};
  CHECK(pipeline.objection(done, 1, 2) == "");
  CHECK(pipeline.objection(done, 1, 3) == "reported 2 checksums for 3 blocks");
  CHECK(pipeline.objection(done, 2, 2).find("computed layers 2..4, its part of 3 stages is 4..6") == 0);
}
