// A decode node without sockets: its machine, its compute, and pages of zeros that stand for what a prefill node would
// have sent.
#pragma once

#include <poll.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/parallel.h"
#include "gpu/device_group.h"
#include "gpu/emulated.h"
#include "host/model_compute.h"
#include "mem/mem.h"
#include "model/model.h"
#include "node/decode.h"
#include "test.h"

namespace mc::host::bench {

inline InstanceId instance_of(uint8_t n) {
  InstanceId id;
  id.bytes[0] = n;
  return id;
}

struct DecodeNodeOptions {
  std::string model;
  std::string dtype = "f32", attention = "full";
  std::shared_ptr<gpu::EmulatedDriver> driver;  // null: the CPU
  uint32_t steps_max = 1;
  uint32_t pages = 64;
  uint32_t inline_tokens = 0;
  uint32_t device_pages = 0;  // of the tier in the GPU's memory; 0: there is none
};

struct DecodeNode {
  static constexpr uint32_t kTokensPerBlock = 64;
  Parallel parallel{2};
  model::Model model;
  mem::HostBuffer pool;
  node::WorkerOptions options;
  std::unique_ptr<gpu::DeviceGroup> device;
  std::unique_ptr<ModelCompute> compute;
  std::unique_ptr<node::Decode> machine;
  node::Actions actions;
  std::vector<node::Read> reads;
  std::vector<uint32_t> tokens;                                // of all rows, in the order they came
  std::map<std::string, std::vector<wire::TokenRow>> answers;  // by request, when kept
  bool keeps_answers = false;
  uint64_t steps = 0, failed_steps = 0;
  uint64_t chunks = 0, followed_chunks = 0;
  std::vector<std::string> failures;

  explicit DecodeNode(const DecodeNodeOptions& o)
      : model(model::Model::open(o.model, {.dtype = o.dtype}, parallel).value()) {
    options.role = wire::Role::decode;
    options.name = "d0", options.instance = instance_of(50), options.model = "m";
    options.layout = model.kv_layout(kTokensPerBlock);
    const auto asked = attn::parse_plan(o.attention).value();
    const auto plan =
        attn::resolve(asked, std::nullopt, static_cast<int32_t>(model.config().layers), kTokensPerBlock).value();
    options.kv = model.kv_namespace(plan, kTokensPerBlock);
    options.page_count = o.pages;
    options.device_pages = o.device_pages;
    options.context_tokens = model.config().max_positions;
    options.demote_above = 2;
    pool = mem::HostBuffer::allocate(o.pages * options.layout.page_bytes(), {}).value();
    std::fill_n(pool.data(), pool.size(), std::byte{0});
    if (o.driver) device = gpu::DeviceGroup::of(gpu::Device::open(o.driver, 0).value());
    const uint32_t chunk_tokens = (o.inline_tokens + 8 + kTokensPerBlock - 1) / kTokensPerBlock * kTokensPerBlock;
    auto runner = model::Runner::open(model, parallel,
                                      {.block_tokens = kTokensPerBlock,
                                       .max_chunk_tokens = chunk_tokens,
                                       .max_batch = 8,
                                       .device_pages = o.device_pages},
                                      device.get());
    const ComputeOptions computes{.pool = pool.data(), .page_count = o.pages, .devices = device.get()};
    compute = ModelCompute::open(*std::move(runner), parallel, computes).value();
    machine = std::make_unique<node::Decode>(
        options, node::DecodeOptions{.batch_max = 8, .steps_max = o.steps_max, .inline_tokens = o.inline_tokens});
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
      if (auto* chunk = std::get_if<node::RunChunk>(&action)) {
        ++chunks;
        followed_chunks += chunk->is_followed;
        compute->submit(std::move(*chunk));
      }
      if (const auto* cancel = std::get_if<node::CancelRun>(&action)) compute->cancel(cancel->run);
      if (auto* load = std::get_if<node::LoadPages>(&action)) compute->submit(std::move(*load));
      if (const auto* send = std::get_if<node::Send>(&action)) note(send->message);
      if (auto* join = std::get_if<node::JoinBatch>(&action)) compute->submit(std::move(*join));
      if (auto* step = std::get_if<node::RunStep>(&action)) compute->submit(std::move(*step));
      if (std::holds_alternative<node::CollectSteps>(action)) compute->submit(node::CollectSteps{});
      if (auto* leave = std::get_if<node::LeaveBatch>(&action)) compute->submit(*leave);
      if (auto* told = std::get_if<node::SendTokens>(&action)) note(*told->tokens);
    }
  }
  /// The first token of a prompt that was computed here.
  void note(const wire::Message& message) {
    const auto* first = std::get_if<wire::FirstToken>(&message);
    if (first && keeps_answers)
      answers[first->req].push_back(
          {first->req, first->attempt, 0, first->token, first->logprobs, first->finish_reason});
    if (const auto* failed = std::get_if<wire::Failed>(&message)) failures.push_back(failed->message);
  }
  void note(const wire::Tokens& told) {
    for (const auto& row : told.rows) {
      tokens.push_back(row.token);
      if (keeps_answers) answers[row.req].push_back(row);
    }
  }

  void join(const std::string& req, uint32_t prompt, const wire::Sampling& sampling, uint32_t max_tokens,
            const std::vector<uint32_t>& stop_ids = {}) {
    wire::RequestSpec spec;
    spec.req = req;
    spec.ids.assign(prompt, 5 + static_cast<uint32_t>(req.back()));
    spec.ns = options.kv.id();
    spec.prefill_attention = options.kv.attention, spec.decode_attention = options.kv.attention;
    spec.sampling = sampling;
    spec.stopping.max_tokens = max_tokens;
    spec.stopping.stop_ids = stop_ids;
    spec.no_cache = true;
    give(node::Received{"p0", instance_of(1), wire::KvOffer{spec}});
    const size_t blocks = kv::blocks_for(prompt, kTokensPerBlock);
    const std::vector<std::byte> extent(options.layout.layer_bytes());
    const wire::ReadyExtent zeros{.crc = crc32c(extent)};
    for (uint32_t layer = 0; layer < options.layout.layers; ++layer) {
      give(node::Notified{"p0", instance_of(1), {req, 1, layer, 0, std::vector<wire::ReadyExtent>(blocks, zeros)}});
      for (const auto& read : std::exchange(reads, {})) give(node::ReadDone{read.read, Code::ok, ""});
    }
    give(node::Received{"p0", instance_of(1), wire::KvComplete{req, 1, prompt, 7}});
  }

  /// The next event of the compute. One that does not come within a minute fails the test.
  node::Event next() {
    for (;;) {
      if (auto event = compute->next()) return std::move(*event);
      pollfd fd{compute->event_fd(), POLLIN, 0};
      REQUIRE(::poll(&fd, 1, 60'000) == 1);
    }
  }
  /// One step to its end.
  void step() {
    node::Event event = next();
    for (; std::holds_alternative<node::PagesLoaded>(event); event = next()) give(event);
    const auto* done = std::get_if<node::StepDone>(&event);
    REQUIRE(done != nullptr);
    failed_steps += done->code == Code::ok ? 0 : 1;
    ++steps;
    give(event);
  }
};

}  // namespace mc::host::bench
