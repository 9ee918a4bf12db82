// One shape of `mc-bench attn`: a sequence's KV in pages of random order, as a pool would hold it, and queries
// made from the seed. Decode walks enough layers that no call finds its K and V in a cache; a model's decode
// step does the same.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "attn/attn.h"
#include "base/cli.h"
#include "base/parallel.h"
#include "mem/mem.h"

namespace mc::bench {

/// Bytes that a bench walks through so that none of its operands stays in a cache: much more than a last-level cache
/// keeps for one core.
inline constexpr size_t kColdBytes = size_t{512} << 20;

/// The mode of a plan, and the plan as text.
using NamedMode = std::pair<std::string, attn::Mode>;
/// Plans from the items of a comma list; an item that names no mode is a parameter of the plan before.
Result<std::vector<NamedMode>> read_plans(const std::vector<std::string>& items, uint32_t block_tokens);

inline constexpr Flag kHeads{.name = "heads",
                             .kind = FlagKind::list,
                             .value = "Q/KV",
                             .fallback = "32/8",
                             .help = "query heads and KV heads: 32/8,4/1"};
/// "32/8": 32 query heads and 8 KV heads.
Result<std::pair<int32_t, uint32_t>> read_heads(const std::string& text);

/// Neighbouring rows that choose alike where choices are coherent.
inline constexpr size_t kCoherentTokens = 64;

struct AttnShape {
  bool decode = false;
  int64_t tokens = 0;        // the context's length
  int64_t chunk_tokens = 0;  // prefill: rows of one call
  int32_t q_heads = 0;
  ExtentLayout layout;  // `layers` is set by AttnCase::open
  /// Queries of neighbouring tokens and of a group's heads point the same way and choose the same moba blocks;
  /// otherwise every row chooses for itself: the worst case for reading, the best for balance.
  bool coherent = false;
  bool gathered = true;  // decode's gate finds the centroids gathered, as a decode node keeps them

  /// Layers that decode walks.
  uint32_t walked_layers() const;
  /// Bytes that AttnCase::open allocates.
  size_t bytes() const;
};

class AttnCase {
 public:
  /// Fills the pages on `parallel`, which must outlive the case. Code::no_space when memory is short.
  static Result<AttnCase> open(const AttnShape& shape, Parallel& parallel, uint64_t seed);

  /// Seconds of one layer: prefill of the whole context in chunks, or one decode step at its end (the mean over
  /// the layers walked, each with another query).
  Result<double> run(attn::Attention& attention, const attn::Mode& mode);
  /// Bytes of K, V and centroids that one layer's decode step must read, the mean over the layers: the union of
  /// what each KV head's query heads chose, each byte once.
  Result<double> decode_bytes(attn::Attention& attention, const attn::Mode& mode);

 private:
  AttnCase(const AttnShape& shape, Parallel& parallel) : shape_(shape), parallel_(&parallel) {}
  const attn::CentroidIndex& centroids(const attn::Mode& mode);
  attn::KvView view(uint32_t layer, int64_t kv_len) const;
  void fill_queries(uint64_t seed);

  AttnShape shape_;
  Parallel* parallel_;
  mem::HostBuffer pool_, q_, out_;
  std::vector<std::byte*> pages_;
  std::map<int32_t, attn::CentroidIndex> centroids_;  // by moba_block
};

}  // namespace mc::bench
