// The tier in a GPU's memory, from the machine of a node down to the emulated GPU: the text does not depend on where
// the blocks were, and a copy that fails ends one request.
#include <poll.h>

#include <algorithm>
#include <map>

#include "base/errors.h"
#include "base/fd.h"
#include "base/hash.h"
#include "decode_node.h"
#include "gpu/device_group.h"
#include "gpu/emulated.h"
#include "host/model_compute.h"
#include "shallow_model.h"
#include "test.h"

#if !defined(__SANITIZE_THREAD__)  // which takes the stacks of the emulated GPU's fibers for one
namespace device_tier_test {

using namespace mc;
using namespace mc::host;

namespace {

constexpr uint32_t kPages = 8, kDevicePages = 6;
constexpr uint32_t kBlocks = 2, kPrompt = kBlocks * 64 + 12;
constexpr Duration kPatience = std::chrono::minutes(2);

/// A compute with pages of the host and of the device, without a node.
struct TierCompute {
  Parallel parallel{1};
  model::Model model = model::Model::open(test::shallow_model(), {.dtype = "bf16"}, parallel).value();
  ExtentLayout layout = model.kv_layout(64);
  mem::HostBuffer pool = mem::HostBuffer::allocate(kPages * layout.page_bytes(), {}).value();
  std::shared_ptr<gpu::EmulatedDriver> driver;
  std::unique_ptr<gpu::DeviceGroup> device = gpu::DeviceGroup::of(gpu::Device::open(driver, 0).value());
  std::unique_ptr<ModelCompute> compute;
  std::vector<uint32_t> crcs = std::vector<uint32_t>(kBlocks * layout.layers);  // of the prompt's blocks
  uint64_t numbers = 0;

