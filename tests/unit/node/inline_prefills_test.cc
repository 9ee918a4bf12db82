// Short prompts that the decode machine computes itself: their runs beside the steps, their ends, and what the
// conductor is told.

#include "bench.h"
#include "node/decode.h"

namespace inline_prefills_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;

namespace {

const std::string kTo(kConductor);
constexpr uint32_t kFirst = 9, kNext = 4;

struct InlineBench : Bench<Decode, DecodeOptions> {
  explicit InlineBench(uint32_t pages = 16, uint32_t steps_max = 1)
      : Bench(wire::Role::decode, pages, {.steps_max = steps_max, .inline_tokens = 128}) {}
  Actions start(const wire::RequestSpec& spec) { return from_conductor(wire::PrefillStart{spec, "me", instance(50)}); }
  /// All layers of the chunk are sealed, and it ends.
  Actions computed(const RunChunk& run, Duration elapsed = 8ms) {
    const uint32_t blocks = static_cast<uint32_t>(run.pages.size()) - run.start / 64;
    for (uint32_t layer = 0; layer < 2; ++layer)
      CHECK(give(LayerDone{run.run, layer, run.start / 64, std::vector<uint32_t>(blocks, 70 + layer)}).empty());
    ChunkDone done{.run = run.run, .elapsed = elapsed};
    done.sampled.token = kFirst;
    return give(done);
  }
  Actions stepped(const RunStep& run, Duration elapsed = 2ms) {
    run.rows->out.assign(run.rows->in.size(), StepRow{});
    for (size_t i = 0; i < run.rows->in.size(); ++i) {
      run.rows->out[i].sampled.token = kNext;
      if ((run.rows->in[i].position + 1) % 64 == 0) run.rows->out[i].sealed_crcs.assign(2, 0);
    }
    return give(StepDone{run.run, Code::ok, "", run.rows, elapsed});
  }
  /// A request that was inlined decodes; returns its first step.
  RunStep running(const std::string& req, uint32_t first_id, uint32_t max_tokens = 100) {
    const auto chunks = all<RunChunk>(start(spec_of(req, ids_of(first_id, 10), max_tokens)));
    REQUIRE(chunks.size() == 1);
    const auto steps = all<RunStep>(computed(chunks[0]));
    REQUIRE(!steps.empty());
    return steps[0];
  }
  static std::vector<uint32_t> ids_of(uint32_t first, size_t count) {
    std::vector<uint32_t> ids(count, 5);
    ids[0] = first;
    return ids;
  }
};

/// The index of the first action of this kind; the number of actions if there is none.
template <class T>
size_t index_of(const Actions& actions) {
  size_t i = 0;
  while (i < actions.size() && !std::holds_alternative<T>(actions[i])) ++i;
  return i;
}

}  // namespace

TEST_CASE("node/inline_prefills: a short prompt is computed here, and its first token goes to the conductor") {
  InlineBench b;
  auto spec = spec_of("r", InlineBench::ids_of(1, 100), 3);
  const Actions begun = b.start(spec);
  const auto chunks = all<RunChunk>(begun);
  REQUIRE(chunks.size() == 1);
  CHECK(chunks[0].start == 0);
  CHECK(chunks[0].tokens == spec.ids);
  CHECK(chunks[0].pages.size() == 2);
  CHECK(chunks[0].sample);
  CHECK(chunks[0].prompt_tokens == 100);
  CHECK_FALSE(chunks[0].is_followed);  // no step comes
  CHECK(all<RunStep>(begun).empty());
  Actions out = b.computed(chunks[0]);
  const auto first = sent<wire::FirstToken>(out, kTo);
  REQUIRE(first.size() == 1);
  CHECK(first[0].token == kFirst);
  CHECK(first[0].finish_reason.empty());
  CHECK(first[0].report.compute_ms == doctest::Approx(8));
  CHECK(first[0].report.chunks == 1);
  REQUIRE(first[0].report.misses.size() == 2);  // the full block and the tail
  CHECK(first[0].report.misses[0].kind == wire::MissKind::cold);
  auto steps = all<RunStep>(out);
  REQUIRE(steps.size() == 1);
  CHECK(all<JoinBatch>(out).size() == 1);
  CHECK(steps[0].rows->in[0].token == kFirst);
  CHECK(steps[0].rows->in[0].position == 100);
  CHECK(steps[0].rows->in[0].joined);
  out = b.stepped(steps[0]);
  CHECK(sent<wire::Tokens>(out, kTo).at(0).rows.at(0).index == 1);
  out = b.stepped(all<RunStep>(out).at(0));
  CHECK(sent<wire::Tokens>(out, kTo).at(0).rows.at(0).finish_reason == "length");
  CHECK(all<LeaveBatch>(out).size() == 1);
  CHECK(b.machine.idle());
  CHECK(b.machine.inlined().requests == 1);
  CHECK(b.machine.load().prompt_tokens == 100);
  // Nobody but the conductor was told anything.
  for (const auto& action : out)
    if (const auto* message = std::get_if<Send>(&action)) CHECK(message->to == kConductor);
}

