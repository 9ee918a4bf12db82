#include "product/descriptors.h"

#include "base/errors.h"
#include "test.h"

using namespace mc;

TEST_CASE("product/descriptors: what strangers may take leaves a quarter and what the process has at rest") {
  for (const uint64_t limit : {80u, 100u, 128u, 256u, 1024u, 20000u, 1u << 20})
    for (const bool data : {false, true}) {
      CAPTURE(limit);
      const auto plan = plan_descriptors(limit, data, 0);
      REQUIRE_OK(plan);
      CHECK(plan->limit == limit);
      CHECK(plan->http >= 8);
      CHECK(plan->control >= 8);
      CHECK((plan->data > 0) == data);
      CHECK(plan->http + plan->control + plan->data + 48 + 8 <= limit);
      CHECK(plan->http <= 10'000);
    }
}

TEST_CASE("product/descriptors: a limit below what a process needs is MC5006 with the number") {
  for (const uint64_t limit : {0u, 16u, 71u}) {
    const auto plan = plan_descriptors(limit, false, 0);
    REQUIRE_FALSE(plan);
    CHECK(plan.error().mc == err::kSystemLimit);
    CHECK(plan.error().what.find(std::to_string(limit)) != std::string::npos);
  }
  CHECK(plan_descriptors(72, false, 0));
  CHECK_FALSE(plan_descriptors(79, true, 0));
}

TEST_CASE("product/descriptors: files of the block store are nobody else's") {
  for (const uint64_t files : {1u, 272u, 1040u}) {
    CAPTURE(files);
    const auto plan = plan_descriptors(80 + files, true, files);
    REQUIRE_OK(plan);
    CHECK(plan->http + plan->control + plan->data + 48 + 8 + files <= plan->limit);
    const auto without = plan_descriptors(80, true, 0);
    CHECK(plan->http == without->http);
    const auto refused = plan_descriptors(79 + files, true, files);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().mc == err::kSystemLimit);
    CHECK(refused.error().what.find(std::to_string(80 + files) + " are needed, " + std::to_string(files)) !=
          std::string::npos);
    CHECK(refused.error().next.find("--ssd") != std::string::npos);
  }
}

TEST_CASE("product/descriptors: raising never lowers the limit") {
  const auto once = raise_descriptor_limit();
  REQUIRE_OK(once);
  const auto twice = raise_descriptor_limit();
  REQUIRE_OK(twice);
  CHECK(*once == *twice);
}
