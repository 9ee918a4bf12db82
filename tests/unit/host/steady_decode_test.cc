// The decode machine and the compute with a real model, hand in hand: what a step costs beside the forward pass.

#include <poll.h>

#include <new>
#include <vector>

#include "base/parallel.h"
#include "counting_memory.h"
#include "host/model_compute.h"
#include "mem/mem.h"
#include "model/find.h"
#include "model/model.h"
#include "node/decode.h"
#include "test.h"

using namespace mc;
using namespace mc::host;

namespace {

InstanceId instance_of(uint8_t n) {
  InstanceId id;
  id.bytes[0] = n;
  return id;
}

constexpr uint32_t kPoolPages = 64, kTokensPerBlock = 64;

/// A decode node without sockets: its machine, its compute, and pages of zeros that stand for what a prefill node
/// would have sent.
struct DecodeNode {
  Parallel parallel{2};
  model::Model model;
  mem::HostBuffer pool;
  node::WorkerOptions options;
  std::unique_ptr<ModelCompute> compute;
  std::unique_ptr<node::Decode> machine;
  node::Actions actions;
  std::vector<node::Read> reads;
  std::vector<uint32_t> tokens;  // of all rows, in the order they came
  uint64_t steps = 0;

  explicit DecodeNode(const std::string& attention)
      : model(model::Model::open(model::find_model("mc-tiny").value(), {.dtype = "f32"}, parallel).value()) {
    options.role = wire::Role::decode;
    options.name = "d0", options.instance = instance_of(50), options.model = "mc-tiny";
    options.layout = model.kv_layout(kTokensPerBlock);
    const auto asked = attn::parse_plan(attention).value();
    const auto plan =
        attn::resolve(asked, std::nullopt, static_cast<int32_t>(model.config().layers), kTokensPerBlock).value();
    options.kv = model.kv_namespace(plan, kTokensPerBlock);
    options.page_count = kPoolPages;
    options.context_tokens = model.config().max_positions;
    options.demote_above = 2;
    pool = mem::HostBuffer::allocate(kPoolPages * options.layout.page_bytes(), {}).value();
    std::fill_n(pool.data(), pool.size(), std::byte{0});
    auto runner =
        model::Runner::open(model, parallel, {.block_tokens = kTokensPerBlock, .max_chunk_tokens = 64, .max_batch = 8});
    compute = ModelCompute::open(*std::move(runner), parallel, {.pool = pool.data(), .page_count = kPoolPages}).value();
    machine = std::make_unique<node::Decode>(options, node::DecodeOptions{.batch_max = 8});
    give(node::Tick{});
    give(node::Received{NodeId(node::kConductor), instance_of(99), wire::Welcome{"d0", 1u << 30, 1u << 30}});
    wire::Peers peers{1, {}};
    peers.peers = {{"p0", instance_of(1), wire::Role::prefill, "sim:p0", {}}};
    give(node::Received{NodeId(node::kConductor), instance_of(99), peers});
  }

  void give(const node::Event& event) {
    actions.clear();
    machine->handle(event, SystemClock::instance().now(), actions);
    for (auto& action : actions) {
      if (auto* read = std::get_if<node::Read>(&action)) reads.push_back(std::move(*read));
      if (auto* join = std::get_if<node::JoinBatch>(&action)) compute->submit(std::move(*join));
      if (auto* step = std::get_if<node::RunStep>(&action)) compute->submit(std::move(*step));
      if (auto* leave = std::get_if<node::LeaveBatch>(&action)) compute->submit(*leave);
      if (auto* told = std::get_if<node::SendTokens>(&action))
        for (const auto& row : told->tokens->rows) tokens.push_back(row.token);
    }
  }

  void join(const std::string& req, uint32_t prompt, const wire::Sampling& sampling, uint32_t max_tokens) {
    wire::RequestSpec spec;
    spec.req = req;
    spec.ids.assign(prompt, 5 + static_cast<uint32_t>(req.back()));
    spec.ns = options.kv.id();
    spec.prefill_attention = options.kv.attention, spec.decode_attention = "full";
    spec.sampling = sampling;
    spec.stopping.max_tokens = max_tokens;
    spec.no_cache = true;
    give(node::Received{"p0", instance_of(1), wire::KvOffer{spec}});
    const size_t blocks = kv::blocks_for(prompt, kTokensPerBlock);
    for (uint32_t layer = 0; layer < options.layout.layers; ++layer) {
      give(node::Notified{"p0", instance_of(1), {req, 1, layer, 0, std::vector<wire::ReadyExtent>(blocks)}});
      for (const auto& read : std::exchange(reads, {})) give(node::ReadDone{read.read, Code::ok, ""});
    }
    give(node::Received{"p0", instance_of(1), wire::KvComplete{req, 1, prompt, 7}});
  }

  /// One step to its end. A step that is not done within a minute fails the test.
  void step() {
    for (uint64_t before = steps; steps == before;) {
      const auto event = compute->next();
      if (!event) {
        pollfd fd{compute->event_fd(), POLLIN, 0};
        REQUIRE(::poll(&fd, 1, 60'000) == 1);
        continue;
      }
      const auto* done = std::get_if<node::StepDone>(&*event);
      REQUIRE(done != nullptr);
      REQUIRE(done->code == Code::ok);
      ++steps;
      give(*event);
    }
  }
};

}  // namespace

TEST_CASE("host/steady_decode: every form of operator new is counted, and its operator delete frees the memory") {
  constexpr std::align_val_t kLine{64};
  const long before = test::g_allocations;
  ::operator delete(::operator new(100));
  ::operator delete(::operator new(100, std::nothrow));
  ::operator delete(::operator new(100, kLine), kLine);
  ::operator delete(::operator new(100, kLine, std::nothrow), kLine);
  ::operator delete[](::operator new[](100));
  ::operator delete[](::operator new[](100, std::nothrow));
  ::operator delete[](::operator new[](100, kLine), kLine);
  ::operator delete[](::operator new[](100, kLine, std::nothrow), kLine);
  CHECK_EQ(test::g_allocations - before, 8);
}

TEST_CASE("host/steady_decode: a step in which no block fills allocates nothing, in machine and compute") {
  for (const bool penalties : {false, true}) {
    CAPTURE(penalties);
    DecodeNode node("full");
    wire::Sampling sampling;
    sampling.seed = 7;
    if (penalties) sampling.presence_penalty = 0.5;
    for (int row = 0; row < 4; ++row) node.join("request_of_this_test_" + std::to_string(row), 65, sampling, 60);
    node.tokens.reserve(1000);
    for (int i = 0; i < 16; ++i) node.step();  // buffers and scratch have grown
    const size_t told = node.tokens.size();
    const long before = test::g_allocations;
    for (int i = 0; i < 32; ++i) node.step();
    CHECK_EQ(test::g_allocations - before, 0);
    CHECK_EQ(node.tokens.size() - told, 32u * 4);
  }
}
