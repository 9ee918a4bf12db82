// A pipeline's later stage alone, and its leader alone: chunks in flight, slots, and members that die.

#include "node/stage.h"

#include "leader_bench.h"

namespace stage_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;

namespace {

struct StageBench : Bench<Stage, StageOptions> {
  explicit StageBench(StageOptions o = options()) : Bench(wire::Role::stage, 16, o, o.stages) {}
  static StageOptions options() {
    StageOptions o;
    o.leader = "p0";
    o.chunk_tokens = kChunk;
    o.slots = slots();
    return o;
  }
  static wire::StageRun run_of(uint64_t number, uint32_t start = 0) {
    wire::StageRun run;
    run.run = number, run.req = "r", run.leader = "p0", run.leader_instance = instance(1), run.stages = 2;
    run.decode = "d0", run.decode_instance = instance(2);
    run.start = start;
    run.tokens.assign(kChunk, 5);
    for (uint32_t page = 0; page < (start + kChunk) / 64; ++page) run.pages.push_back(page + 1);
    run.sample = true;
    return run;
  }
};

}  // namespace

TEST_CASE("node/stage: ranges cover all layers once, and names tell members from other nodes") {
  for (uint32_t layers : {2u, 6u, 7u, 80u})
    for (uint32_t stages = 1; stages <= std::min(layers, 9u); ++stages) {
      uint32_t next = 0;
      for (uint32_t s = 0; s < stages; ++s) {
        CHECK(stage_layers(layers, s, stages).first == next);
        next = stage_layers(layers, s, stages).end;
      }
      CHECK(next == layers);
    }
  CHECK(is_stage_of("p0.1", "p0"));
  CHECK_FALSE(is_stage_of("p0.x", "p0"));
  CHECK_FALSE(is_stage_of("p01", "p0"));
  CHECK_FALSE(is_stage_of("p0.", "p0"));
  CHECK_FALSE(is_stage_of("p0.1.2", "p0"));
  const auto dotted = parse_stage_name(stage_name("rack.7", 12));
  REQUIRE(dotted);
  CHECK((dotted->leader == "rack.7" && dotted->stage == 12));
  for (const char* other : {"p0", "p0.0", "p0.01", "p0.-1", "p0.1000", ""}) CHECK_FALSE(parse_stage_name(other));
}

TEST_CASE("node/stage: a chunk is read, computed, announced to the decode node and told to the leader") {
  StageBench b;
  const auto reads = all<Read>(b.from("p0", 1, StageBench::run_of(9)));
  REQUIRE(reads.size() == 1);
  CHECK(reads[0].slices[0].bytes == kChunk * 16);
  CHECK(b.machine.local_offset(reads[0].pool, reads[0].slices[0].page) >= slots().base);
  const Actions read = b.give(ReadDone{reads[0].read, Code::ok, ""});
  CHECK(sent<wire::StageTaken>(read, "p0").size() == 1);
  const auto runs = all<RunChunk>(read);
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].first_layer == 1);
  CHECK(runs[0].sample);
  const auto notes = all<SendNotify>(b.give(LayerDone{runs[0].run, 1, 0, {21, 22}}));
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].to == "d0");
  CHECK(notes[0].ready.layer == 1);
  ChunkDone done;
  done.run = runs[0].run, done.sampled.token = 6;
  const auto told = sent<wire::StageDone>(b.give(done), "p0");
  REQUIRE(told.size() == 1);
  CHECK(told[0].run == 9);
  CHECK(told[0].code == Code::ok);
  CHECK(told[0].crcs == std::vector<std::vector<uint32_t>>{{21, 22}});
  CHECK(told[0].token == 6);
  CHECK(b.machine.idle());
}

TEST_CASE("node/stage: a leader without members refuses what operators ask at once with the stage that is missing") {
  Prefill leader(LeaderBench::worker_options(wire::Role::prefill, 32, 2, 0), LeaderBench::options(2));
  wire::PrefillStart start;
  start.spec = spec_of("#operators-1", std::vector<uint32_t>(kChunk, 5), 1);
  Actions out;
  leader.handle(Received{NodeId(kOperators), InstanceId{}, std::move(start)}, TimePoint{} + 1s, out);
  const auto failed = sent<wire::Failed>(out, std::string(kOperators));
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].code == "peer_lost");
  CHECK(failed[0].message.find("lists no stage 1;") != std::string::npos);
  CHECK(failed[0].message.find("start the conductor and the stages") != std::string::npos);
  CHECK(leader.idle());
}

