// Prompts that a decode node computes itself, by the machine and the compute together: alone, beside the rows of other
// requests in one pass, behind cached blocks, and cancelled.

#include <algorithm>

#include "count.h"
#include "decode_node.h"
#include "shallow_model.h"

#if !defined(__SANITIZE_THREAD__)  // which takes the stacks of the emulated GPU's fibers for one
namespace inline_decode_test {

using namespace mc;
using namespace mc::host;
using mc::host::bench::DecodeNode;
using mc::host::bench::instance_of;

namespace {

const wire::Sampling kGreedy{.temperature = 0, .logprobs = 1};
const wire::Sampling kPenalised{
    .temperature = 0.9, .top_p = 0.95, .frequency_penalty = 0.7, .repetition_penalty = 1.2, .seed = 11};

struct InlineNode {
  std::shared_ptr<gpu::EmulatedDriver> driver;
  DecodeNode node;

  explicit InlineNode(bool on_device, uint32_t steps_max)
      : driver(on_device ? std::make_shared<gpu::EmulatedDriver>() : nullptr),
        node({.model = test::shallow_model(),
              .dtype = on_device ? "bf16" : "f32",
              .driver = driver,
              .steps_max = steps_max,
              .pages = 16,
              .inline_tokens = 128}) {
    node.keeps_answers = true;
  }
  void start(const std::string& req, const std::vector<uint32_t>& ids, uint32_t max_tokens,
             const wire::Sampling& sampling = kGreedy) {
    wire::PrefillStart start{.decode = "d0", .decode_instance = instance_of(50)};
    start.spec.req = req, start.spec.ids = ids;
    start.spec.ns = node.options.kv.id();
    start.spec.prefill_attention = start.spec.decode_attention = node.options.kv.attention;
    start.spec.sampling = sampling;
    start.spec.stopping.max_tokens = max_tokens;
    node.give(node::Received{NodeId(node::kConductor), instance_of(99), start});
  }
  /// Handles events until `stop` holds; at most `most`.
  template <class Stop>
  void run(Stop stop, int most = 400) {
    for (; most > 0 && !stop(); --most) node.give(node.next());
    REQUIRE(stop());
  }
  void run() {
    run([&] { return node.machine->idle(); });
  }
};

std::vector<uint32_t> ids_of(uint32_t first, size_t count) {
  std::vector<uint32_t> ids(count);
  for (size_t i = 0; i < count; ++i) ids[i] = 3 + (first + 7 * static_cast<uint32_t>(i)) % 200;
  return ids;
}

using Answers = std::map<std::string, std::vector<uint32_t>>;
Answers tokens_of(const DecodeNode& node) {
  Answers out;
  for (const auto& [req, rows] : node.answers)
    for (size_t i = 0; i < rows.size(); ++i) {
      CHECK(rows[i].index == i);
      out[req].push_back(rows[i].token);
    }
  return out;
}

struct Asked {
  std::string req;
  std::vector<uint32_t> ids;
  uint32_t max_tokens;
  wire::Sampling sampling;
};
const std::vector<Asked>& asked() {
  static const std::vector<Asked> all = {{"a", ids_of(1, 62), 6, kGreedy},  // over the end of a page
                                         {"b", ids_of(2, 5), 9, kPenalised},
                                         {"c", ids_of(3, 128), 4, kGreedy},  // whole pages
                                         {"d", ids_of(4, 100), 3, kPenalised}};
  return all;
}

/// How many steps a node has under way, for each run beside each other. The quick tier leaves out one step on a device:
/// there prompts that have the node to themselves take the same way.
std::vector<uint32_t> steps_of(bool on_device) {
  if (!on_device) return {1};
  return test::is_full() ? std::vector<uint32_t>{1, 2} : std::vector<uint32_t>{2};
}

/// Each request has the node to itself.
Answers serve_apart(bool on_device) {
  Answers out;
  for (const Asked& r : asked()) {
    InlineNode on(on_device, 1);
    on.start(r.req, r.ids, r.max_tokens, r.sampling);
    on.run();
    CHECK(on.node.followed_chunks == 0);
    out.merge(tokens_of(on.node));
  }
  return out;
}

}  // namespace

TEST_CASE("host/inline_decode: prompts beside decode rows give the answers of prompts that are computed alone") {
  for (const bool on_device : {false, true}) {
    const Answers apart = serve_apart(on_device);
    REQUIRE(apart.size() == asked().size());
    for (const Asked& r : asked()) CHECK(apart.at(r.req).size() == r.max_tokens);
    for (const uint32_t steps_max : steps_of(on_device)) {
      CAPTURE(on_device);
      CAPTURE(steps_max);
      InlineNode on(on_device, steps_max);
      for (const Asked& r : asked()) on.start(r.req, r.ids, r.max_tokens, r.sampling);
      on.run();
      CHECK(on.node.chunks == 4);
      CHECK(on.node.followed_chunks >= 2);
      CHECK(on.node.failures.empty());
      CHECK(tokens_of(on.node) == apart);
      if (on.driver) CHECK_FALSE(on.driver->gpu().broken_rule().has_value());
    }
  }
}

TEST_CASE("host/inline_decode: an inlined prompt and a request of the prefill kind share the batch") {
  for (const bool on_device : {false, true}) {
    InlineNode alone(on_device, 1);
    alone.start("a", ids_of(1, 62), 6);
    alone.run();
    InlineNode on(on_device, on_device ? 2 : 1);
    on.node.join("p", 30, kGreedy, 20);  // its KV comes from a prefill node
    on.start("a", ids_of(1, 62), 6);
    on.run([&] { return on.node.answers["a"].size() >= 2; });
    on.node.join("q", 40, kGreedy, 5);
    on.run();
    CHECK(on.node.followed_chunks == 1);
    CHECK(on.node.failures.empty());
    CHECK(on.node.answers.at("p").size() == 19);  // the prefill node had the first one
    CHECK(tokens_of(alone.node).at("a") == [&] {
      std::vector<uint32_t> tokens;
      for (const auto& row : on.node.answers.at("a")) tokens.push_back(row.token);
      return tokens;
    }());
  }
}

TEST_CASE("host/inline_decode: blocks of an earlier prompt are reused, and the answer is that of the whole prompt") {
  for (const bool on_device : {false, true}) {
    const auto ids = ids_of(1, 128);
    InlineNode whole(on_device, 1);
    whole.start("r", ids, 5);
    whole.run();
    InlineNode on(on_device, 1);
    on.start("before", {ids.begin(), ids.begin() + 70}, 2);
    on.run();
    on.start("r", ids, 5);
    on.run();
    CHECK(on.node.machine->inlined().cached_tokens == 64);
    CHECK(tokens_of(on.node).at("r") == tokens_of(whole.node).at("r"));
    CHECK(on.node.failures.empty());
  }
}

TEST_CASE("host/inline_decode: a prompt that is cancelled leaves the node idle and the other answers as they are") {
  for (const bool on_device : {false, true}) {
    InlineNode alone(on_device, 1);
    alone.start("a", ids_of(1, 20), 8);
    alone.run();
    InlineNode on(on_device, on_device ? 2 : 1);
    on.start("a", ids_of(1, 20), 8);
    on.run([&] { return on.node.answers["a"].size() >= 2; });
    on.start("b", ids_of(2, 128), 8);
    on.run([&] { return on.node.chunks == 2; });
    on.node.give(node::Received{NodeId(node::kConductor), instance_of(99), wire::Cancel{"b", 1, "client_gone"}});
    on.run();
    CHECK(tokens_of(on.node).at("a") == tokens_of(alone.node).at("a"));
    CHECK_FALSE(on.node.answers.contains("b"));
  }
}

}  // namespace inline_decode_test
#endif
