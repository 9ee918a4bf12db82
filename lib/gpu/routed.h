// MoBA prefill by key blocks: which shape a sequence takes, and how its tokens are cut into pieces whose index and
// parts fit a bounded workspace. The kernels are index_sm80.cu, routed_sm80.cu and routed_sm90a.cu of lib/gpu/kernels.
//
//   wave    pieces that share the workspace at the same time; waves run one after the other in the same bytes
//   piece   consecutive tokens of one sequence; a sequence has at most one piece in a wave
//
// A row's result follows from the row alone: not from the pieces, nor from the other rows of a list.
#pragma once

#include <cstdint>
#include <vector>

#include "base/extent.h"
#include "gpu/attention.h"
#include "gpu/kernels/attention.h"

namespace mc::gpu {

/// Bytes of the index and parts of a wave, unless AttentionShape names others. At 32 heads of 128 elements and 7 chosen
/// blocks it holds 2,194 tokens, whose lists have 64 rows up to 122,000 tokens of context in blocks of 128.
constexpr size_t kRoutedBytes = size_t{128} << 20;
/// Tokens of a piece at least, where the sequence has so many: the workspace grows beyond its bound for them.
constexpr int32_t kPieceTokensMin = 64;

/// The shape of a MoBA sequence with more rows than decode takes, by the density of its lists. `bytes`: of a wave.
AttentionKernel choose_routed(const ExtentLayout& layout, int32_t q_heads, const SequenceRows& sequence, size_t bytes,
                              bool is_hopper);

struct RoutedWave {
  size_t first = 0, count = 0;    // pieces
  int32_t longest = 0;            // tokens of a piece
  int32_t blocks = 0, items = 0;  // the most of a piece; items: of a KV head
};

class RoutedPlan {
 public:
  /// `bytes`: of a wave.
  RoutedPlan(const ExtentLayout& layout, int32_t q_heads, size_t bytes)
      : layout_(layout), q_heads_(q_heads), bytes_(bytes) {}

  struct Piece {
    size_t sequence = 0;            // as add() got it
    int32_t first = 0, tokens = 0;  // of the sequence
    Sequence rows;                  // without addresses
    size_t at = 0;                  // of its part of the workspace
  };

  /// Cuts a sequence into pieces. Sequences that follow one another share waves until close().
  void add(size_t number, const SequenceRows& sequence);
  void close() { is_open_ = false; }

  const std::vector<Piece>& pieces() const { return pieces_; }
  const std::vector<RoutedWave>& waves() const { return waves_; }
  /// The bytes of the largest wave.
  size_t bytes() const { return most_; }
  /// The index and parts of a piece, in a workspace at `address`.
  Routing routing(const Piece& piece, uint64_t address) const;

 private:
  size_t place(const Piece& piece, uint64_t address, Routing& out) const;

  ExtentLayout layout_;
  int32_t q_heads_ = 0;
  size_t bytes_ = 0, most_ = 0;
  std::vector<Piece> pieces_;
  std::vector<RoutedWave> waves_;
  bool is_open_ = false;
  size_t used_ = 0;    // bytes of the open wave's tokens, by token_bytes()
  size_t placed_ = 0;  // of its pieces
};

/// The workspace of a pass of at most `rows` tokens and `sequences` sequences, beside routed_page_bytes() for each
/// page.
size_t routed_bytes_most(const ExtentLayout& layout, int32_t q_heads, size_t rows, size_t sequences);
size_t routed_page_bytes(const ExtentLayout& layout);

}  // namespace mc::gpu
