// The decode machine and the compute on an emulated GPU with two steps under way: answers beside those of one step at a
// time, and what happens to a step when its requests end under it.

#include <algorithm>
#include <cstring>

#include "decode_node.h"
#include "shallow_model.h"

#if !defined(__SANITIZE_THREAD__)  // which takes the stacks of the emulated GPU's fibers for one
namespace ahead_decode_test {

using namespace mc;
using namespace mc::host;
using mc::host::bench::DecodeNode;
using Answers = std::map<std::string, std::vector<wire::TokenRow>>;

namespace {

struct EmulatedNode {
  std::shared_ptr<gpu::EmulatedDriver> driver;
  DecodeNode node;

  explicit EmulatedNode(uint32_t steps_max, const gpu::EmulatedHost& host = {})
      : driver(std::make_shared<gpu::EmulatedDriver>(host)),
        node({.model = test::shallow_model(), .dtype = "bf16", .driver = driver, .steps_max = steps_max, .pages = 8}) {
    node.keeps_answers = true;
  }
  void cancel(const std::string& req) {
    node.give(
        node::Received{NodeId(node::kConductor), mc::host::bench::instance_of(99), wire::Cancel{req, 1, "client"}});
  }
  /// Steps until nothing is under way; at most `most`.
  void run(int most = 40) {
    for (; most > 0 && !node.machine->idle(); --most) node.step();
    REQUIRE(node.machine->idle());
    REQUIRE(node.failed_steps == 0);
  }
};

const wire::Sampling kGreedy{.temperature = 0, .logprobs = 1};
const wire::Sampling kPenalised{
    .temperature = 0.9, .top_p = 0.95, .frequency_penalty = 0.7, .repetition_penalty = 1.2, .seed = 11};

/// Two requests, the second of which stops at `stop`, and one that joins after two steps.
Answers serve(uint32_t steps_max, uint32_t stop) {
  EmulatedNode on(steps_max);
  on.node.join("a", 62, kGreedy, 4);  // over the end of a page
  on.node.join("b", 5, kPenalised, 5, {stop});
  on.node.step();
  on.node.step();
  on.node.join("c", 9, kPenalised, 3);
  on.run();
  CHECK_FALSE(on.driver->gpu().broken_rule().has_value());
  return on.node.answers;
}

bool is_equal(const Answers& a, const Answers& b) {
  return std::ranges::equal(a, b, [](const auto& one, const auto& other) {
    return one.first == other.first && std::ranges::equal(one.second, other.second, [](const auto& x, const auto& y) {
             return x.token == y.token && x.index == y.index && x.finish_reason == y.finish_reason &&
                    x.logprobs == y.logprobs;
           });
  });
}

}  // namespace

TEST_CASE("host/ahead_decode: two steps under way give the answers of one at a time, with penalties, stops and joins") {
  const Answers whole = serve(1, 0xffffff);
  REQUIRE(whole.at("b").size() == 4);
  const uint32_t stop = whole.at("b")[2].token;
  CHECK(is_equal(serve(2, 0xffffff), whole));
  const Answers stopped = serve(1, stop);
  CHECK(stopped.at("b").size() <= 3);
  CHECK(stopped.at("b").back().finish_reason == "stop");
  CHECK(is_equal(serve(2, stop), stopped));
}

TEST_CASE("host/ahead_decode: a row in vain writes into no page of another request, and a cancelled one leaves none") {
  EmulatedNode on(2);
  on.node.join("a", 5, kGreedy, 40);
  on.node.step();
  on.cancel("a");  // a step with a row of it is under way
  CHECK_FALSE(on.node.machine->idle());
  on.run();
  const std::vector<std::byte> before(on.node.pool.data(), on.node.pool.data() + on.node.pool.size());
  on.node.join("b", 4, kGreedy, 3);  // its rows begin before those of a
  on.run();
  const size_t page_bytes = on.node.options.layout.page_bytes();
  int changed = 0;
  for (size_t page = 0; page < 8; ++page)
    changed += std::memcmp(on.node.pool.data() + page * page_bytes, before.data() + page * page_bytes, page_bytes) != 0;
  CHECK(changed == 1);  // that of b

  EmulatedNode alone(1);
  alone.node.join("b", 4, kGreedy, 3);
  alone.run();
  CHECK(is_equal({{"b", on.node.answers.at("b")}}, alone.node.answers));
}

TEST_CASE("host/ahead_decode: a GPU that dies under two steps fails both with its reason, and the compute is lost") {
  uint64_t one_step = 0;  // operations up to its end
  {
    EmulatedNode whole(1);
    whole.node.join("a", 5, kGreedy, 2);
    whole.run();
    one_step = whole.driver->gpu().operations();
  }
  EmulatedNode on(2, {.fault = gpu::Status::ecc_uncorrectable, .fault_after = one_step + 10});
  on.node.join("a", 5, kGreedy, 40);
  int failed = 0;
  for (bool is_lost = false; failed < 2 || !is_lost;) {
    const node::Event event = on.node.next();
    is_lost |= std::holds_alternative<node::HostError>(event);
    if (const auto* done = std::get_if<node::StepDone>(&event)) {
      ++failed;
      CHECK(done->code == Code::io);
      CHECK_MESSAGE(done->what.find("uncorrectable ECC error") != std::string::npos, done->what);
    }
    on.node.give(event);
  }
  CHECK(on.node.machine->idle());
  CHECK(on.node.compute->lost().has_value());
}

}  // namespace ahead_decode_test
#endif
