// Block hashes for tests of the table of blocks: any 16 bytes, from a seeded generator.
#pragma once

#include <array>
#include <cstring>

#include "base/ids.h"
#include "base/rng.h"

namespace mc::test {

inline BlockHash draw(Rng& rng) {
  BlockHash out;
  const std::array<uint64_t, 2> words{rng.next(), rng.next()};
  std::memcpy(out.bytes.data(), words.data(), sizeof words);
  return out;
}

}  // namespace mc::test