TEST_CASE("node/stage: a pipeline computes what operators ask of its leader, and announces it to nobody") {
  LeaderBench b;
  wire::PrefillStart start;
  start.spec = spec_of("#operators-1", std::vector<uint32_t>(2 * kChunk, 5), 1);
  const auto first = all<RunChunk>(b.give(Received{NodeId(kOperators), InstanceId{}, std::move(start)}));
  REQUIRE(first.size() == 1);
  const Actions handed = b.computed(first[0]);
  const auto runs = sent<wire::StageRun>(handed, "me.1");
  const auto second = all<RunChunk>(handed);
  REQUIRE(runs.size() == 1);
  REQUIRE(second.size() == 1);
  CHECK(runs[0].decode.empty());
  CHECK(all<SendNotify>(handed).empty());
  REQUIRE(sent<wire::StageRun>(b.computed(second[0]), "me.1").size() == 1);
  b.staged(first[0].run);
  const auto told = sent<wire::FirstToken>(b.staged(second[0].run, 9), std::string(kOperators));
  REQUIRE(told.size() == 1);
  CHECK(told[0].token == 9);
  CHECK(b.machine.idle());

  StageBench stage;
  wire::StageRun run = StageBench::run_of(9);
  run.decode = runs[0].decode, run.decode_instance = runs[0].decode_instance, run.decode_has = runs[0].decode_has;
  const auto reads = all<Read>(stage.from("p0", 1, run));
  REQUIRE(reads.size() == 1);
  const auto computing = all<RunChunk>(stage.give(ReadDone{reads[0].read, Code::ok, ""}));
  REQUIRE(computing.size() == 1);
  CHECK(all<SendNotify>(stage.give(LayerDone{computing[0].run, 1, 0, {21, 22}})).empty());
}

TEST_CASE("node/stage: what does not fit its pages is refused with the numbers") {
  StageBench b;
  auto far = StageBench::run_of(1);
  far.pages[1] = 16;
  const auto refused = sent<wire::StageDone>(b.from("p0", 1, far), "p0");
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].code == Code::unsupported);
  CHECK(refused[0].message.find("page 16 of 16") != std::string::npos);
  auto few = StageBench::run_of(2);
  few.pages.pop_back();
  CHECK(sent<wire::StageDone>(b.from("p0", 1, few), "p0").size() == 1);
  CHECK(b.machine.idle());
}

TEST_CASE("node/stage: strangers are not heard, but an unlisted process of the right name gets its slot back") {
  StageBench b;
  CHECK(b.from("p1", 4, StageBench::run_of(3)).empty());
  const Actions out = b.from("p0", 8, StageBench::run_of(4));
  CHECK(all<Read>(out).empty());
  const auto taken = sent<wire::StageTaken>(out, "p0");
  REQUIRE(taken.size() == 1);
  CHECK(taken[0].run == 4);
  const auto done = sent<wire::StageDone>(out, "p0");
  REQUIRE(done.size() == 1);
  CHECK(done[0].code == Code::peer_lost);
  CHECK(b.machine.idle());
}

TEST_CASE("node/stage: what a stage cannot announce it tells its leader, and the decode node hears no part of it") {
  StageBench b;
  const wire::StageAnnounce sound{"r", 1, "d0", instance(2), 0, {3, 4}, 1, {{21, 22}}};
  CHECK(all<SendNotify>(b.from("p0", 1, sound)).size() == 1);
  const auto refused = [&](const wire::StageAnnounce& asked, uint8_t number, const std::string& words) {
    const Actions out = b.from("p0", number, asked);
    CHECK(all<SendNotify>(out).empty());
    const auto failed = sent<wire::Failed>(out, "p0");
    REQUIRE(failed.size() == 1);
    CHECK(failed[0].req == "r");
    CHECK(failed[0].retryable == (number != 1));
    CHECK_MESSAGE(failed[0].message.find(words) != std::string::npos, failed[0].message);
  };
  refused(sound, 8, "p0 is not the process");
  auto other = sound;
  other.first_layer = 0;
  refused(other, 1, "asked for layers 0..1, it has 1..2");
  other = sound;
  other.crcs[0].pop_back();
  refused(other, 1, "1 checksums of 2 pages");
  other = sound;
  other.pages[1] = 16;
  refused(other, 1, "page 16 of 16");
  CHECK(b.from("p1", 4, sound).empty());
}

