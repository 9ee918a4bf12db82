// Reads of cached blocks into the pages of a pipeline stage, beside its chunks.

#include "node/stage_reads.h"

#include "bench.h"
#include "node/stage.h"

namespace stage_reads_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;

namespace {

struct StageBench : Bench<Stage, StageOptions> {
  StageBench() : Bench(wire::Role::stage, 16, options()) {}
  static StageOptions options() {
    StageOptions o;
    o.leader = "p0";
    o.chunk_tokens = 128;
    o.slots = {.base = 1 << 20, .slot_bytes = 4096, .row_bytes = 16};
    return o;
  }
};

/// A chunk of p0's into pages 1 and 2.
wire::StageRun run_of(uint64_t number) {
  wire::StageRun run;
  run.run = number, run.req = "r", run.leader = "p0", run.leader_instance = instance(1), run.stages = 2;
  run.decode = "d0", run.decode_instance = instance(2);
  run.tokens.assign(128, 5);
  run.pages = {1, 2};
  run.sample = true;
  return run;
}

}  // namespace

TEST_CASE(
    "node/stage_reads: a stage reads cached blocks for its leader alone, and computes nothing into their pages then") {
  StageBench b;
  wire::StageRead asked;
  asked.read = 5, asked.node = "p1", asked.instance = instance(4), asked.pages = {1, 2}, asked.first_layer = 1;
  asked.offsets = {4096, 12288}, asked.crcs = {{8, 9}};
  CHECK(all<Read>(b.from("p1", 4, asked)).empty());  // not its leader
  auto reads = all<Read>(b.from("p0", 1, asked));
  REQUIRE(reads.size() == 1);
  CHECK((reads[0].peer == "p1" && reads[0].pool == 0 && reads[0].slices.size() == 2));
  CHECK((reads[0].slices[1].page == 2 && reads[0].slices[1].remote_offset == 12288 && reads[0].slices[1].crc == 9));
  const uint64_t block_read = reads[0].read;
  // A chunk that is older than the read of one of its pages is refused; a younger one waits for the end of the read.
  Actions out = b.from("p0", 1, run_of(4));
  CHECK(sent<wire::StageDone>(out, "p0").at(0).code == Code::io);
  reads = all<Read>(b.from("p0", 1, run_of(6)));
  REQUIRE(reads.size() == 1);
  CHECK(reads[0].pool == Stage::kSlotPool);
  CHECK(all<RunChunk>(b.give(ReadDone{reads[0].read, Code::ok, ""})).empty());
  // A second read, older than that chunk, is refused.
  asked.pages = {7, 8};
  const auto refused = sent<wire::StageReadDone>(b.from("p0", 1, asked), "p0");
  CHECK((refused.at(0).code == Code::busy && refused[0].refused));
  out = b.give(ReadDone{block_read, Code::corrupt, "flipped"});
  const auto ended = sent<wire::StageReadDone>(out, "p0");
  CHECK((ended.at(0).code == Code::corrupt && !ended[0].refused));
  CHECK(all<RunChunk>(out).size() == 1);
}

TEST_CASE("node/stage_reads: reads of other layers of the same pages are under way together, of the same ones not") {
  StageBench b;
  wire::StageRead asked;  // the stage has layers 0 and 1
  asked.node = "p1", asked.instance = instance(4), asked.pages = {1, 2}, asked.offsets = {4096, 12288};
  asked.read = 5, asked.first_layer = 0, asked.crcs = {{8, 9}};
  CHECK(all<Read>(b.from("p0", 1, asked)).size() == 1);
  asked.read = 6, asked.first_layer = 1;
  CHECK(all<Read>(b.from("p0", 1, asked)).size() == 1);
  asked.read = 7;
  CHECK(sent<wire::StageReadDone>(b.from("p0", 1, asked), "p0").at(0).code == Code::busy);
  // A chunk into these pages waits for both.
  const auto chunk = all<Read>(b.from("p0", 1, run_of(8)));
  REQUIRE(chunk.size() == 1);
  CHECK(all<RunChunk>(b.give(ReadDone{chunk[0].read, Code::ok, ""})).empty());
}

TEST_CASE("node/stage_reads: a read that does not fit the stage is refused with the numbers") {
  StageBench b;
  wire::StageRead sound;
  sound.read = 5, sound.node = "p1", sound.instance = instance(4), sound.pages = {1}, sound.first_layer = 1;
  sound.offsets = {0}, sound.crcs = {{8}};
  const auto answer = [&](const wire::StageRead& asked) {
    const Actions out = b.from("p0", 1, asked);
    CHECK(all<Read>(out).empty());
    const auto done = sent<wire::StageReadDone>(out, "p0").at(0);
    CHECK((done.refused && done.code == (asked.instance == sound.instance ? Code::invalid : Code::peer_lost)));
    CHECK(b.machine.load().last_error == "a read of blocks was refused: " + done.message);
    return done.message;
  };
  wire::StageRead asked = sound;
  asked.first_layer = 2;
  CHECK(answer(asked).find("layers 2..3, it has 0..2") != std::string::npos);
  asked = sound, asked.pages = {16};
  CHECK(answer(asked).find("page 16 of 16") != std::string::npos);
  asked = sound, asked.crcs = {{8, 9}};
  CHECK(answer(asked) == "2 checksums of 1 pages");
  asked = sound, asked.offsets = {};
  CHECK(answer(asked) == "0 addresses of 1 pages");
  asked = sound, asked.instance = instance(77);
  CHECK(answer(asked) == "p1 is not the process that the conductor listed here");
  CHECK(b.machine.idle());
}

TEST_CASE("node/stage_reads: a read that its leader cancels ends early, and no other node can cancel it") {
  StageBench b;
  wire::StageRead asked;
  asked.read = 5, asked.node = "p1", asked.instance = instance(4), asked.pages = {2, 1}, asked.first_layer = 1;
  asked.offsets = {4096, 12288}, asked.crcs = {{8, 9}};
  const auto reads = all<Read>(b.from("p0", 1, asked));
  REQUIRE(reads.size() == 1);
  CHECK(all<CancelRead>(b.from("p1", 4, wire::StageReadCancel{5})).empty());
  CHECK(all<CancelRead>(b.from("p0", 1, wire::StageReadCancel{6})).empty());
  const auto cancelled = all<CancelRead>(b.from("p0", 1, wire::StageReadCancel{5}));
  REQUIRE(cancelled.size() == 1);
  CHECK(cancelled[0].read == reads[0].read);
  const auto done = sent<wire::StageReadDone>(b.give(ReadDone{reads[0].read, Code::cancelled, ""}), "p0");
  CHECK(done.at(0).code == Code::cancelled);
  CHECK(b.machine.idle());
}

TEST_CASE("node/stage_reads: a read into pages of a chunk that is here is refused, and taken once the chunk has gone") {
  StageBench b;
  const auto chunk = all<Read>(b.from("p0", 1, run_of(4)));
  REQUIRE(chunk.size() == 1);
  wire::StageRead asked;
  asked.read = 5, asked.node = "p1", asked.instance = instance(4), asked.pages = {2, 3}, asked.first_layer = 1;
  asked.offsets = {4096, 12288}, asked.crcs = {{8, 9}};
  CHECK(sent<wire::StageReadDone>(b.from("p0", 1, asked), "p0").at(0).code == Code::busy);
  b.from("p0", 1, wire::Cancel{"r", 1, "failed"});
  b.give(ReadDone{chunk[0].read, Code::cancelled, ""});
  asked.read = 6;
  CHECK(all<Read>(b.from("p0", 1, asked)).size() == 1);
}

}  // namespace stage_reads_test
