#include "base/ring.h"

#include <memory>
#include <thread>
#include <vector>

#include "test.h"

using namespace mc;

TEST_CASE("base/ring: a full ring refuses, keeps order and takes more after a pop") {
  SpscRing<int> spsc(3);
  MpscRing<int> mpsc(3);
  CHECK(spsc.capacity() == 4);
  CHECK(mpsc.capacity() == 4);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 4; ++i) {
      CHECK(spsc.push(i));
      CHECK(mpsc.push(i));
    }
    CHECK_FALSE(spsc.push(9));
    CHECK_FALSE(mpsc.push(9));
    CHECK(spsc.pop() == 0);
    CHECK(mpsc.pop() == 0);
    CHECK(spsc.push(4));
    CHECK(mpsc.push(4));
    for (int i = 1; i <= 4; ++i) {
      CHECK(spsc.pop() == i);
      CHECK(mpsc.pop() == i);
    }
    CHECK_FALSE(spsc.pop());
    CHECK_FALSE(mpsc.pop());
  }
}

TEST_CASE("base/ring: a refused value stays with its owner") {
  MpscRing<std::unique_ptr<int>> ring(2);
  CHECK(ring.push(std::make_unique<int>(1)));
  CHECK(ring.push(std::make_unique<int>(2)));
  auto third = std::make_unique<int>(3);
  CHECK_FALSE(ring.push(std::move(third)));
  REQUIRE(third);
  CHECK(**ring.pop() == 1);
}

TEST_CASE("base/ring: every value of many producers arrives once and in each producer's order") {
  constexpr int kProducers = 4, kEach = 20'000;
  MpscRing<int> ring(64);
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p)
    producers.emplace_back([&ring, p] {
      for (int i = 0; i < kEach;)
        if (ring.push(p * kEach + i))
          ++i;
        else
          std::this_thread::yield();
    });
  std::vector<int> next(kProducers, 0);
  for (int seen = 0; seen < kProducers * kEach;) {
    const auto value = ring.pop();
    if (!value) {
      std::this_thread::yield();
      continue;
    }
    REQUIRE(*value % kEach == next[*value / kEach]);
    ++next[*value / kEach];
    ++seen;
  }
  for (auto& t : producers) t.join();
  CHECK_FALSE(ring.pop());
}

TEST_CASE("base/ring: one producer and one consumer see the same sequence") {
  SpscRing<uint64_t> ring(8);
  constexpr uint64_t kCount = 100'000;
  std::thread producer([&] {
    for (uint64_t i = 0; i < kCount;)
      if (ring.push(i))
        ++i;
      else
        std::this_thread::yield();
  });
  for (uint64_t expected = 0; expected < kCount;)
    if (const auto value = ring.pop())
      REQUIRE(*value == expected++);
    else
      std::this_thread::yield();
  producer.join();
}
