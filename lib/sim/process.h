// One simulated process: its machine, and the content of its KV memory as tags. Inside lib/sim only.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "sim/world.h"

namespace mc::sim {

inline constexpr uint32_t kStopToken = 0;
inline constexpr uint32_t kVocab = 64;

/// What a pipeline stage hands to the next one: a row for each token of the chunk, and what the layers below make of
/// all pages of the sequence.
struct Activations {
  std::vector<uint64_t> rows;
  uint64_t pages = 0;
  uint32_t crc() const;
};

struct World::Process {
  std::string name;
  InstanceId instance;
  std::unique_ptr<node::Machine> machine;  // null = not running
  node::Worker* worker = nullptr;          // the same machine, null for the conductor
  TimePoint tick_at = kNever;
  std::map<uint64_t, uint64_t> memory;        // extent offset in the KV buffer -> tag
  std::map<uint64_t, Activations> slots;      // by offset in the KV buffer; of pipeline members
  std::map<uint64_t, uint64_t> claims;        // extent offset -> the read or run writing it
  std::map<uint64_t, node::JoinBatch> batch;  // sequences that joined and have not left, with the pages added since
  std::set<uint64_t> cancelled;               // reads and runs
  TimePoint sends_until{}, receives_until{};  // its links, with a profile

  const std::string& called() const { return name; }
  /// A later stage of a pipeline: the books of its pages are its leader's.
  bool is_stage() const { return name.find('.') != std::string::npos; }
};

/// What keeps a worker from being idle, for failure messages.
std::string describe(const node::Worker& worker);

/// Tag arithmetic: a block's tag in a layer starts from its predecessor's and is extended by each token's row, which is
/// the token in the first layer and what the layer below made of it in the others.
uint64_t tag_begin(uint64_t previous, uint32_t layer);
uint64_t tag_extend(uint64_t tag, uint64_t row);
uint64_t next_row(uint64_t row, uint64_t tag);
uint64_t tag_fold(uint64_t sum, uint64_t tag);
uint32_t tag_token(uint64_t sum);

}  // namespace mc::sim
