// The contract of an attention mode, which decides the keys that a row attends to. A row is one query head of one token
// at position p of its sequence. Key blocks of `moba_block` tokens start at position 0 of every sequence. A mode names,
// for every row, a set of whole blocks before the row's own block. The row's own block, up to and including p, is
// always attended. Rows at positions below dense_below() select nothing: they attend to every key from first_key() to
// their own. When first_key() is 0, their result equals full attention bit for bit.
//
// To add a mode: one file mode_<name>.cc and one line in modes.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "attn/visible.h"

namespace mc::attn {

/// A parameter as users write it ("block=128").
struct ModeParam {
  std::string_view name;
  int32_t Mode::*field;
  int32_t fallback;  // used when neither the user nor the model gives one
  int32_t low, high;
  std::string_view help;
};

/// One call of the selector: rows of one KV head, in any order, each with the scores of all blocks that it may choose.
struct SelectRow {
  const float* scores;     // [candidates]: gate score of block j
  const float* strip_max;  // [ceil(candidates / 64)]: an upper bound of each 64 scores, NaN left out
  int64_t candidates;      // blocks 0 .. candidates-1 end at or before the row's own block
  int32_t* chosen;         // [top_k - 1]: ascending block ids, then -1
};

struct ModeRow {
  ModeKind kind;
  std::string_view name;
  std::string_view help;  // one line for --help
  std::span<const ModeParam> params;
  int32_t full_last;  // number of last layers that stay full by default
  int64_t (*dense_below)(const Mode& mode);
  /// The first key of a dense row. It never decreases as the position grows.
  int64_t (*first_key)(const Mode& mode, int64_t position);
  /// Null when every row is dense. Scores are those of MoBA's gate: q . (mean of the block's keys).
  void (*select)(const Mode& mode, const SelectRow& row);
};

/// All modes; --help, the parser and the tests iterate it.
std::span<const ModeRow* const> modes();
const ModeRow& mode_row(ModeKind kind);

inline int64_t dense_below(const Mode& mode) {
  return mode_row(mode.kind).dense_below(mode);
}
inline int64_t first_key(const Mode& mode, int64_t position) {
  return mode_row(mode.kind).first_key(mode, position);
}

}  // namespace mc::attn