  explicit TierCompute(const gpu::EmulatedHost& host = {}) : driver(std::make_shared<gpu::EmulatedDriver>(host)) {
    std::fill_n(pool.data(), pool.size(), std::byte{0});
    auto runner = model::Runner::open(
        model, parallel, {.max_chunk_tokens = 256, .max_batch = 2, .device_pages = kDevicePages}, device.get());
    REQUIRE_OK(runner);
    compute = ModelCompute::open(*std::move(runner), parallel,
                                 {.pool = pool.data(), .page_count = kPages, .devices = device.get()})
                  .value();
  }
  static node::RunChunk chunk(uint32_t start, std::vector<uint32_t> pages, std::vector<uint32_t> device_pages) {
    node::RunChunk run;
    run.attention = "full";
    run.start = run.reused = start;
    for (uint32_t i = start; i < kPrompt; ++i) run.tokens.push_back(5 + 7 * i % 500);
    run.pages = std::move(pages), run.device_pages = std::move(device_pages);
    run.sample = true;
    run.sampling.temperature = 0;
    return run;
  }
  uint64_t submit(node::RunChunk run) {
    run.run = ++numbers;
    compute->submit(std::move(run));
    return numbers;
  }
  uint64_t load(std::vector<uint32_t> pages, std::vector<uint32_t> device_pages) {
    node::LoadPages load{++numbers, std::move(pages), std::move(device_pages), crcs};
    compute->submit(std::move(load));
    return numbers;
  }
  /// Waits for a run. What came before its end.
  struct Ended {
    node::ChunkDone done;
    std::vector<node::PagesLoaded> loaded;
  };
  Ended ended(uint64_t run) {
    Ended out;
    for (const TimePoint deadline = SystemClock::instance().now() + kPatience;;) {
      auto event = compute->next();
      if (!event) {
        REQUIRE(wait_fd(compute->event_fd(), POLLIN, deadline));
        continue;
      }
      if (const auto* layer = std::get_if<node::LayerDone>(&*event))
        for (size_t i = 0; i < layer->crcs.size() && layer->first_block + i < kBlocks; ++i)
          crcs[(layer->first_block + i) * layout.layers + layer->layer] = layer->crcs[i];
      if (const auto* loaded = std::get_if<node::PagesLoaded>(&*event)) out.loaded.push_back(*loaded);
      const auto* done = std::get_if<node::ChunkDone>(&*event);
      if (done && done->run != run) others[done->run] = done->code;
      if (!done || done->run != run) continue;
      out.done = *done;
      return out;
    }
  }
  std::map<uint64_t, Code> others;  // runs that ended while another one was awaited
};

}  // namespace

TEST_CASE("host/device_tier: a run over blocks that are loaded beside it draws the token of the whole prompt") {
  TierCompute on;
  const auto whole = on.ended(on.submit(TierCompute::chunk(0, {0, 1, 2}, {0, 1, 2})));
  REQUIRE(whole.done.code == Code::ok);
  CHECK(whole.loaded.empty());
  const auto resident = on.ended(on.submit(TierCompute::chunk(128, {0, 1, 3}, {0, 1, 3})));
  REQUIRE(resident.done.code == Code::ok);
  CHECK(resident.done.sampled.token == whole.done.sampled.token);
  const uint64_t load = on.load({0, 1}, {5, 4});
  const auto loaded = on.ended(on.submit(TierCompute::chunk(128, {0, 1, 3}, {5, 4, 3})));
  REQUIRE(loaded.done.code == Code::ok);
  CHECK(loaded.done.sampled.token == whole.done.sampled.token);
  REQUIRE(loaded.loaded.size() == 1);  // before the run's end
  CHECK(loaded.loaded[0].load == load);
  CHECK(loaded.loaded[0].code == Code::ok);
  CHECK(loaded.loaded[0].busy > Duration{});
}

TEST_CASE("host/device_tier: blocks that have changed end their load and its run, and are named") {
  TierCompute on;
  REQUIRE(on.ended(on.submit(TierCompute::chunk(0, {0, 1, 2}, {0, 1, 2}))).done.code == Code::ok);
  on.pool.data()[on.layout.page_bytes() + on.layout.layer_offset(1)] ^= std::byte{1};  // of block 1
  on.load({0, 1}, {4, 5});
  const auto run = on.ended(on.submit(TierCompute::chunk(128, {0, 1, 3}, {4, 5, 3})));
  CHECK(run.done.code == Code::corrupt);
  REQUIRE(run.loaded.size() == 1);
  CHECK(run.loaded[0].code == Code::corrupt);
  CHECK(run.loaded[0].rotten == std::vector<uint32_t>{1});
}

TEST_CASE("host/device_tier: a GPU that fails in a copy beside no run ends the load, and its node is lost") {
  uint64_t operations = 0;
  {
    TierCompute on;
    REQUIRE(on.ended(on.submit(TierCompute::chunk(0, {0, 1, 2}, {0, 1, 2}))).done.code == Code::ok);
    operations = on.driver->gpu().operations();
  }
  TierCompute on({.fault = gpu::Status::ecc_uncorrectable, .fault_after = operations});
  REQUIRE(on.ended(on.submit(TierCompute::chunk(0, {0, 1, 2}, {0, 1, 2}))).done.code == Code::ok);
  CHECK_FALSE(on.compute->lost().has_value());
  on.load({0, 1}, {4, 5});
  bool has_ended = false;
  for (const TimePoint deadline = SystemClock::instance().now() + kPatience; !on.compute->lost();) {
    const auto event = on.compute->next();
    if (!event) {
      REQUIRE(wait_fd(on.compute->event_fd(), POLLIN, deadline));
      continue;
    }
    const auto* loaded = std::get_if<node::PagesLoaded>(&*event);
    if (loaded == nullptr) continue;
    CHECK(loaded->code != Code::ok);
    has_ended = true;
  }
  CHECK(has_ended);
  CHECK(on.compute->lost()->mc == err::kDeviceFailed);
}

TEST_CASE("host/device_tier: of runs that share a pass, a copy that fails ends its own alone") {
  TierCompute on;
  const auto whole = on.ended(on.submit(TierCompute::chunk(0, {0, 1, 2}, {0, 1, 2})));
  REQUIRE(whole.done.code == Code::ok);
  on.driver->gpu().refuse_copy(0);  // the compute is idle
  on.load({0, 1}, {4, 5});
  node::RunChunk first = TierCompute::chunk(128, {0, 1, 3}, {4, 5, 3}), second = first;
  first.is_followed = true;
  second.pages = {0, 1, 2}, second.device_pages = {0, 1, 2};
  const uint64_t failing = on.submit(std::move(first));
  const auto other = on.ended(on.submit(std::move(second)));
  CHECK(other.done.code == Code::ok);
  CHECK(other.done.sampled.token == whole.done.sampled.token);
  REQUIRE(on.others.contains(failing));
  CHECK(on.others.at(failing) != Code::ok);
  REQUIRE(other.loaded.size() == 1);
  CHECK(other.loaded[0].code != Code::ok);
  CHECK_FALSE(on.compute->lost().has_value());
}

namespace {

/// Three answers of a decode node whose GPU has so many pages for blocks.
std::map<std::string, std::vector<uint32_t>> answers(uint32_t device_pages, uint32_t steps_max) {
  bench::DecodeNode node({.model = test::shallow_model(),
                          .dtype = "bf16",
                          .driver = std::make_shared<gpu::EmulatedDriver>(gpu::EmulatedHost{}),
                          .steps_max = steps_max,
                          .device_pages = device_pages});
  node.keeps_answers = true;
  wire::Sampling greedy;
  greedy.temperature = 0;
  node.join("a", 70, greedy, 6);
  node.join("b", 126, greedy, 6);  // begins a block
  node.join("c", 20, greedy, 6);
  const auto is_over = [&] {
    return node.answers.size() == 3 && std::ranges::all_of(node.answers, [](const auto& answer) {
             return !answer.second.back().finish_reason.empty();
           });
  };
  while (!is_over()) node.step();
  CHECK(node.failed_steps == 0);
  CHECK(node.failures.empty());
  std::map<std::string, std::vector<uint32_t>> out;
  for (const auto& [req, rows] : node.answers)
    for (const wire::TokenRow& row : rows) out[req].push_back(row.token);
  return out;
}

}  // namespace

TEST_CASE("host/device_tier: decoding with room for two of three requests gives the text of copies for each step") {
  const auto copied = answers(0, 1);
  CHECK(copied.size() == 3);
  CHECK(answers(5, 1) == copied);
  CHECK(answers(5, 2) == copied);
  CHECK(answers(64, 2) == copied);
}

TEST_CASE("host/device_tier: a request whose copy to the device fails ends alone, and the other one is answered") {
  const auto driver = std::make_shared<gpu::EmulatedDriver>(gpu::EmulatedHost{});
  bench::DecodeNode node({.model = test::shallow_model(), .dtype = "bf16", .driver = driver, .device_pages = 16});
  node.keeps_answers = true;
  wire::Sampling greedy;
  greedy.temperature = 0;
  driver->gpu().refuse_copy(0);  // the compute is idle
  node.join("a", 70, greedy, 4);
  node.join("b", 70, greedy, 4);
  while (node.answers["b"].empty() || node.answers["b"].back().finish_reason.empty()) node.step();
  CHECK(node.failures.size() == 1);
  CHECK_FALSE(node.answers.contains("a"));
  CHECK(node.failed_steps == 0);
}

}  // namespace device_tier_test
#endif
