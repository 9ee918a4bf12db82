#include "sim/tags.h"

namespace mc::sim {
namespace {

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace

uint64_t tag_begin(uint64_t previous, uint32_t layer) {
  return mix(previous + 0x9e3779b97f4a7c15ull * (layer + 1));
}
uint64_t tag_extend(uint64_t tag, uint64_t row) {
  return mix(tag + 0x2545f4914f6cdd1dull * (row + 1));
}
uint64_t next_row(uint64_t row, uint64_t tag) {
  return mix(row * 31 + tag);
}
uint64_t tag_fold(uint64_t sum, uint64_t tag) {
  return mix(sum * 31 + tag);
}
uint32_t tag_token(uint64_t sum) {
  return static_cast<uint32_t>(mix(sum) % kVocab);
}

uint32_t Activations::crc() const {
  uint64_t sum = pages;
  for (const uint64_t row : rows) sum = tag_fold(sum, row);
  return static_cast<uint32_t>(sum);
}

std::vector<uint32_t> oracle(const WorldOptions& options, const std::vector<uint32_t>& ids, uint32_t count) {
  std::vector<std::vector<uint64_t>> blocks;  // [block][layer]
  uint32_t tokens = 0;
  const auto feed = [&](uint32_t token) {
    if (tokens % options.block_tokens == 0) {
      blocks.emplace_back(options.layers);
      for (uint32_t l = 0; l < options.layers; ++l)
        blocks.back()[l] = tag_begin(blocks.size() > 1 ? blocks[blocks.size() - 2][l] : 0, l);
    }
    uint64_t row = token;
    for (uint64_t& tag : blocks.back()) tag = tag_extend(tag, row), row = next_row(row, tag);
    ++tokens;
  };
  for (uint32_t id : ids) feed(id);
  std::vector<uint32_t> answer;
  const bool stops = options.profile == nullptr;
  while (answer.size() < count && tokens + 1 <= options.context_tokens) {
    uint64_t sum = 0;
    for (uint32_t l = 0; l < options.layers; ++l)
      for (const auto& block : blocks) sum = tag_fold(sum, block[l]);
    answer.push_back(tag_token(sum));
    if ((stops && answer.back() == kStopToken) || tokens + 1 >= options.context_tokens) break;
    feed(answer.back());
  }
  return answer;
}

}  // namespace mc::sim
