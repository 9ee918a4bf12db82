// MoBA prefill by key blocks: which shape a sequence takes, and how its tokens are cut into pieces whose index and
// parts fit a bounded workspace. The kernels of lib/gpu/kernels are index_sm80.cu, routed_sm80.cu and, in four shapes
// that the mean number of rows of a list chooses among, those of compute capability 9.0:
//
//   W wide        routed_sm90a.cu      blocks of 256 keys and more, or long lists
//   S stationary  stationary_sm90a.cu  blocks of up to 256 keys and long lists
//   T transposed  transposed_sm90a.cu  short lists
//   U union       attend_hopper.cuh    tiles of 128 rows that chose few blocks in all. The device decides for each
//                                      tile, whatever the shape of the lists is: the merge kernel walks the union
//
//   wave    pieces that share the workspace at the same time; waves run one after the other in the same bytes
//   piece   consecutive tokens of one sequence; a sequence has at most one piece in a wave
//
// A row's result follows from the row alone: not from the pieces, nor from the other rows of a list or tile. The four
// shapes give a row equal bits: each makes the same parts, one for each chosen block, from key tiles of 64 in one order
// of sums, rounds them to bf16, and merges them in the order of the blocks. A union tile does so in registers. On a
// chip this needs matrix units that sum alike for both operands; scripts/gpu-check compares the bits.
#pragma once

#include <cstdint>
#include <vector>

#include "base/extent.h"
#include "gpu/attention.h"
#include "gpu/kernels/attention.h"

namespace mc::gpu {

/// Bytes of the index and parts of a wave, unless AttentionShape names others. At 32 heads of 128 elements and 7 chosen
/// blocks they hold 2,194 tokens, whose lists have 64 rows up to 122,000 tokens of context in blocks of 128.
constexpr size_t kRoutedBytes = size_t{128} << 20;
/// Likewise, on a device with at least kLargeDevice bytes of memory: K and V are read for 8 times as many rows.
constexpr size_t kRoutedBytesLarge = size_t{1} << 30, kLargeDevice = size_t{16} << 30;
constexpr size_t routed_bytes_of(size_t device_bytes) {
  return device_bytes >= kLargeDevice ? kRoutedBytesLarge : kRoutedBytes;
}
/// Tokens of a piece at least, where the sequence has so many: the workspace grows beyond its bound for them.
constexpr int32_t kPieceTokensMin = 64;

/// The shape of a MoBA sequence with more rows than decode takes, by the density of its lists. `bytes`: of a wave.
AttentionKernel choose_routed(const ExtentLayout& layout, int32_t q_heads, const SequenceRows& sequence, size_t bytes,
                              bool is_hopper);

struct RoutedWave {
  size_t first = 0, count = 0;    // pieces
  int32_t longest = 0;            // tokens of a piece
  int32_t blocks = 0, items = 0;  // the most of a piece; items: of a KV head
  int32_t union_tiles = 0;        // likewise; 0: none is a union tile
  int32_t block = 0;              // the largest MoBA block
};

class RoutedPlan {
 public:
  /// `bytes`: of a wave. `unites`: whether tiles of rows may go by their union.
  RoutedPlan(const ExtentLayout& layout, int32_t q_heads, size_t bytes, bool unites = true)
      : layout_(layout), q_heads_(q_heads), bytes_(bytes), unites_(unites) {}

  struct Piece {
    size_t sequence = 0;            // as add() got it
    int32_t first = 0, tokens = 0;  // of the sequence
    Sequence rows;                  // without addresses
    size_t at = 0;                  // of its part of the workspace
    AttentionKernel kernel = AttentionKernel::wide;
  };

  /// Cuts a sequence into pieces. Sequences that follow one another share waves until close().
  void add(size_t number, const SequenceRows& sequence, AttentionKernel kernel);
  void close() { is_open_ = false; }

  const std::vector<Piece>& pieces() const { return pieces_; }
  const std::vector<RoutedWave>& waves() const { return waves_; }
  /// The bytes of the largest wave.
  size_t bytes() const { return most_; }
  /// The index and parts of a piece, in a workspace at `address`.
  Routing routing(const Piece& piece, uint64_t address) const;

 private:
  size_t place(const Piece& piece, uint64_t address, Routing& out) const;
  int32_t union_tiles_of(const Piece& piece) const;

  ExtentLayout layout_;
  int32_t q_heads_ = 0;
  size_t bytes_ = 0, most_ = 0;
  bool unites_ = true;
  std::vector<Piece> pieces_;
  std::vector<RoutedWave> waves_;
  bool is_open_ = false;
  size_t used_ = 0;    // bytes of the open wave's tokens, by token_bytes()
  size_t placed_ = 0;  // of its pieces
};

/// The workspace of a pass of at most `rows` tokens and `sequences` sequences in waves of `bytes` bytes, beside
/// routed_page_bytes() for each page.
size_t routed_bytes_most(const ExtentLayout& layout, int32_t q_heads, size_t rows, size_t sequences, size_t bytes);
size_t routed_page_bytes(const ExtentLayout& layout);

}  // namespace mc::gpu