TEST_CASE("node/stage: cached blocks are checked before a request's first chunk, and what changed is told") {
  for (const bool good : {true, false}) {
    CAPTURE(good);
    StageBench b;
    // The decode node has the first block already: it is checked all the same.
    const Actions told = b.from("p0", 1, wire::StageAnnounce{"r", 1, "d0", instance(2), 1, {1, 2}, 1, {{21, 22}}});
    CHECK(all<SendNotify>(told).at(0).ready.first_block == 1);
    const auto checks = all<RunChunk>(told);
    REQUIRE(checks.size() == 1);
    CHECK(checks[0].tokens.empty());
    CHECK(checks[0].pages == std::vector<uint32_t>{1, 2});
    CHECK(checks[0].prefix_crcs == std::vector<uint32_t>{21, 22});
    CHECK(checks[0].first_layer == 1);
    auto asked = StageBench::run_of(9, 128);
    asked.reused = 128;
    const auto reads = all<Read>(b.from("p0", 1, asked));
    CHECK(all<RunChunk>(b.give(ReadDone{reads.at(0).read, Code::ok, ""})).empty());  // the check is under way
    ChunkDone done{.run = checks[0].run};
    if (!good) done.code = Code::corrupt, done.rotten = {1};
    const Actions out = b.give(done);
    const auto runs = all<RunChunk>(out);
    CHECK(runs.size() == (good ? 1 : 0));
    if (good) {
      CHECK(runs.at(0).reused == 128);
      b.give(ChunkDone{.run = runs.at(0).run});
    } else {
      CHECK(sent<wire::StageRotten>(out, "p0").at(0).pages == std::vector<uint32_t>{2});
      CHECK(sent<wire::StageDone>(out, "p0").at(0).code == Code::corrupt);
    }
    CHECK(b.machine.idle());
  }
}

TEST_CASE("node/stage: a request whose cached blocks were not checked is not computed") {
  StageBench b;
  auto asked = StageBench::run_of(9, 128);
  asked.reused = 128;
  const auto reads = all<Read>(b.from("p0", 1, asked));
  const Actions out = b.give(ReadDone{reads.at(0).read, Code::ok, ""});
  CHECK(all<RunChunk>(out).empty());
  CHECK(sent<wire::StageDone>(out, "p0").at(0).code == Code::corrupt);
  CHECK(b.machine.idle());
}

TEST_CASE("node/stage: the leader drops blocks that changed at a stage, and the requests that read them") {
  LeaderBench b;
  auto runs = all<RunChunk>(b.start("r", kChunk + 5));
  const uint64_t first = runs.at(0).run;
  runs = all<RunChunk>(b.computed(runs[0]));
  b.computed(runs.at(0));
  b.staged(first);
  b.from("me.1", 7, wire::StageDone{runs[0].run, 1, Code::ok, "", {{3}}, 9, {}, {}});
  b.from("d0", 2, wire::KvDone{"r", 1});
  const auto asked = sent<wire::StageAnnounce>(b.start("s", kChunk + 7), "me.1");
  const wire::StageRotten found{{asked.at(0).pages.at(1), 31, 1'000'000}};
  CHECK(sent<wire::Failed>(b.from("p1", 4, found), kTo).empty());
  const auto failed = sent<wire::Failed>(b.from("me.1", 7, found), kTo);
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].code == "corrupt");
  CHECK(failed[0].retryable);
  CHECK(b.machine.stats().checksum_failures == 1);
}

TEST_CASE("node/stage: a request whose cached blocks a stage cannot announce ends, for both sides") {
  LeaderBench b;
  b.start("r", 4 * kChunk);
  const wire::Failed failed{"r", 1, "prefill", "invalid", "stage me.1: page 16 of 16", false, 0, 0};
  CHECK(sent<wire::Failed>(b.from("p1", 4, failed), kTo).empty());
  const Actions out = b.from("me.1", 7, failed);
  CHECK(sent<wire::Failed>(out, kTo).size() == 1);
  CHECK(sent<wire::Cancel>(out, "d0").size() == 1);
}

