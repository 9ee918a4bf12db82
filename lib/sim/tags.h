// The content of KV memory in a simulated cluster: 64-bit tags. A block's tag in a layer starts from its predecessor's
// and is extended by each token's row, which is the token in the first layer and what the layer below made of it in the
// others. The next token is a function of all tags of a sequence, so one wrong block changes the answer. Inside lib/sim
// only.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/world.h"

namespace mc::sim {

inline constexpr uint32_t kStopToken = 0;
inline constexpr uint32_t kVocab = 64;

uint64_t tag_begin(uint64_t previous, uint32_t layer);
uint64_t tag_extend(uint64_t tag, uint64_t row);
uint64_t next_row(uint64_t row, uint64_t tag);
uint64_t tag_fold(uint64_t sum, uint64_t tag);
uint32_t tag_token(uint64_t sum);

/// The activations that a pipeline stage hands to the next one: a row for each token of the chunk, and the result of
/// the layers below for all pages of the sequence.
struct Activations {
  std::vector<uint64_t> rows;
  uint64_t pages = 0;
  uint32_t crc() const;
};

/// The right answer, computed without pages, caches or transfers.
std::vector<uint32_t> oracle(const WorldOptions& options, const std::vector<uint32_t>& ids, uint32_t count);

}  // namespace mc::sim
