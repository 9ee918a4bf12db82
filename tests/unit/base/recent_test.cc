#include "base/recent.h"

#include <vector>

#include "test.h"

using namespace mc;

TEST_CASE("base/recent: a reader is given each value once, and of too many the last ones") {
  Recent recent;
  const auto after = [&](uint64_t seen) {
    std::vector<double> out;
    recent.after(seen, [&](double value) { out.push_back(value); });
    return out;
  };
  CHECK(after(0).empty());
  recent.add(1), recent.add(2);
  CHECK(after(0) == std::vector<double>{1, 2});
  CHECK(after(1) == std::vector<double>{2});
  CHECK(after(recent.count()).empty());
  for (uint64_t i = 0; i < Recent::kKept; ++i) recent.add(3);
  CHECK(after(0) == std::vector<double>(Recent::kKept, 3));
  CHECK(recent.count() == Recent::kKept + 2);
}