TEST_CASE("node/stage: a slot that nobody says to have read is free at the deadline of its chunk") {
  StageOptions options = StageBench::options();
  options.stages = 3;
  StageBench b(options);
  const wire::Peers all_here{2,
                             {{"p0", instance(1), wire::Role::prefill, "sim:p0", {}},
                              {"p0.2", instance(9), wire::Role::stage, "sim:p0.2", {}}}};
  b.from_conductor(all_here);
  uint64_t handed = 0;
  std::vector<RunChunk> runs;
  for (uint64_t run = 1; run <= 3; ++run) {
    auto asked = StageBench::run_of(run);
    asked.stages = 3, asked.budget_ms = 5000;
    const auto reads = all<Read>(b.from("p0", 1, asked));
    REQUIRE(reads.size() == 1);
    runs = all<RunChunk>(b.give(ReadDone{reads[0].read, Code::ok, ""}));
    CHECK(runs.size() == (run <= 2 ? 1 : 0));  // two slots to hand on from
    if (runs.empty()) break;
    ChunkDone done;
    done.run = runs[0].run;
    handed += sent<wire::StageRun>(b.give(done), "p0.2").size();
  }
  CHECK(handed == 2);
  CHECK(b.machine.next_wakeup() <= after(b.now, 5s));
  CHECK(all<RunChunk>(b.wait(5s)).size() == 1);
}

TEST_CASE("node/stage: a slot is free when the node that was handed it has read it, whoever knows its number") {
  StageOptions options = StageBench::options();
  options.stages = 3;
  StageBench b(options);
  b.from_conductor(wire::Peers{2,
                               {{"p0", instance(1), wire::Role::prefill, "sim:p0", {}},
                                {"p0.2", instance(9), wire::Role::stage, "sim:p0.2", {}}}});
  std::vector<uint64_t> handed;
  for (uint64_t run = 1; run <= 3; ++run) {
    auto asked = StageBench::run_of(run);
    asked.stages = 3;
    const auto reads = all<Read>(b.from("p0", 1, asked));
    REQUIRE(reads.size() == 1);
    const auto runs = all<RunChunk>(b.give(ReadDone{reads[0].read, Code::ok, ""}));
    if (runs.empty()) break;
    ChunkDone done;
    done.run = runs[0].run;
    for (const auto& message : sent<wire::StageRun>(b.give(done), "p0.2")) handed.push_back(message.run);
  }
  REQUIRE(handed.size() == 2);
  for (const auto& [name, n] : {std::pair{"p0.3", uint8_t{7}}, {"p0.2", uint8_t{8}}, {"p1", uint8_t{4}}})
    CHECK(all<RunChunk>(b.from(name, n, wire::StageTaken{handed[0]})).empty());
  CHECK(all<RunChunk>(b.from("p0.2", 9, wire::StageTaken{handed[0]})).size() == 1);

  LeaderBench leader(3);
  auto runs = all<RunChunk>(leader.start("r", 4 * kChunk));
  runs = all<RunChunk>(leader.computed(runs.at(0)));
  const auto last = sent<wire::StageRun>(leader.computed(runs.at(0)), "me.1").at(0);
  for (const auto& [name, n] : {std::pair{"me.2", uint8_t{8}}, {"me.1", uint8_t{20}}, {"d0", uint8_t{2}}})
    CHECK(all<RunChunk>(leader.from(name, n, wire::StageTaken{last.run})).empty());
  CHECK(all<RunChunk>(leader.from("me.1", 7, wire::StageTaken{last.run})).size() == 1);
}

TEST_CASE("node/stage: the leader's slots are free at the deadline of their chunk too") {
  LeaderBench b;
  auto runs = all<RunChunk>(b.start("r", 4 * kChunk));
  runs = all<RunChunk>(b.computed(runs.at(0)));
  CHECK(all<RunChunk>(b.computed(runs.at(0))).empty());  // no slot
  b.wait(60s);                                           // the request ends, nobody says StageTaken
  CHECK(all<RunChunk>(b.start("s", 10)).size() == 1);
}

