// The content of a .mckv stream, for `mc-cache inspect`, and the difference of two streams, for `mc-bench diff-kv`.
// Both read front to back in bounded memory. They recompute the checksums and derive the block ids again from the
// prompt's tokens.
#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "wire/mckv.h"

namespace mc::kv {

struct Inspection {
  struct Block {
    BlockHash id;  // zero for the tail
    uint32_t first_position = 0;
    uint32_t token_count = 0;
    bool id_matches = false;  // the id is that of the prompt's tokens (true for a tail)
    bool checksums_hold = false;
  };
  wire::KvPrologue prologue;
  ExtentLayout layout;
  std::vector<Block> blocks;
  uint64_t extent_bytes = 0;       // sum over all blocks
  bool namespace_matches = false;  // the id is that of the text; a tenant's salt is not in the text
  std::optional<Error> damage;     // the error at which reading stopped; blocks before it are listed

  bool sound() const;
  /// The stream ends before its trailer.
  bool is_cut_short() const { return damage && damage->code == Code::peer_lost; }
  /// Number of blocks of which all bytes are there and agree with their checksums.
  size_t whole_blocks() const;
  /// The result as text: a dozen lines, and one a block.
  std::string text() const;
  /// {"type":"mckv", ...}: keys in man/mckv.5.
  Json json() const;

 private:
  std::string verdict() const;
};

/// Fails only when not even the prologue can be read; later damage is in the result. `read` fails with Code::peer_lost
/// at the end of the stream.
Result<Inspection> inspect(const wire::ReadBytes& read);

struct Difference {
  struct Place {
    uint32_t layer = 0;
    uint32_t position = 0;  // position of the token
    uint32_t kv_head = 0;
    char part = 'k';  // k, v, s (ksum) or m (kmean)
    uint32_t index = 0;
    double left = 0, right = 0;
    auto key() const { return std::tuple(layer, position, kv_head, part, index); }
  };
  std::optional<uint32_t> first_token;  // index of the first prompt id that differs (or that one side lacks)
  bool answer_differs = false;          // first token drawn by prefill
  std::optional<Place> first;           // lowest layer, then token, then head
  uint64_t value_count = 0;             // values compared
  uint64_t differing_count = 0;
  double abs_max = 0;  // infinite when one side is not finite and the other differs
  double rel_max = 0;  // |a - b| / max(|a|, |b|)
  std::vector<double> abs_max_by_layer;
  uint32_t blocks_compared = 0;

  /// No value and no token differs.
  bool equal() const { return !first_token && !answer_differs && differing_count == 0; }
  std::string text() const;
  Json json() const;
};

struct Stream {
  std::string name;  // for errors: the file
  wire::ReadBytes read;
};
/// Compares prompts, then K, V, ksum and kmean of the blocks both have. Code::invalid when the layouts differ (both
/// values in the text). When a stream is damaged, the reader's error behind the stream's name and the offset of the
/// bytes at fault.
Result<Difference> diff(const Stream& left, const Stream& right);

}  // namespace mc::kv
