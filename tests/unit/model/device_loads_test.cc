// Copies of blocks to pages of an emulated GPU that the caller numbers, and passes that begin beside them.
#include "model/device_loads.h"

#include <algorithm>
#include <numeric>

#include "base/errors.h"
#include "base/hash.h"
#include "base/parallel.h"
#include "count.h"
#include "gpu/emulated.h"
#include "gpu/gpu.h"
#include "model/generate.h"
#include "model/model.h"
#include "model/runner.h"
#include "shallow_model.h"
#include "test.h"

#if !defined(__SANITIZE_THREAD__)  // which takes the stacks of the emulated GPU's fibers for one
namespace device_loads_test {

using namespace mc;
using namespace mc::model;

namespace {

constexpr uint32_t kDevicePages = 6;
// The prompt has two whole pages and a part of one. With full counts a whole page lies between them, which the chunk
// behind two loaded pages fills by itself.
const size_t kPrompt = static_cast<size_t>(test::count(2, 3)) * 64 + 10;

/// A runner whose caller numbers kDevicePages pages of the device, or none.
struct Rig {
  Parallel parallel{1};
  Model model = Model::open(test::shallow_model(), {.dtype = "bf16"}, parallel).value();
  ExtentLayout layout = model.kv_layout(64);
  std::shared_ptr<gpu::EmulatedDriver> driver;
  std::unique_ptr<gpu::Device> device;
  std::optional<Runner> runner;
  attn::Plan plan =
      attn::resolve(attn::PlanText{.automatic = false}, std::nullopt, static_cast<int32_t>(model.config().layers), 64)
          .value();
  LocalPages pages = LocalPages::allocate(layout, kPrompt + 8).value();
  std::vector<uint32_t> tokens;

  explicit Rig(uint32_t device_pages, const gpu::EmulatedHost& host = {})
      : driver(std::make_shared<gpu::EmulatedDriver>(host)) {
    device = std::move(*gpu::Device::open(driver, 0));
    runner.emplace(Runner::open(model, parallel,
                                {.max_chunk_tokens = 256, .max_batch = 2, .device_pages = device_pages}, device.get())
                       .value());
    for (uint32_t i = 0; i < kPrompt; ++i) tokens.push_back(5 + 7 * i % 200);
  }
  /// The logits of the prompt's last token; `start` tokens are in the pages. `on_device` names three pages, or none.
  /// The fourth page of the longer prompt is page 3.
  Result<std::vector<float>> prefill(size_t start, std::vector<int32_t> on_device = {}) {
    std::vector<float> logits(model.config().vocab);
    PrefillChunk chunk;
    chunk.tokens = std::span(tokens).subspan(start);
    chunk.start = static_cast<int64_t>(start);
    chunk.pages = pages.pages();
    chunk.plan = &plan;
    chunk.logits = logits;
    if (!on_device.empty() && test::is_full()) on_device.push_back(3);
    chunk.device_pages = on_device;
    MC_CHECK(runner->prefill(chunk));
    return logits;
  }
  PageLoad load(uint64_t number, uint32_t blocks, std::vector<int32_t> to) {
    PageLoad out;
    out.load = number, out.to = std::move(to);
    for (uint32_t block = 0; block < blocks; ++block) {
      out.from.push_back(pages.pages()[block]);
      for (uint32_t layer = 0; layer < layout.layers; ++layer)
        out.crcs.push_back(crc32c({pages.pages()[block] + layout.layer_offset(layer), layout.layer_bytes()}));
    }
    return out;
  }
  DeviceLoads& loads() { return *runner->loads(); }
  std::vector<LoadEnd> ended() {
    std::vector<LoadEnd> out;
    loads().settle();
    while (auto end = loads().take_ended()) out.push_back(*std::move(end));
    return out;
  }
};

}  // namespace

TEST_CASE(
    "model/device_loads: a chunk over loaded pages has the logits of one over pages that are copied by the pass") {
  Rig copies(0);
  const auto whole = copies.prefill(0);
  REQUIRE_OK(whole);
  const auto reused = copies.prefill(2 * 64);
  REQUIRE_OK(reused);

  Rig numbered(kDevicePages);
  REQUIRE(numbered.runner->loads() != nullptr);
  const auto same = numbered.prefill(0, {0, 1, 2});
  REQUIRE_OK(same);
  CHECK(*same == *whole);
  // The blocks are in pages 0 and 1, and go to 5 and 4 as well. The pass begins before a byte is copied.
  numbered.loads().add(numbered.load(7, 2, {5, 4}));
  const auto loaded = numbered.prefill(2 * 64, {5, 4, 2});
  REQUIRE_OK(loaded);
  CHECK(*loaded == *reused);
  const auto ends = numbered.ended();
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].load == 7);
  CHECK_FALSE(ends[0].error.has_value());
  CHECK(numbered.loads().idle());
  // Resident pages need no copy.
  const uint64_t before = numbered.driver->gpu().operations();
  const auto resident = numbered.prefill(2 * 64, {5, 4, 2});
  REQUIRE_OK(resident);
  CHECK(*resident == *reused);
  const uint64_t with_resident = numbered.driver->gpu().operations() - before;
  numbered.loads().add(numbered.load(8, 2, {5, 4}));
  const uint64_t again = numbered.driver->gpu().operations();
  REQUIRE_OK(numbered.prefill(2 * 64, {5, 4, 2}));
  CHECK(numbered.driver->gpu().operations() - again >= with_resident + 2 * numbered.layout.layers);
}