TEST_CASE("node/stage: a chunk of a leader that counts other stages is refused with both counts, and not computed") {
  StageBench b;
  auto other = StageBench::run_of(1);
  other.stages = 3;
  const Actions out = b.from("p0", 1, other);
  CHECK(all<Read>(out).empty());
  CHECK(sent<wire::StageTaken>(out, "p0").size() == 1);
  const auto refused = sent<wire::StageDone>(out, "p0");
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].code == Code::unsupported);
  CHECK(refused[0].message.find("the leader has 3 stages, this process 2") != std::string::npos);
  CHECK(b.machine.idle());
}

TEST_CASE("node/stage: the leader takes no token from a stage that computed other layers than its own") {
  using Told = std::vector<std::vector<uint32_t>>;
  const std::pair<uint32_t, Told> cases[] = {{0, {{3, 4}}}, {1, {}}, {1, {{3, 4}, {3, 4}}}, {0, {{3, 4}, {3, 4}}}};
  for (const auto& told : cases) {
    CAPTURE(told.first);
    CAPTURE(told.second.size());
    LeaderBench b;
    const auto runs = all<RunChunk>(b.start("r", kChunk));
    b.computed(runs.at(0));
    const Actions out =
        b.from("me.1", 7, wire::StageDone{runs[0].run, told.first, Code::ok, "", told.second, 0, {}, {}});
    CHECK(sent<wire::FirstToken>(out, kTo).empty());
    const auto failed = sent<wire::Failed>(out, kTo);
    REQUIRE(failed.size() == 1);
    CHECK(failed[0].message.find("its part of 2 stages is 1..2") != std::string::npos);
  }
}

TEST_CASE("node/stage: a stage that tells its part twice does not stand for another one") {
  LeaderBench b(3);
  const auto runs = all<RunChunk>(b.start("r", kChunk));
  b.computed(runs.at(0));
  CHECK(sent<wire::FirstToken>(b.staged(runs[0].run), kTo).empty());
  CHECK(sent<wire::FirstToken>(b.staged(runs[0].run), kTo).empty());
  const auto first = sent<wire::FirstToken>(
      b.from("me.2", 8, wire::StageDone{runs[0].run, 2, Code::ok, "", {{3, 4}}, 9, {}, {}}), kTo);
  REQUIRE(first.size() == 1);
  CHECK(first[0].token == 9);
}

TEST_CASE("node/stage: the last stage tells the prompt's log-probabilities, and the leader hands them on") {
  LeaderBench b;
  wire::RequestSpec spec = spec_of("r", std::vector<uint32_t>(kChunk, 5));
  spec.ns = namespace_of(layout_of(2)).id();
  spec.prompt_logprobs = 0;
  b.from_conductor(wire::PrefillStart{spec, "d0", instance(2), {}});
  const auto runs = all<RunChunk>(b.from("d0", 2, wire::KvAccept{"r", 1, 0}));
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].targets.empty());  // the first layers foretell nothing
  const auto handed = sent<wire::StageRun>(b.computed(runs[0]), "me.1");
  REQUIRE(handed.size() == 1);
  CHECK(handed[0].prompt_logprobs == 0);
  CHECK(handed[0].targets == std::vector<uint32_t>(spec.ids.begin() + 1, spec.ids.end()));
  wire::StageDone done{runs[0].run, 1, Code::ok, "", {{3, 4}}, 9, {}, {}};
  done.prompt_logprobs.resize(kChunk - 1);
  const auto told = sent<wire::PromptLogprobs>(b.from("me.1", 7, done), kTo);
  REQUIRE(told.size() == 1);
  CHECK(told[0].first == 1);
  CHECK(told[0].rows.size() == kChunk - 1);
}

TEST_CASE("node/stage: two chunks are read ahead, one is computed at a time, and a cancel ends them all") {
  StageBench b;
  std::vector<Read> reads;
  for (uint64_t run = 1; run <= 3; ++run)
    for (const auto& read : all<Read>(b.from("p0", 1, StageBench::run_of(run)))) reads.push_back(read);
  REQUIRE(reads.size() == 2);
  CHECK(all<RunChunk>(b.give(ReadDone{reads[1].read, Code::ok, ""})).empty());  // the first is not here yet
  const auto runs = all<RunChunk>(b.give(ReadDone{reads[0].read, Code::ok, ""}));
  REQUIRE(runs.size() == 1);
  CHECK(b.from("p0", 8, wire::Cancel{"r", 1, "failed"}).empty());  // of another process than the leader
  const Actions out = b.from("p0", 1, wire::Cancel{"r", 1, "failed"});
  CHECK(sent<wire::StageDone>(out, "p0").size() == 3);
  CHECK(all<CancelRun>(out).size() == 1);
  ChunkDone done;
  done.run = runs[0].run, done.code = Code::cancelled;
  CHECK(sent<wire::StageDone>(b.give(done), "p0").empty());  // told already
  CHECK(b.machine.idle());
}

