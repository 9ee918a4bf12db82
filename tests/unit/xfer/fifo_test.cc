#include "xfer/fifo.h"

#include <deque>
#include <memory>

#include "base/rng.h"
#include "test.h"

namespace fifo_test {

using namespace mc;
using namespace mc::xfer;

TEST_CASE("xfer/fifo: pushed, popped and erased anywhere, it holds what a deque holds") {
  Rng rng(mc::test::seed());
  Fifo<std::unique_ptr<int>> fifo;
  std::deque<int> model;
  for (int step = 0; step < 20000; ++step) {
    // drifts between empty and a few hundred, so that it grows and wraps
    const bool growing = step / 2000 % 2 == 0;
    const uint64_t dice = rng.below(10);
    if (dice < (growing ? 6u : 3u)) {
      fifo.push_back(std::make_unique<int>(step));
      model.push_back(step);
    } else if (dice < 9 && !model.empty()) {
      CHECK(*fifo.front() == model.front());
      if (rng.chance(0.5)) {
        fifo.pop_front();
      } else {
        CHECK(*std::unique_ptr<int>(std::move(fifo.front())) == model.front());
        fifo.drop_front();
      }
      model.pop_front();
    } else if (!model.empty()) {
      const size_t at = rng.below(model.size());
      fifo.erase(at);
      model.erase(model.begin() + static_cast<long>(at));
    }
    REQUIRE(fifo.size() == model.size());
    REQUIRE(fifo.empty() == model.empty());
    if (step % 97 == 0)
      for (size_t i = 0; i < model.size(); ++i) REQUIRE(*fifo[i] == model[i]);
  }
  fifo.clear();
  CHECK(fifo.empty());
}

TEST_CASE("xfer/fifo: what was taken out is gone at once") {
  Fifo<std::shared_ptr<int>> fifo;
  const auto shared = std::make_shared<int>(1);  // to count its holders
  for (int i = 0; i < 40; ++i) fifo.push_back(shared);
  fifo.pop_front();
  fifo.erase(20);
  CHECK(shared.use_count() == 39);
  fifo.clear();
  CHECK(shared.use_count() == 1);
}

}  // namespace fifo_test