TEST_CASE("node/inline_prefills: the next prompt reuses the blocks here, and its sums are those of the chunk before") {
  InlineBench b;
  auto ids = InlineBench::ids_of(1, 128);
  b.computed(all<RunChunk>(b.start(spec_of("a", ids, 1))).at(0));
  CHECK(b.machine.idle());
  ids.resize(128 + 60, 6);
  const auto chunk = all<RunChunk>(b.start(spec_of("b", ids, 1))).at(0);
  CHECK(chunk.start == 128);
  CHECK(chunk.reused == 128);
  CHECK(chunk.tokens.size() == 60);
  CHECK(chunk.prefix_crcs == std::vector<uint32_t>{70, 71, 70, 71});
  const auto first = sent<wire::FirstToken>(b.computed(chunk), kTo);
  CHECK(first.at(0).report.cached_local == 128);
  CHECK(first.at(0).finish_reason == "length");
  // At least one token is computed: a prompt of whole blocks computes its last block again.
  ids.resize(128);
  const auto again = all<RunChunk>(b.start(spec_of("c", ids, 1))).at(0);
  CHECK(again.start == 64);
  CHECK(again.tokens.size() == 64);
  b.computed(again);
  CHECK(b.machine.idle());
}

TEST_CASE("node/inline_prefills: a chunk goes to the compute with the next step, which says nothing about step times") {
  for (const uint32_t steps_max : {1u, 2u}) {
    InlineBench b(16, steps_max);
    std::vector<RunStep> steps{b.running("old", 1)};
    Actions out = b.start(spec_of("new", InlineBench::ids_of(2, 20), 50));
    CHECK(all<RunChunk>(out).empty());  // the steps under way come first
    out = b.stepped(steps[0], 4ms);
    const double usual_ms = sent<wire::Tokens>(out, kTo).at(0).step_ms;
    CHECK(usual_ms == doctest::Approx(4));
    const auto chunks = all<RunChunk>(out);
    REQUIRE(chunks.size() == 1);
    CHECK(chunks[0].is_followed);
    const auto beside = all<RunStep>(out);
    REQUIRE(beside.size() == 1);
    // Between the chunk and its step, sequences join or leave, and no other run comes.
    for (size_t i = index_of<RunChunk>(out) + 1; i < index_of<RunStep>(out); ++i)
      CHECK_FALSE(std::holds_alternative<CollectSteps>(out[i]));
    CHECK(index_of<RunChunk>(out) < index_of<RunStep>(out));
    if (steps_max == 2) {  // the step that was under way before the chunk came
      const auto* second = &beside[0];
      CHECK(second->rows->in[0].token == RunRow::kFed);
      continue;
    }
    out = b.stepped(beside[0], 9ms);
    CHECK(sent<wire::Tokens>(out, kTo).at(0).step_ms == 0);
    CHECK(b.machine.load().tbt_s == doctest::Approx(4e-3));
    const auto alone = all<RunStep>(out);
    REQUIRE(alone.size() == 1);
    CHECK(alone[0].rows->in.size() == 1);
    const auto first = sent<wire::FirstToken>(b.computed(chunks[0], 9ms), kTo);
    CHECK(first.at(0).report.compute_ms == doctest::Approx(5));  // the pass without its step
    CHECK(all<RunStep>(b.stepped(alone[0])).at(0).rows->in.size() == 2);
  }
}

TEST_CASE("node/inline_prefills: one prompt is computed at a time, in order of arrival") {
  InlineBench b;
  const auto a = all<RunChunk>(b.start(spec_of("a", InlineBench::ids_of(1, 10), 1)));
  CHECK(all<RunChunk>(b.start(spec_of("b", InlineBench::ids_of(2, 10), 1))).empty());
  CHECK(all<RunChunk>(b.start(spec_of("c", InlineBench::ids_of(3, 10), 1))).empty());
  Actions out = b.computed(a.at(0));
  CHECK(sent<wire::FirstToken>(out, kTo).at(0).req == "a");
  CHECK(all<RunChunk>(out).at(0).tokens[0] == 2);
  out = b.computed(all<RunChunk>(out).at(0));
  CHECK(all<RunChunk>(out).at(0).tokens[0] == 3);
  b.computed(all<RunChunk>(out).at(0));
  CHECK(b.machine.idle());
}