TEST_CASE("node/stage: the leader computes on while later stages do, as far as its slots go") {
  LeaderBench b;
  auto runs = all<RunChunk>(b.start("r", 4 * kChunk));
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].end_layer == 1);
  std::vector<uint64_t> handed;
  for (int i = 0; i < 2; ++i) {
    const Actions out = b.computed(runs[0]);
    for (const auto& run : sent<wire::StageRun>(out, "me.1")) {
      CHECK(run.activations_crc == 77);
      handed.push_back(run.run);
    }
    runs = all<RunChunk>(out);
    CHECK(runs.size() == (i == 0 ? 1 : 0));  // then both slots wait to be read
  }
  REQUIRE(handed.size() == 2);
  runs = all<RunChunk>(b.from("me.1", 7, wire::StageTaken{handed[0]}));
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].start == 2 * kChunk);
}

TEST_CASE("node/stage: the first token comes with the last chunk of the last stage, and blocks with every layer") {
  LeaderBench b;
  auto runs = all<RunChunk>(b.start("r", kChunk + 5));
  Actions out = b.computed(runs.at(0));
  const uint64_t first = runs[0].run;
  runs = all<RunChunk>(out);
  REQUIRE(runs.size() == 1);
  b.computed(runs[0]);
  CHECK(sent<wire::FirstToken>(b.staged(first), kTo).empty());
  CHECK(b.machine.shelf()->pool.counts().cached == 2);
  out = b.from("me.1", 7, wire::StageDone{runs[0].run, 1, Code::ok, "", {{3}}, 9, {}, {}});
  REQUIRE(sent<wire::FirstToken>(out, kTo).size() == 1);
  CHECK(sent<wire::FirstToken>(out, kTo)[0].token == 9);
  CHECK(sent<wire::KvComplete>(out, "d0").size() == 1);
  b.from("d0", 2, wire::KvDone{"r", 1});
  CHECK(b.machine.idle());
  // The cached blocks of the next request: ours by notify, those of the stage by asking it.
  out = b.start("s", kChunk + 7);
  const auto asked = sent<wire::StageAnnounce>(out, "me.1");
  REQUIRE(asked.size() == 1);
  CHECK(asked[0].pages.size() == 2);
  CHECK(asked[0].crcs == std::vector<std::vector<uint32_t>>{{3, 4}});
}

TEST_CASE("node/stage: a member that dies takes its requests with it, and no cached block is used without it") {
  LeaderBench b;
  const auto runs = all<RunChunk>(b.start("r", kChunk + 5));
  const uint64_t first = runs.at(0).run;
  b.computed(runs[0]);
  b.staged(first);
  CHECK(b.machine.shelf()->pool.counts().cached == 2);
  const auto failed = sent<wire::Failed>(b.members(false, 3), kTo);
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].retryable);
  CHECK(failed[0].message.find("me.1") != std::string::npos);
  CHECK(b.machine.shelf()->pool.counts().cached == 0);
  // A request waits until the conductor must know as well, then goes back to it.
  const Actions waits =
      b.from_conductor(wire::PrefillStart{spec_of("s", std::vector<uint32_t>(10, 5)), "d0", instance(2), {}});
  CHECK(sent<wire::Failed>(waits, kTo).empty());
  CHECK(sent<wire::Failed>(b.wait(2100ms), kTo).size() == 1);
}