TEST_CASE("model/device_loads: a load whose bytes have changed ends as corrupt with its blocks, and so does its pass") {
  Rig rig(kDevicePages);
  REQUIRE_OK(rig.prefill(0, {0, 1, 2}));
  PageLoad load = rig.load(9, 2, {4, 5});
  rig.pages.pages()[1][rig.layout.layer_offset(rig.layout.layers - 1)] ^= std::byte{1};
  rig.loads().add(load);
  const auto pass = rig.prefill(2 * 64, {4, 5, 2});
  REQUIRE_FALSE(pass.has_value());
  CHECK(pass.error().code == Code::corrupt);
  const auto ends = rig.ended();
  REQUIRE(ends.size() == 1);
  REQUIRE(ends[0].error.has_value());
  CHECK(ends[0].error->code == Code::corrupt);
  CHECK(ends[0].rotten == std::vector<uint32_t>{1});
  CHECK_FALSE(rig.prefill(2 * 64, {4, 5, 2}).has_value());  // until another load brings the pages
  REQUIRE_OK(rig.prefill(2 * 64, {0, 1, 2}));
  CHECK_FALSE(rig.device->failure().has_value());
}

TEST_CASE("model/device_loads: a copy that the driver refuses ends its own load, and later loads and passes go on") {
  for (const uint64_t after : {0, 1}) {
    CAPTURE(after);
    Rig rig(kDevicePages);
    REQUIRE_OK(rig.prefill(0, {0, 1, 2}));
    rig.loads().add(rig.load(1, 2, {4, 5}));
    rig.driver->gpu().refuse_copy(after);
    CHECK_FALSE(rig.prefill(2 * 64, {4, 5, 2}).has_value());
    const auto ends = rig.ended();
    REQUIRE(ends.size() == 1);
    CHECK(ends[0].error.has_value());
    CHECK(ends[0].rotten.empty());
    CHECK_FALSE(rig.device->failure().has_value());
    rig.loads().add(rig.load(2, 2, {4, 5}));
    REQUIRE_OK(rig.prefill(2 * 64, {4, 5, 2}));
    REQUIRE(rig.ended().size() == 1);
  }
}

TEST_CASE("model/device_loads: a device without room for the pages is refused with what they need and what is free") {
  Parallel parallel{1};
  const Model model = Model::open(test::shallow_model(), {.dtype = "bf16"}, parallel).value();
  const gpu::EmulatedHost host{.memory_bytes = size_t{64} << 20};
  const auto device = std::move(*gpu::Device::open(std::make_shared<gpu::EmulatedDriver>(host), 0));
  const RunnerOptions options{.max_chunk_tokens = 256, .max_batch = 2, .device_pages = 4000};
  const auto opened = Runner::open(model, parallel, options, device.get());
  REQUIRE_FALSE(opened.has_value());
  CHECK(opened.error().mc == err::kDeviceMemory);
  CHECK_MESSAGE(opened.error().what.find("KV pages needs ") != std::string::npos, opened.error().what);
  CHECK_MESSAGE(opened.error().what.find("free are ") != std::string::npos, opened.error().what);
}

TEST_CASE("model/device_loads: a load that no pass waits for goes on beside the layers of a pass") {
  Rig rig(kDevicePages);
  REQUIRE_OK(rig.prefill(0, {0, 1, 2}));
  rig.loads().add(rig.load(3, 1, {5}));
  REQUIRE_OK(rig.prefill(2 * 64, {0, 1, 2}));
  const auto ends = rig.ended();
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].load == 3);
  REQUIRE_OK(rig.prefill(1 * 64, {5, 1, 2}));
}

}  // namespace device_loads_test
#endif
