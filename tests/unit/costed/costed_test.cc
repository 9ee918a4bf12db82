// Costed nodes, whole and as stages of a pipeline. Chunks take a millisecond, and the activations of a stage are copied
// to the next stage by hand.
#include "costed/costed.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "sched/pipeline.h"
#include "test.h"

namespace costed_test {

using namespace mc;
using namespace mc::costed;

namespace {

constexpr uint32_t kBlock = 16, kChunk = 32, kPages = 8, kVocab = 2048;

sched::Profile quick(double s_per_token = 1e-5) {
  sched::Profile profile;
  profile.name = "quick", profile.layers = 10;
  profile.cost = {.prefill_s = 1e-3, .prefill_s_per_token = s_per_token};
  profile.chunk_s = 1e-4;
  return profile;
}

std::vector<uint32_t> tokens_of(uint32_t count) {
  std::vector<uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 7);
  return tokens;
}

uint32_t answer_to(std::span<const uint32_t> tokens) {
  uint64_t tag = Standin::kRoot;
  for (const uint32_t token : tokens) tag = Standin::extend(tag, token);
  return Standin::token_after(tag, kVocab);
}

/// One process: a whole node, or a stage of a pipeline.
struct Node {
  explicit Node(const sched::Profile& profile, uint32_t stage = 0, uint32_t stages = 1) {
    options.profile = profile;
    options.layout = Standin::layout(profile.layers, kBlock);
    if (stages > 1) options.layout.stage = stage_layers(options.layout.layers, stage, stages);
    options.vocab = kVocab, options.page_count = kPages;
    options.share = sched::stage_share(profile.layers, stage, stages);
    options.slots = {.base = kPages * options.layout.page_bytes(), .slot_bytes = 4096, .row_bytes = sizeof(uint64_t)};
    memory.resize(options.slots.offset(node::ActivationSlots::count()) / sizeof(uint64_t));
    options.pool = reinterpret_cast<std::byte*>(memory.data());
    costed = std::move(Costed::open(options)).value();
  }

  std::byte* slot(uint32_t number) const { return options.pool + options.slots.offset(number); }
  std::byte* extent(uint32_t page, uint32_t layer) const {
    return options.pool + page * options.layout.page_bytes() + options.layout.layer_offset(layer);
  }

  /// A chunk of the prompt `tokens`, whose blocks have the pages 1, 2, ...
  node::RunChunk chunk(std::span<const uint32_t> tokens, uint32_t start, uint32_t reused = 0) {
    node::RunChunk run;
    run.run = ++runs, run.start = start, run.reused = reused;
    const auto own = tokens.subspan(start, std::min<size_t>(kChunk, tokens.size() - start));
    run.tokens.assign(own.begin(), own.end());
    for (uint32_t page = 1; page * kBlock < start + own.size() + kBlock; ++page) run.pages.push_back(page);
    run.sample = start + own.size() == tokens.size() && options.layout.held().end == options.layout.layers;
    run.slots = {1, 2};
    return run;
  }
  /// The checksums that the blocks of these pages have, as prefix_crcs.
  node::RunChunk check(std::vector<uint32_t> pages, std::vector<uint32_t> crcs) {
    node::RunChunk run;
    run.run = ++runs, run.pages = std::move(pages), run.prefix_crcs = std::move(crcs);
    return run;
  }