TEST_CASE("node/inline_prefills: a request that ends under its chunk keeps its pages until the chunk has ended") {
  for (const bool by_deadline : {false, true}) {
    InlineBench b;
    auto spec = spec_of("r", InlineBench::ids_of(1, 100), 5);
    spec.deadline_ms = 500;
    const auto chunk = all<RunChunk>(b.start(spec)).at(0);
    b.start(spec_of("next", InlineBench::ids_of(2, 10), 1));
    const Actions out = by_deadline ? b.wait(1100ms) : b.from_conductor(wire::Cancel{"r", 1, "client_gone"});
    REQUIRE(all<CancelRun>(out).size() == 1);
    CHECK(all<CancelRun>(out)[0].run == chunk.run);
    const auto failed = sent<wire::Failed>(out, kTo);
    REQUIRE(failed.size() == (by_deadline ? 1 : 0));
    if (by_deadline) CHECK(failed[0].stage == "prefill");
    CHECK(all<RunChunk>(out).empty());  // the compute has the old one still
    CHECK(b.machine.shelf()->pool.state(chunk.pages[0]) == kv::PageState::owned);
    const Actions last = b.give(ChunkDone{.run = chunk.run, .code = Code::cancelled});
    CHECK(sent<wire::FirstToken>(last, kTo).empty());
    CHECK(sent<wire::Failed>(last, kTo).empty());
    const auto next = all<RunChunk>(last);
    REQUIRE(next.size() == 1);
    CHECK(b.machine.shelf()->pool.counts().owned == 1);
    b.computed(next[0]);
    CHECK(b.machine.idle());
    CHECK(b.machine.inlined().requests == 1);
  }
}

TEST_CASE("node/inline_prefills: a waiting prompt that is cancelled is not computed, and a newer attempt takes over") {
  InlineBench b;
  const auto a = all<RunChunk>(b.start(spec_of("a", InlineBench::ids_of(1, 10), 1))).at(0);
  b.start(spec_of("b", InlineBench::ids_of(2, 10), 1));
  auto again = spec_of("c", InlineBench::ids_of(3, 10), 1);
  b.start(again);
  again.attempt = 2;
  b.start(again);
  b.from_conductor(wire::Cancel{"b", 1, "client_gone"});
  const auto next = all<RunChunk>(b.computed(a));
  REQUIRE(next.size() == 1);
  const auto first = sent<wire::FirstToken>(b.computed(next[0]), kTo);
  CHECK(first.at(0).req == "c");
  CHECK(first.at(0).attempt == 2);
  CHECK(b.machine.idle());
}

TEST_CASE("node/inline_prefills: damaged blocks and a failed chunk end the request, and the blocks are dropped") {
  InlineBench b;
  auto ids = InlineBench::ids_of(1, 64);
  b.computed(all<RunChunk>(b.start(spec_of("a", ids, 1))).at(0));
  REQUIRE(b.machine.shelf()->pool.counts().cached == 1);
  ids.resize(90, 6);
  const auto chunk = all<RunChunk>(b.start(spec_of("b", ids, 5))).at(0);
  REQUIRE(chunk.start == 64);
  auto failed = sent<wire::Failed>(
      b.give(ChunkDone{.run = chunk.run, .code = Code::corrupt, .what = "changed in memory", .rotten = {0}}), kTo);
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].code == "corrupt");
  CHECK(failed[0].retryable);
  CHECK(b.machine.shelf()->pool.counts().cached == 0);
  CHECK(b.machine.stats().checksum_failures == 1);
  CHECK(b.machine.idle());
  const auto other = all<RunChunk>(b.start(spec_of("c", ids, 5))).at(0);
  CHECK(other.start == 0);
  failed = sent<wire::Failed>(b.give(ChunkDone{.run = other.run, .code = Code::io, .what = "device"}), kTo);
  CHECK(failed.at(0).stage == "prefill");
  CHECK(failed.at(0).retryable);
  const auto beyond = all<RunChunk>(b.start(spec_of("d", ids, 5))).at(0);
  failed = sent<wire::Failed>(b.give(ChunkDone{.run = beyond.run, .code = Code::unsupported, .what = "no model"}), kTo);
  CHECK(failed.at(0).code == "unsupported");
  CHECK_FALSE(failed.at(0).retryable);
  CHECK(b.machine.idle());
}

