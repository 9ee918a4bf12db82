// The compute of a node on an emulated GPU: what it leaves in the node's pages, and what it reports when the GPU fails.
#include <poll.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/errors.h"
#include "base/fd.h"
#include "base/hash.h"
#include "gpu/device_group.h"
#include "gpu/emulated.h"
#include "host/model_compute.h"
#include "mem/mem.h"
#include "shallow_model.h"
#include "test.h"

#if !defined(__SANITIZE_THREAD__)  // which takes the stacks of the emulated GPU's fibers for one
namespace device_compute_test {

using namespace mc;
using namespace mc::host;

namespace {

constexpr uint32_t kPages = 4;
constexpr Duration kPatience = std::chrono::minutes(2);

/// A compute over pages of its own, without a node.
struct DeviceCompute {
  Parallel parallel{1};
  model::Model model = model::Model::open(test::shallow_model(), {.dtype = "bf16"}, parallel).value();
  ExtentLayout layout = model.kv_layout(64);
  mem::HostBuffer pool = mem::HostBuffer::allocate(kPages * layout.page_bytes(), {}).value();
  std::shared_ptr<gpu::EmulatedDriver> driver;
  std::unique_ptr<gpu::DeviceGroup> device;
  std::unique_ptr<ModelCompute> compute;

