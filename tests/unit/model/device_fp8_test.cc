// Pages of fp8_e4m3 on the emulated device: their logits beside the CPU's, and their bytes on the device and on the
// host.
#include <algorithm>

#include "attn/attn.h"
#include "base/hash.h"
#include "device_pair.h"

#if !defined(__SANITIZE_THREAD__)  // which takes the stacks of the emulated GPU's fibers for one
using namespace mc;
using namespace mc::model;

namespace {

// A product that rounds otherwise than the CPU's may move a value to the next code, by an eighth of it.
constexpr double kFp8Share = 0.06;

test::DevicePair fp8_pair(bool graphs = true) {
  return test::DevicePair({}, graphs, "fp8_e4m3");
}
attn::Plan own_block(const test::DevicePair& pair) {
  return test::moba_plan(pair.cpu->model, 64, 1, 1);
}

}  // namespace

TEST_CASE("model/device_fp8: a chunk over pages of the CPU and decode steps on emu agree with the CPU's logits") {
  const test::DevicePair pair = fp8_pair();
  const auto tokens = test::some_tokens(70);
  const attn::Plan plan = own_block(pair);
  LocalPages cpu_pages = pair.pages(80), gpu_pages = pair.pages(80);
  for (LocalPages* pages : {&cpu_pages, &gpu_pages})
    REQUIRE_OK(test::prefill(pair.cpu->runner, *pages, std::span(tokens).first(64), plan));
  const auto cpu = test::prefill(pair.cpu->runner, cpu_pages, std::span(tokens).subspan(64), plan, 64);
  const auto gpu = test::prefill(*pair.gpu, gpu_pages, std::span(tokens).subspan(64), plan, 64);
  REQUIRE_OK(cpu);
  REQUIRE_OK(gpu);
  CHECK(test::share(*gpu, *cpu) < kFp8Share);
  std::vector<float> cpu_logits(pair.config().vocab), gpu_logits(pair.config().vocab);
  for (int64_t position = 70; position < 72; ++position) {
    const DecodeRow on_cpu{100, position, cpu_pages.pages(), &plan, nullptr};
    const DecodeRow on_gpu{100, position, gpu_pages.pages(), &plan, nullptr};
    REQUIRE_OK(pair.cpu->runner.decode({&on_cpu, 1}, cpu_logits));
    REQUIRE_OK(pair.gpu->decode({&on_gpu, 1}, gpu_logits));
    CHECK(test::share(gpu_logits, cpu_logits) < kFp8Share);
  }
}

TEST_CASE("model/device_fp8: pages do not depend on chunks, are sealed as lib/attn does, and have the device's sums") {
  const test::DevicePair pair = fp8_pair();
  const auto tokens = test::some_tokens(100);
  const attn::Plan plan = own_block(pair);
  const ExtentLayout layout = pair.cpu->runner.layout();
  LocalPages whole = pair.pages(128), parts = pair.pages(128);
  const auto logits = test::prefill(*pair.gpu, whole, tokens, plan);
  REQUIRE_OK(logits);
  for (uint32_t layer = 0; layer < layout.layers; ++layer)
    for (size_t page = 0; page < 2; ++page) {
      const auto extent = whole.page(page).subspan(layout.layer_offset(layer), layout.layer_bytes());
      CHECK(pair.gpu->checksums(layer)[page] == crc32c(extent));
      std::vector<std::byte> sealed(extent.begin(), extent.end());
      attn::seal(layout, sealed.data(), page == 0 ? 64 : 36);
      CHECK(std::ranges::equal(sealed, extent));
    }
  REQUIRE_OK(test::prefill(*pair.gpu, parts, std::span(tokens).first(64), plan));
  const auto last = test::prefill(*pair.gpu, parts, std::span(tokens).subspan(64), plan, 64);
  REQUIRE_OK(last);
  CHECK(*last == *logits);
  for (size_t page = 0; page < 2; ++page) CHECK(std::ranges::equal(whole.page(page), parts.page(page)));
}

TEST_CASE("model/device_fp8: steps over pages that stay on the device give the logits and bytes of copied pages") {
  // Steps 62 to 66 fill a page and begin the next one. A sequence without a name is copied in from the host's pages for
  // each step, so its logits differ when the host has put together other pages than the device.
  for (const bool graphs : {true, false}) {
    const test::DevicePair pair = fp8_pair(graphs);
    pair.driver->gpu().set_options({.seed = test::seed(), .policy = gpu::emu::Policy::sticky});
    const auto tokens = test::some_tokens(62);
    const attn::Plan plan = own_block(pair);
    LocalPages kept = pair.pages(128), copied = pair.pages(128);
    for (LocalPages* pages : {&kept, &copied}) {
      for (size_t page = 0; page < 2; ++page) std::ranges::fill(pages->page(page), std::byte{0});
      REQUIRE_OK(test::prefill(pair.cpu->runner, *pages, tokens, plan));
    }
    std::vector<float> stays(pair.config().vocab), again(pair.config().vocab);
    for (int64_t position = 62; position < 67; ++position) {
      const auto token = static_cast<uint32_t>(300 + 17 * position % 500);
      const DecodeRow named{.token = token, .position = position, .pages = kept.pages(), .plan = &plan, .sequence = 9};
      const DecodeRow plain{.token = token, .position = position, .pages = copied.pages(), .plan = &plan};
      REQUIRE_OK(pair.gpu->decode({&named, 1}, stays));
      REQUIRE_OK(pair.gpu->decode({&plain, 1}, again));
      INFO("position " << position);
      CHECK(stays == again);
    }
    for (size_t page = 0; page < 2; ++page) CHECK(std::ranges::equal(kept.page(page), copied.page(page)));
    const ExtentLayout layout = pair.cpu->runner.layout();
    std::vector<std::byte> sealed(kept.page(0).begin(),
                                  kept.page(0).begin() + static_cast<ptrdiff_t>(layout.layer_bytes()));
    attn::seal(layout, sealed.data(), 64);
    CHECK(std::equal(sealed.begin(), sealed.end(), kept.page(0).begin()));
  }
}
#endif
