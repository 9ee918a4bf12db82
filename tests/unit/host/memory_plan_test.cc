// The memory plan with invented sizes, to the byte: a plan passes exactly when all that it counts fits, and what its
// message advises passes in turn. The count of MoBA centroids is compared with what attn::CentroidIndex really takes.
#include "host/memory_plan.h"

#include "attn/centroids.h"
#include "base/errors.h"
#include "base/parallel.h"
#include "test.h"

namespace memory_plan_test {

using namespace mc;
using namespace mc::host;

namespace {
constexpr uint64_t kMiB = uint64_t{1} << 20;
}

TEST_CASE("host/memory_plan: what fits passes, to the last byte") {
  MemoryPlan plan{100 * kMiB, 10 * kMiB, 50 * kMiB, kMiB, 160 * kMiB};
  CHECK(check_memory(plan).has_value());
  --plan.free_bytes;
  CHECK_FALSE(check_memory(plan).has_value());
}

TEST_CASE("host/memory_plan: a pool that does not fit is answered with the largest that does") {
  const auto result = check_memory({100 * kMiB, 10 * kMiB, 500 * kMiB, kMiB, 160 * kMiB + 5});
  REQUIRE_FALSE(result);
  CHECK(result.error().mc == static_cast<int>(err::kNotEnoughMemory));
  CHECK(result.error().what.find("100 MiB for weights") != std::string::npos);
  CHECK(result.error().what.find("160 MiB are free") != std::string::npos);
  CHECK(result.error().next == "the largest --kv-mem that fits is 50MiB");
}

TEST_CASE("host/memory_plan: a model that leaves no room for a pool says so, whatever the pool") {
  for (uint64_t kv : {uint64_t{0}, 500 * kMiB}) {
    const auto result = check_memory({100 * kMiB, 10 * kMiB, kv, kMiB, 110 * kMiB + 3 * kMiB});
    REQUIRE_FALSE(result);
    CHECK(result.error().next.find("no --kv-mem fits") == 0);
  }
}

TEST_CASE("host/memory_plan: a device with room for the least pool passes, and one byte less names what fits") {
  DevicePlan plan{"cuda:1", 100 * kMiB, 10 * kMiB, kMiB, 114 * kMiB, 120 * kMiB};
  CHECK(plan.pages() == kPagesMin);
  CHECK(check_device_memory(plan).has_value());
  --plan.free_bytes;
  const auto refused = check_device_memory(plan);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().mc == static_cast<int>(err::kDeviceMemory));
  for (const char* part : {"cuda:1: the model needs 100 MiB for weights, 10 MiB of scratch and 4 MiB for KV",
                           "together 114 MiB", "113 of 120 MiB are free"})
    CHECK_MESSAGE(refused.error().what.find(part) != std::string::npos, refused.error().what);
  CHECK(refused.error().next.find("weights of at most 99 MiB fit") == 0);
  plan.beside_page_bytes = kMiB;  // attention takes as much again for each page
  plan.free_bytes = 118 * kMiB;
  CHECK(plan.pages() == kPagesMin);
  CHECK(check_device_memory(plan).has_value());
  --plan.free_bytes;
  CHECK(check_device_memory(plan).error().what.find("8 MiB for KV, together 118 MiB") != std::string::npos);
  plan.free_bytes = kMiB;  // less than the scratch memory alone
  CHECK(plan.pages() == 0);
  CHECK(check_device_memory(plan).error().next.find("weights of at most 0 MiB fit") == 0);
}

TEST_CASE("host/memory_plan: a share of an emulated GPU is bounded, and sizes and shares of other GPUs are not") {
  const ByteSize half{.percent = 50};
  CHECK(device_pages_asked(half, 1000, kMiB, gpu::DeviceKind::cuda) == 500);
  CHECK(device_pages_asked(half, 1000, kMiB, gpu::DeviceKind::emu) == 64);
  CHECK(device_pages_asked(half, 100, kMiB, gpu::DeviceKind::emu) == 50);
  CHECK(device_pages_asked(half, 1000, 32 * kMiB, gpu::DeviceKind::emu) == kPagesMin);
  for (const gpu::DeviceKind kind : {gpu::DeviceKind::cuda, gpu::DeviceKind::emu})
    CHECK(device_pages_asked({.bytes = 700 * kMiB + 1}, 1000, kMiB, kind) == 700);
}

TEST_CASE("host/memory_plan: the copies of MoBA centroids are counted, and what is advised passes with them") {
  MemoryPlan plan{100 * kMiB, 10 * kMiB, 500 * kMiB, 256 * 1024, 160 * kMiB, 1024};
  const auto result = check_memory(plan);
  REQUIRE_FALSE(result);
  CHECK(result.error().what.find("500 MiB for KV and 2 MiB for its MoBA centroids, together 612 MiB") !=
        std::string::npos);
  CHECK(result.error().next == "the largest --kv-mem that fits is 49MiB");
  plan.kv_bytes = 49 * kMiB;
  CHECK(check_memory(plan).has_value());
  plan.kv_bytes = 50 * kMiB;
  CHECK_FALSE(check_memory(plan).has_value());
}

TEST_CASE("host/memory_plan: centroids take 1/(2 block) of bf16 KV, and nothing of dense plans") {
  const ExtentLayout layout{.layers = 4, .kv_heads = 2, .head_dim = 64, .block_tokens = 64, .dtype = Dtype::bf16};
  const attn::Plan moba{attn::Mode{attn::ModeKind::moba, 128, 3}, 1, 4};
  const uint64_t kv_bytes = uint64_t{2} * 2 * 64 * 4 * 2 * 64;  // of a page: K and V
  CHECK(centroid_bytes(moba, layout).page_bytes == kv_bytes / (2 * 128));
  CHECK(centroid_bytes(attn::Plan{attn::Mode{}, 0, 4}, layout).page_bytes == 0);
  CHECK(centroid_bytes(attn::Plan{moba.mode, 4, 4}, layout).page_bytes == 0);
}

TEST_CASE("host/memory_plan: the index of a sequence takes no more than was counted for its pages") {
  const ExtentLayout layout{.layers = 3, .kv_heads = 2, .head_dim = 16, .block_tokens = 16, .dtype = Dtype::f32};
  const attn::Plan plan{attn::Mode{attn::ModeKind::moba, 32, 2}, 0, 3};
  Parallel parallel(1);
  std::vector<std::byte> page(layout.page_bytes());
  for (size_t pages : {size_t{1}, size_t{9}, size_t{200}, size_t{1000}}) {
    const std::vector<const std::byte*> list(pages, page.data());
    attn::CentroidIndex index(layout);
    index.extend(plan, list.data(), static_cast<int64_t>(pages) * 16, parallel);
    const CentroidBytes counted = centroid_bytes(plan, layout);
    CHECK(index.bytes() <= pages * counted.page_bytes + counted.strip_bytes);
    CHECK((pages < 9 || index.bytes() + counted.strip_bytes >= pages * counted.page_bytes));
  }
}

}  // namespace memory_plan_test