  explicit DeviceCompute(const gpu::EmulatedHost& host = {}) : driver(std::make_shared<gpu::EmulatedDriver>(host)) {
    std::fill_n(pool.data(), pool.size(), std::byte{0xab});  // what an earlier block left
    device = gpu::DeviceGroup::of(gpu::Device::open(driver, 0).value());
    auto runner = model::Runner::open(model, parallel, {.max_chunk_tokens = 64, .max_batch = 2}, device.get());
    REQUIRE_OK(runner);
    compute = ModelCompute::open(*std::move(runner), parallel,
                                 {.pool = pool.data(), .page_count = kPages, .devices = device.get()})
                  .value();
  }
  /// The chunk of a prompt of 20 tokens, in page 2.
  static node::RunChunk chunk() {
    node::RunChunk run;
    run.run = 7;
    run.attention = "full";
    run.pages = {2};
    run.sample = true;
    for (uint32_t i = 0; i < 20; ++i) run.tokens.push_back(5 + 7 * i);
    return run;
  }
  node::Event next() {
    const TimePoint deadline = SystemClock::instance().now() + kPatience;
    for (;;) {
      if (auto event = compute->next()) return std::move(*event);
      REQUIRE(wait_fd(compute->event_fd(), POLLIN, deadline));
    }
  }
};

}  // namespace

TEST_CASE(
    "host/device_compute: layers of a chunk on emu are in the node's page, with their checksums, when announced") {
  DeviceCompute on;
  CHECK_FALSE(on.compute->lost().has_value());
  on.compute->submit(DeviceCompute::chunk());
  uint32_t layers = 0;
  for (;;) {
    const node::Event event = on.next();
    if (const auto* layer = std::get_if<node::LayerDone>(&event)) {
      const std::byte* extent = on.pool.data() + 2 * on.layout.page_bytes() + on.layout.layer_offset(layer->layer);
      CHECK(layer->crcs == std::vector<uint32_t>{crc32c({extent, on.layout.layer_bytes()})});
      ++layers;
      continue;
    }
    const auto& done = std::get<node::ChunkDone>(event);
    CHECK(done.code == Code::ok);
    CHECK(done.sampled.token < on.model.config().vocab);
    break;
  }
  CHECK(layers == on.layout.layers);
  // Rows behind the 20 tokens are zero: those of V are the last of a head before its sums.
  const std::byte* v = on.pool.data() + 2 * on.layout.page_bytes() + on.layout.v_offset();
  CHECK(std::all_of(v + 20 * 128, v + 64 * 128, [](std::byte b) { return b == std::byte{0}; }));
  CHECK_FALSE(on.compute->lost().has_value());
}

TEST_CASE("host/device_compute: chunks that follow each other share a pass, and have the pages and tokens of two") {
  const auto run = [](bool is_followed) {
    DeviceCompute on;
    node::RunChunk first = DeviceCompute::chunk(), second = first;
    first.is_followed = is_followed;
    second.run = 8, second.pages = {1};
    second.tokens.resize(3);
    second.attention = "moba:block=64,top_k=1";
    on.compute->submit(first);
    if (is_followed) on.compute->submit(second);
    std::map<uint64_t, uint32_t> tokens;
    std::map<uint64_t, std::vector<uint32_t>> sums;
    while (tokens.size() < 2) {
      const node::Event event = on.next();
      if (const auto* layer = std::get_if<node::LayerDone>(&event)) {
        REQUIRE(layer->crcs.size() == 1);
        sums[layer->run].push_back(layer->crcs[0]);
        continue;
      }
      const auto& done = std::get<node::ChunkDone>(event);
      CHECK(done.code == Code::ok);
      tokens[done.run] = done.sampled.token;
      if (!is_followed && done.run == 7) on.compute->submit(second);
    }
    const uint64_t operations = on.driver->gpu().operations();
    const std::vector<std::byte> pages(on.pool.data(), on.pool.data() + on.pool.size());
    return std::tuple(tokens, sums, pages, operations);
  };
  const auto together = run(true), apart = run(false);
  CHECK(std::get<0>(together) == std::get<0>(apart));
  CHECK(std::get<1>(together) == std::get<1>(apart));
  CHECK(std::get<2>(together) == std::get<2>(apart));
  CHECK(std::get<3>(together) < std::get<3>(apart));
}

TEST_CASE(
    "host/device_compute: a refused chunk leaves the others of its pass, and a step behind them, as they are alone") {
  const auto run = [](bool is_followed) {
    DeviceCompute on;
    std::map<uint64_t, Code> ends;
    std::vector<uint32_t> tokens;
    const auto await = [&](size_t count) {
      while (ends.size() < count) {
        const node::Event event = on.next();
        if (const auto* chunk = std::get_if<node::ChunkDone>(&event)) {
          ends[chunk->run] = chunk->code;
          if (chunk->code == Code::ok) tokens.push_back(chunk->sampled.token);
        } else if (const auto* step = std::get_if<node::StepDone>(&event)) {
          ends[step->run] = step->code;
          REQUIRE(step->rows->out.size() == 1);
          tokens.push_back(step->rows->out[0].sampled.token);
        }
      }
    };
    node::RunChunk prompt = DeviceCompute::chunk();
    prompt.sampling.temperature = 0;
    on.compute->submit(prompt);
    await(1);
    node::RunChunk other = prompt, refused = prompt;
    other.run = 8, other.pages = {1}, other.is_followed = is_followed;
    refused.run = 9, refused.pages = {3}, refused.attention = "none", refused.is_followed = is_followed;
    node::JoinBatch joins{.sequence = 1, .position = 20, .tokens_max = 64, .pages = {2}, .attention = "full"};
    joins.sampling.temperature = 0, joins.prompt_tokens = 20;
    node::RunStep step{.run = 10, .rows = std::make_shared<node::StepRows>()};
    step.rows->in.push_back({.sequence = 1, .token = tokens.at(0), .position = 20});
    step.rows->out.resize(1);
    on.compute->submit(other);
    if (!is_followed) await(2);
    on.compute->submit(refused);
    if (!is_followed) await(3);
    on.compute->submit(std::move(joins));
    on.compute->submit(std::move(step));
    await(4);
    std::ranges::sort(tokens);  // a pass may end in any order
    const std::vector<std::byte> pages(on.pool.data(), on.pool.data() + on.pool.size());
    return std::tuple(ends, tokens, pages, on.driver->gpu().operations());
  };
  const auto together = run(true), apart = run(false);
  CHECK(std::get<0>(together) ==
        std::map<uint64_t, Code>{{7, Code::ok}, {8, Code::ok}, {9, Code::invalid}, {10, Code::ok}});
  CHECK(std::get<0>(together) == std::get<0>(apart));
  CHECK(std::get<1>(together) == std::get<1>(apart));
  CHECK(std::get<2>(together) == std::get<2>(apart));
  CHECK(std::get<3>(together) < std::get<3>(apart));
}

TEST_CASE("host/device_compute: a plan beyond the kernels ends its own chunk, and the other of the pass is computed") {
  DeviceCompute on;
  node::RunChunk sound = DeviceCompute::chunk(), beyond = sound;
  sound.is_followed = true;
  beyond.run = 8, beyond.pages = {1}, beyond.attention = "moba:block=64,top_k=18";
  on.compute->submit(sound);
  on.compute->submit(beyond);
  std::map<uint64_t, node::ChunkDone> ends;
  while (ends.size() < 2) {
    const node::Event event = on.next();
    if (const auto* done = std::get_if<node::ChunkDone>(&event)) ends[done->run] = *done;
  }
  CHECK_MESSAGE(ends[7].code == Code::ok, ends[7].what);
  CHECK(ends[8].code == Code::invalid);
  CHECK_MESSAGE(ends[8].what.find("top_k is 18, at most 17") != std::string::npos, ends[8].what);
}

TEST_CASE("host/device_compute: a plan beyond the kernels ends its own row, and the other of the step is computed") {
  DeviceCompute on;
  node::RunStep step{.run = 10, .rows = std::make_shared<node::StepRows>()};
  const std::pair<uint64_t, const char*> sequences[] = {{1, "moba:block=64,top_k=18"}, {2, "full"}};
  for (const auto& [sequence, plan] : sequences) {
    node::JoinBatch joins{.sequence = sequence,
                          .position = 0,
                          .tokens_max = 64,
                          .pages = {static_cast<uint32_t>(sequence)},
                          .attention = plan};
    joins.sampling.temperature = 0;
    on.compute->submit(std::move(joins));
    step.rows->in.push_back({.sequence = sequence, .token = 5, .position = 0});
  }
  step.rows->out.resize(2);
  on.compute->submit(step);
  const node::Event event = on.next();
  const auto& done = std::get<node::StepDone>(event);
  REQUIRE_MESSAGE(done.code == Code::ok, done.what);
  REQUIRE(done.rows->out[0].refusal.has_value());
  CHECK(done.rows->out[0].refusal->code == Code::invalid);
  CHECK_MESSAGE(done.rows->out[0].refusal->what.find("top_k is 18, at most 17") != std::string::npos,
                done.rows->out[0].refusal->what);
  CHECK_FALSE(done.rows->out[1].refusal.has_value());
  CHECK(done.rows->out[1].sampled.token < on.model.config().vocab);
}

TEST_CASE(
    "host/device_compute: a GPU that dies in a chunk fails it with the reason, and the compute is lost after that") {
  uint64_t loaded = 0;
  {
    DeviceCompute whole;
    loaded = whole.driver->gpu().operations();
  }
  DeviceCompute on({.fault = gpu::Status::ecc_uncorrectable, .fault_after = loaded + 20});
  on.compute->submit(DeviceCompute::chunk());
  for (;;) {
    const node::Event event = on.next();
    CHECK_FALSE((std::holds_alternative<node::ChunkDone>(event) && on.compute->lost().has_value()));
    if (std::holds_alternative<node::LayerDone>(event)) continue;
    const auto& done = std::get<node::ChunkDone>(event);
    CHECK(done.code == Code::io);
    CHECK_MESSAGE(done.what.find("emu: ") == 0, done.what);
    CHECK_MESSAGE(done.what.find("uncorrectable ECC error") != std::string::npos, done.what);
    break;
  }
  CHECK(std::holds_alternative<node::HostError>(on.next()));
  REQUIRE(on.compute->lost().has_value());
  CHECK(on.compute->lost()->mc == err::kDeviceFailed);
}

}  // namespace device_compute_test
#endif