TEST_CASE("node/stage: a node that is called like a stage and is none takes nothing with it when it is lost") {
  LeaderBench b;
  const auto list = [](uint64_t version, bool namesake) {
    wire::Peers out{
        version,
        {{"d0", instance(2), wire::Role::decode, "sim:d0", {}}, {"me.1", instance(7), wire::Role::stage, "sim:s", {}}}};
    if (namesake) out.peers.push_back({"me.2", instance(9), wire::Role::prefill, "sim:p", {}});
    return out;
  };
  b.from_conductor(list(3, true));
  REQUIRE(all<RunChunk>(b.start("r", kChunk + 5)).size() == 1);
  CHECK(sent<wire::Failed>(b.from_conductor(list(4, false)), kTo).empty());
}

TEST_CASE("node/stage: a chunk that comes after a younger one is refused, and not computed") {
  StageBench b;
  CHECK(all<Read>(b.from("p0", 1, StageBench::run_of(9, kChunk))).size() == 1);
  const Actions out = b.from("p0", 1, StageBench::run_of(8));
  CHECK(all<Read>(out).empty());
  CHECK(sent<wire::StageTaken>(out, "p0").size() == 1);
  const auto refused = sent<wire::StageDone>(out, "p0");
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].run == 8);
  CHECK(refused[0].code == Code::io);
  CHECK(refused[0].message.find("chunk 8 came after chunk 9") != std::string::npos);
}

TEST_CASE("node/stage: a chunk of the leader's earlier life is refused by a later stage, whoever hands it on") {
  StageOptions options = StageBench::options();
  options.stages = 3, options.stage = 2;
  StageBench b(options);
  b.from_conductor(wire::Peers{2,
                               {{"p0", instance(21), wire::Role::prefill, "sim:p0", {}},
                                {"p0.1", instance(8), wire::Role::stage, "sim:p0.1", {}}}});
  const auto ask = [&](uint64_t number, uint8_t leader) {
    auto asked = StageBench::run_of(number);
    asked.stages = 3, asked.leader_instance = instance(leader);
    return b.from("p0.1", 8, asked);
  };
  CHECK(all<Read>(ask(1, 21)).size() == 1);
  const Actions late = ask(7, 1);
  CHECK(all<Read>(late).empty());
  CHECK(sent<wire::StageTaken>(late, "p0.1").size() == 1);
  CHECK(all<Read>(ask(2, 21)).size() == 1);
}

TEST_CASE("node/stage: blocks are cached in order, none before a chunk in front of them is whole") {
  LeaderBench b;
  auto runs = all<RunChunk>(b.start("r", 2 * kChunk));
  const uint64_t first = runs.at(0).run;
  runs = all<RunChunk>(b.computed(runs[0]));
  b.computed(runs.at(0));
  // The stage was never given the first chunk, or its news of it is late: what it says of the second may be worth
  // nothing.
  CHECK(sent<wire::FirstToken>(b.staged(runs[0].run, 9), kTo).empty());
  CHECK(b.machine.shelf()->pool.counts().cached == 0);
  const auto token = sent<wire::FirstToken>(b.staged(first, 4), kTo);
  CHECK(b.machine.shelf()->pool.counts().cached == 4);
  REQUIRE(token.size() == 1);
  CHECK(token[0].token == 9);
}

TEST_CASE("node/stage: a leader that comes back and counts from 1 again leaks no slot of its earlier chunks") {
  StageOptions options = StageBench::options();
  options.stages = 3;
  StageBench b(options);
  const auto listed = [&](uint64_t version, uint8_t leader) {
    b.from_conductor(wire::Peers{version,
                                 {{"p0", instance(leader), wire::Role::prefill, "sim:p0", {}},
                                  {"p0.2", instance(9), wire::Role::stage, "sim:p0.2", {}}}});
  };
  uint64_t handed = 0;
  for (uint8_t life = 0; life < 4; ++life) {  // twice as many as there are slots
    const uint8_t leader = life == 0 ? 1 : 20 + life;
    listed(2 + life, leader);
    auto asked = StageBench::run_of(1);
    asked.stages = 3, asked.leader_instance = instance(leader);
    const auto reads = all<Read>(b.from("p0", leader, asked));
    REQUIRE(reads.size() == 1);
    const auto runs = all<RunChunk>(b.give(ReadDone{reads[0].read, Code::ok, ""}));
    REQUIRE(runs.size() == 1);
    ChunkDone done;
    done.run = runs[0].run;
    handed += sent<wire::StageRun>(b.give(done), "p0.2").size();
    b.machine.check();
  }
  CHECK(handed == 4);
}

}  // namespace stage_test
