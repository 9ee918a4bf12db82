#include "run/memory_plan.h"

#include "base/errors.h"
#include "test.h"

using namespace mc;
using namespace mc::run;

namespace {
constexpr uint64_t kMiB = uint64_t{1} << 20;
}

TEST_CASE("run/memory_plan: what fits passes, to the last byte") {
  MemoryPlan plan{100 * kMiB, 10 * kMiB, 50 * kMiB, kMiB, 160 * kMiB};
  CHECK(check_memory(plan).has_value());
  --plan.free_bytes;
  CHECK_FALSE(check_memory(plan).has_value());
}

TEST_CASE("run/memory_plan: a pool that does not fit is answered with the largest that does") {
  const auto result = check_memory({100 * kMiB, 10 * kMiB, 500 * kMiB, kMiB, 160 * kMiB + 5});
  REQUIRE_FALSE(result);
  CHECK(result.error().mc == static_cast<int>(err::kNotEnoughMemory));
  CHECK(result.error().what.find("100 MiB for weights") != std::string::npos);
  CHECK(result.error().what.find("free are 160 MiB") != std::string::npos);
  CHECK(result.error().next == "the largest --kv-mem that fits is 50MiB");
}

TEST_CASE("run/memory_plan: a model that leaves no room for a pool says so, whatever the pool") {
  for (uint64_t kv : {uint64_t{0}, 500 * kMiB}) {
    const auto result = check_memory({100 * kMiB, 10 * kMiB, kv, kMiB, 110 * kMiB + 3 * kMiB});
    REQUIRE_FALSE(result);
    CHECK(result.error().next.find("no --kv-mem fits") == 0);
  }
}