TEST_CASE("node/inline_prefills: what this node does not compute goes back to the conductor with the reason") {
  InlineBench b;
  const auto refused = [&](const wire::RequestSpec& spec) {
    const Actions out = b.start(spec);
    CHECK(all<RunChunk>(out).empty());
    const auto failed = sent<wire::Failed>(out, kTo);
    REQUIRE(failed.size() == 1);
    CHECK(failed[0].stage == "accept");
    CHECK(failed[0].retryable);
    return failed[0].code;
  };
  CHECK(refused(spec_of("long", InlineBench::ids_of(1, 129))) == "busy");  // no block of it is here
  auto scored = spec_of("scored", InlineBench::ids_of(1, 10));
  scored.prompt_logprobs = 0;
  CHECK(refused(scored) == "unsupported");
  auto foreign = spec_of("foreign", InlineBench::ids_of(1, 10));
  foreign.salt = "other";
  CHECK(refused(foreign) == "layout");
  auto tight = spec_of("tight", InlineBench::ids_of(1, 100));
  tight.tbt_slo_ms = 2;  // a step takes 2.1 ms
  CHECK(refused(tight) == "predicted_slo_miss");
  CHECK(b.machine.idle());
  tight.req = "alone", tight.tbt_slo_ms = 5;  // the chunk takes 12 ms, and nobody waits for it
  CHECK(all<RunChunk>(b.start(tight)).size() == 1);

  Bench<Decode, DecodeOptions> without(wire::Role::decode, 16, {});
  const auto failed = sent<wire::Failed>(
      without.from_conductor(wire::PrefillStart{spec_of("r", InlineBench::ids_of(1, 10)), "me", instance(50)}), kTo);
  CHECK(failed.at(0).code == "unsupported");
  // Only a conductor sends prompts.
  CHECK(b.from("p0", 1, wire::PrefillStart{spec_of("r", InlineBench::ids_of(1, 10)), "me", instance(50)}).empty());
}

TEST_CASE("node/inline_prefills: the bound of a running request holds for the gap that a chunk makes") {
  InlineBench b;
  auto running = spec_of("running", InlineBench::ids_of(1, 10), 100);
  running.tbt_slo_ms = 8;
  const auto step = all<RunStep>(b.computed(all<RunChunk>(b.start(running)).at(0)));
  REQUIRE(step.size() == 1);
  const auto failed = sent<wire::Failed>(b.start(spec_of("r", InlineBench::ids_of(2, 100), 5)), kTo);
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].code == "predicted_slo_miss");
  CHECK(failed[0].allowed_ms == 8);
  CHECK(failed[0].predicted_ms > 12);
  b.start(spec_of("short", InlineBench::ids_of(3, 10), 5));  // 3 ms and a step of 2.2 ms
  CHECK(all<RunChunk>(b.stepped(step[0])).size() == 1);
}

TEST_CASE("node/inline_prefills: a prompt waits for pages in turn, and gives them up to an older request") {
  InlineBench b(5);
  auto step = b.running("old", 1, 300);
  const auto wide = InlineBench::ids_of(2, 128);  // 3 pages with the one for the answer
  b.start(spec_of("young", wide, 100));
  Actions out = b.stepped(step);
  const auto chunk = all<RunChunk>(out);
  REQUIRE(chunk.size() == 1);
  // The old request decodes on until it needs more pages than are left.
  std::vector<wire::Preempted> preempted;
  for (int i = 0; i < 200 && preempted.empty(); ++i) {
    const auto steps = all<RunStep>(out);
    REQUIRE(steps.size() == 1);
    out = b.stepped(steps[0]);
    for (const auto& p : sent<wire::Preempted>(out, kTo)) preempted.push_back(p);
  }
  REQUIRE(preempted.size() == 1);
  CHECK(preempted[0].req == "young");
  CHECK(all<CancelRun>(out).at(0).run == chunk[0].run);
  CHECK(all<RunStep>(out).empty());  // the page comes with the end of the chunk
  out = b.give(ChunkDone{.run = chunk[0].run, .code = Code::cancelled});
  CHECK(all<RunStep>(out).size() == 1);
}

TEST_CASE("node/inline_prefills: a lost prefill node does not end an inlined request, a lost conductor does") {
  InlineBench b;
  const auto chunk = all<RunChunk>(b.start(spec_of("r", InlineBench::ids_of(1, 100), 5))).at(0);
  CHECK(sent<wire::Failed>(b.give(PeerLost{"p0", instance(1), "killed"}), kTo).empty());
  CHECK(b.machine.request_count() == 1);
  const Actions out = b.give(PeerLost{NodeId(kConductor), instance(kConductorNumber), "killed"});
  CHECK(all<CancelRun>(out).size() == 1);
  CHECK(b.machine.request_count() == 0);
  b.give(ChunkDone{.run = chunk.run, .code = Code::cancelled});
  CHECK(b.machine.idle());
}

}  // namespace inline_prefills_test