  node::ChunkDone compute(node::RunChunk run) {
    costed->submit(std::move(run));
    return done();
  }
  /// The end of the run under way. Keeps the checksums of its layers.
  node::ChunkDone done() {
    layers.clear();
    for (;;) {
      auto event = costed->next();
      if (!event) {
        pollfd wait{costed->event_fd(), POLLIN, 0};
        REQUIRE(::poll(&wait, 1, 60'000) == 1);
      } else if (auto* layer = std::get_if<node::LayerDone>(&*event)) {
        layers.push_back(std::move(*layer));
      } else if (auto* load = std::get_if<node::PagesLoaded>(&*event)) {
        loaded.push_back(std::move(*load));
      } else {
        return std::get<node::ChunkDone>(*std::move(event));
      }
    }
  }

  CostedOptions options;
  std::vector<uint64_t> memory;
  std::unique_ptr<Costed> costed;
  std::vector<node::LayerDone> layers;
  std::vector<node::PagesLoaded> loaded;
  uint64_t runs = 0;
};

void hand_on(const Node& from, Node& to) {
  std::memcpy(to.slot(1), from.slot(2), kChunk * sizeof(uint64_t));
}

}  // namespace

TEST_CASE("costed: stages take their layers' shares of the time and leave the bytes of a whole node") {
  const auto tokens = tokens_of(2 * kChunk + 5);
  for (uint32_t stages = 2; stages <= 4; ++stages) {
    CAPTURE(stages);
    Node whole(quick());
    std::vector<std::unique_ptr<Node>> members;
    for (uint32_t s = 0; s < stages; ++s) members.push_back(std::make_unique<Node>(quick(), s, stages));
    for (uint32_t start = 0; start < tokens.size(); start += kChunk) {
      CAPTURE(start);
      const node::ChunkDone alone = whole.compute(whole.chunk(tokens, start));
      REQUIRE_MESSAGE(alone.code == Code::ok, alone.what);
      const double alone_s = to_seconds(alone.elapsed);
      CHECK(alone_s == doctest::Approx(1e-4 + 1e-5 * (start < 2 * kChunk ? kChunk : 5) + (start == 0 ? 1e-3 : 0)));
      for (uint32_t s = 0; s < stages; ++s) {
        CAPTURE(s);
        Node& member = *members[s];
        if (s > 0) hand_on(*members[s - 1], member);
        const node::ChunkDone part = member.compute(member.chunk(tokens, start));
        REQUIRE_MESSAGE(part.code == Code::ok, part.what);
        CHECK(to_seconds(part.elapsed) == doctest::Approx(alone_s * sched::stage_share(10, s, stages)).epsilon(1e-4));
        const LayerRange held = member.options.layout.held();
        REQUIRE(member.layers.size() == held.count());
        for (uint32_t n = 0; n < held.count(); ++n) {
          CHECK(member.layers[n].layer == held.first + n);
          CHECK(member.layers[n].crcs == whole.layers[held.first + n].crcs);
          CHECK(member.layers[n].first_block == start / kBlock);
        }
        if (s + 1 == stages && start + kChunk >= tokens.size()) {
          CHECK(part.sampled.token == answer_to(tokens));
          CHECK(alone.sampled.token == answer_to(tokens));
        }
      }
    }
    for (const auto& member : members)
      for (uint32_t page = 1; page <= 5; ++page)
        for (uint32_t layer = member->options.layout.held().first; layer < member->options.layout.held().end; ++layer)
          CHECK(std::memcmp(member->extent(page, layer), whole.extent(page, layer),
                            whole.options.layout.layer_bytes()) == 0);
  }
}

TEST_CASE("costed: a stage refuses activations of another chunk, of another layer, and none at all") {
  const auto tokens = tokens_of(2 * kChunk);
  Node first(quick(), 0, 3), second(quick(), 1, 3), third(quick(), 2, 3);
  const std::string words = "the activations of positions 0..32 are of other tokens or layers than the chunk";
  const auto refuses = [&](Node& stage) {
    const node::ChunkDone done = stage.compute(stage.chunk(tokens, 0));
    CHECK(done.code == Code::corrupt);
    CHECK(done.what == words);
    CHECK(stage.layers.empty());
  };
  refuses(second);
  REQUIRE(first.compute(first.chunk(tokens, 0)).code == Code::ok);
  hand_on(first, third);
  refuses(third);
  REQUIRE(first.compute(first.chunk(tokens, kChunk)).code == Code::ok);
  hand_on(first, second);
  refuses(second);
  REQUIRE(first.compute(first.chunk(tokens, 0)).code == Code::ok);
  hand_on(first, second);
  CHECK(second.compute(second.chunk(tokens, 0)).code == Code::ok);
}

TEST_CASE("costed: what needs a model or a tokenizer is refused by name") {
  const auto tokens = tokens_of(20);
  const auto refused = [&](const std::function<void(node::RunChunk&)>& ask) {
    Node node(quick());
    node::RunChunk run = node.chunk(tokens, 0);
    ask(run);
    const node::ChunkDone done = node.compute(std::move(run));
    CHECK(done.code == Code::unsupported);
    return done.what;
  };
  CHECK(refused([](node::RunChunk& run) { run.sampling.embed = true; }) ==
        "this worker models times and has no model, so it computes no embedding");
  CHECK(refused([](node::RunChunk& run) { run.sampling.grammar = "{}"; }) ==
        "this worker models times and has no tokenizer, so it cannot force the form of an answer");
}

TEST_CASE("costed: cached blocks that changed in memory are named before anything is computed") {
  const auto tokens = tokens_of(2 * kChunk);
  for (const uint32_t stage : {0u, 1u}) {
    CAPTURE(stage);
    Node first(quick(), 0, 2), second(quick(), 1, 2);
    REQUIRE(first.compute(first.chunk(tokens, 0)).code == Code::ok);
    hand_on(first, second);
    REQUIRE(second.compute(second.chunk(tokens, 0)).code == Code::ok);
    Node& member = stage == 0 ? first : second;
    std::vector<uint32_t> crcs;  // [block][layer]
    for (uint32_t block = 0; block < 2; ++block)
      for (const node::LayerDone& layer : member.layers) crcs.push_back(layer.crcs[block]);
    node::ChunkDone done = member.compute(member.check({1, 2}, crcs));
    CHECK_MESSAGE(done.code == Code::ok, done.what);
    CHECK(done.elapsed == Duration(0));
    CHECK(member.layers.empty());
    *member.extent(2, member.options.layout.held().end - 1) ^= std::byte{1};
    done = member.compute(member.check({1, 2}, crcs));
    CHECK(done.code == Code::corrupt);
    CHECK(done.rotten == std::vector<uint32_t>{1});
    CHECK(done.what == "1 cached blocks changed in memory; the first is block 1 of the prompt");
    node::RunChunk next = member.chunk(tokens, kChunk, kChunk);
    next.prefix_crcs = crcs;
    done = member.compute(std::move(next));
    CHECK(done.rotten == std::vector<uint32_t>{1});
    CHECK(member.layers.empty());
  }
}

TEST_CASE("costed: a stage checks the whole of a reused prefix before its first chunk") {
  const auto tokens = tokens_of(3 * kChunk);
  Node first(quick(), 0, 2);
  REQUIRE(first.compute(first.chunk(tokens, 0)).code == Code::ok);
  REQUIRE(first.compute(first.chunk(tokens, kChunk)).code == Code::ok);
  *first.extent(1, 0) ^= std::byte{1};
  const node::ChunkDone done = first.compute(first.chunk(tokens, 2 * kChunk, 2 * kChunk));
  CHECK(done.code == Code::corrupt);
  CHECK(done.what == "stand-in KV of block 0, layer 0: not written");
}

TEST_CASE("costed: a chunk waits for the layers of its prefix, and finds those that are wrong") {
  const auto prompt = tokens_of(2 * kChunk);
  for (const bool sound : {true, false}) {
    CAPTURE(sound);
    Node node(quick());
    REQUIRE(node.compute(node.chunk(prompt, 0)).code == Code::ok);
    node::RunChunk run = node.chunk(prompt, kChunk, kChunk);
    run.layers_here = 1;
    const uint64_t number = run.run;
    std::vector<std::byte> late(node.extent(1, 2), node.extent(1, 2) + node.options.layout.layer_bytes());
    std::memset(node.extent(1, 2), 0, late.size());
    node.costed->submit(std::move(run));
    std::vector<uint32_t> layers;
    const auto take_layer = [&] {
      for (;;) {
        if (const auto event = node.costed->next()) return layers.push_back(std::get<node::LayerDone>(*event).layer);
        pollfd wait{node.costed->event_fd(), POLLIN, 0};
        REQUIRE(::poll(&wait, 1, 60'000) == 1);
      }
    };
    const auto is_still = [&] {  // longer than the chunk would take
      pollfd wait{node.costed->event_fd(), POLLIN, 0};
      return ::poll(&wait, 1, 20) == 0 && !node.costed->next();
    };
    take_layer();
    CHECK(is_still());
    node.costed->prefix_here(number, 2);
    take_layer();
    CHECK(is_still());
    CHECK(layers == std::vector<uint32_t>{0, 1});
    if (sound) std::memcpy(node.extent(1, 2), late.data(), late.size());
    node.costed->prefix_here(number, 4);
    const node::ChunkDone done = node.done();
    CHECK(done.code == (sound ? Code::ok : Code::corrupt));
    CHECK(node.layers.size() == (sound ? 2u : 0u));
    if (sound) CHECK(done.sampled.token == answer_to(prompt));
  }
}

TEST_CASE("costed: a chunk that is cancelled ends before its time, also when it waits behind a check") {
  const auto tokens = tokens_of(kChunk);
  for (const bool waits : {false, true}) {
    CAPTURE(waits);
    Node node(quick(100), 0, 2);  // an hour
    if (waits) node.costed->submit(node.check({}, {}));
    node::RunChunk run = node.chunk(tokens, 0);
    const uint64_t number = run.run;
    node.costed->submit(std::move(run));
    node.costed->cancel(number);
    if (waits) CHECK(node.done().code == Code::ok);
    const node::ChunkDone done = node.done();
    CHECK(done.run == number);
    CHECK(done.code == Code::cancelled);
    CHECK(node.layers.empty());
  }
}

TEST_CASE("costed: a run ends behind the copies of its prefix to the device, which find blocks that have changed") {
  sched::Profile profile = quick();
  profile.kv_bytes_per_token = 1000;
  profile.paths.load = {.bytes_per_s = 320'000, .latency_s = 0};  // 0.1 s for two blocks
  Node node(profile);
  const auto tokens = tokens_of(2 * kBlock + 5);
  REQUIRE(node.compute(node.chunk(tokens, 0)).code == Code::ok);
  node::LoadPages load{71, {1, 2}, {5, 6}, {}};
  for (size_t block = 0; block < 2; ++block)
    for (const node::LayerDone& layer : node.layers) load.crcs.push_back(layer.crcs.at(block));
  node::RunChunk run = node.chunk(tokens, 2 * kBlock, 2 * kBlock);
  run.device_pages = {5, 6, 7};
  node.costed->submit(load);
  const node::ChunkDone done = node.compute(run);
  REQUIRE_MESSAGE(done.code == Code::ok, done.what);
  CHECK(done.sampled.token == answer_to(tokens));
  REQUIRE(node.loaded.size() == 1);
  CHECK(node.loaded[0].load == 71);
  CHECK(node.loaded[0].code == Code::ok);
  CHECK(to_seconds(node.loaded[0].busy) == doctest::Approx(0.1));
  *node.extent(2, 3) ^= std::byte{1};
  node.costed->submit(load);
  run.run = 72, run.device_pages = {3, 4, 7};  // of no load
  node.loaded.clear();
  while (node.loaded.empty()) (void)node.compute(run), run.run += 1;
  CHECK(node.loaded[0].code == Code::corrupt);
  CHECK(node.loaded[0].rotten == std::vector<uint32_t>{1});
}

}  // namespace costed_test
