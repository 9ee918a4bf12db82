// Every variant against the definition, on sizes and alignments around every edge of the fast ones.
#include "base/copy_crc.h"

#include <cstring>
#include <vector>

#include "base/hash.h"
#include "base/rng.h"
#include "test.h"

using namespace mc;

namespace {

constexpr std::byte kGuard{0xA5};
constexpr size_t kGuardBytes = 64;

std::vector<size_t> edge_sizes(Rng& rng) {
  std::vector<size_t> sizes;
  for (const size_t edge : {size_t{0}, size_t{8}, size_t{64}, size_t{256}, size_t{320}, size_t{512}, size_t{4096},
                            size_t{16384}, kCopyStreamBytes, kCopyStreamBytes + 256, size_t{1} << 20})
    for (int off = -2; off <= 2; ++off)
      if (edge + static_cast<size_t>(off) <= (size_t{1} << 20) + 2) sizes.push_back(edge + static_cast<size_t>(off));
  for (int i = 0; i < 200; ++i) sizes.push_back(rng.below(2048));
  for (int i = 0; i < 10; ++i) sizes.push_back(rng.below(600000));
  return sizes;
}

}  // namespace

TEST_CASE("base/copy_crc: every variant copies exactly its range and returns the CRC32C of it") {
  Rng rng(test::seed());
  constexpr size_t kMax = (size_t{1} << 20) + 1024;
  std::vector<std::byte> source(kMax), target(kMax);
  for (std::byte& b : source) b = static_cast<std::byte>(rng.next());
  for (const CopyVariant* variant : copy_variants()) {
    CAPTURE(variant->name);
    if (!variant->usable()) continue;
    for (const size_t size : edge_sizes(rng)) {
      const size_t from = rng.below(130), to = kGuardBytes + rng.below(130);
      const auto seed = static_cast<uint32_t>(rng.below(2) == 0 ? 0 : rng.next());
      CAPTURE(size);
      CAPTURE(from);
      CAPTURE(to);
      const uint32_t want = copy_variants()[0]->sum(source.data() + from, size, seed);
      REQUIRE(crc32c({source.data() + from, size}, seed) == want);
      REQUIRE(variant->sum(source.data() + from, size, seed) == want);
      for (const int mode : {0, 1, 2, 3}) {
        const bool sum = mode % 2 == 0, stream = mode < 2;
        std::memset(target.data(), static_cast<int>(kGuard), to + size + kGuardBytes);
        if (sum)
          REQUIRE(variant->copy_crc(target.data() + to, source.data() + from, size, seed, stream) == want);
        else
          variant->copy(target.data() + to, source.data() + from, size, stream);
        REQUIRE(std::memcmp(target.data() + to, source.data() + from, size) == 0);
        bool guarded = true;
        for (size_t i = 0; i < kGuardBytes; ++i)
          guarded &= target[to - 1 - i] == kGuard && target[to + size + i] == kGuard;
        REQUIRE(guarded);
      }
    }
  }
}

TEST_CASE("base/copy_crc: the sum of a whole is had by continuing over its pieces") {
  Rng rng(test::seed() + 1);
  std::vector<std::byte> source(700000), target(700000);
  for (std::byte& b : source) b = static_cast<std::byte>(rng.next());
  for (int round = 0; round < 20; ++round) {
    uint32_t crc = 0;
    for (size_t at = 0; at < source.size();) {
      const size_t bytes = std::min(source.size() - at, static_cast<size_t>(rng.below(round < 10 ? 1000 : 500000)));
      crc = copy_crc32c(target.data() + at, source.data() + at, bytes, crc, round % 2 == 0 ? 0 : source.size());
      at += bytes;
    }
    CHECK(crc == crc32c(source));
  }
}

TEST_CASE("base/copy_crc: all zero and all one bytes sum to what the definition says") {
  for (const int value : {0, 0xFF}) {
    std::vector<std::byte> source(5000), target(5000);
    std::memset(source.data(), value, source.size());
    const uint32_t want = copy_variants()[0]->sum(source.data(), source.size(), 0);
    for (const CopyVariant* variant : copy_variants())
      if (variant->usable()) CHECK(variant->copy_crc(target.data(), source.data(), source.size(), 0, true) == want);
  }
}
