// The CPU drivers over one set of leaves, and their scratch memory (internal to lib/attn).
#pragma once

#include <vector>

#include "attn/args.h"
#include "attn/kernels.h"
#include "base/assert.h"
#include "base/result.h"
#include "mem/mem.h"

namespace mc {
class Parallel;
}

namespace mc::attn {

/// A bump allocator over memory that only grows: reserve() once in a call, then take() parts of it.
class Arena {
 public:
  static constexpr size_t kAlign = 64;

  Result<void> reserve(size_t bytes) {
    used_ = 0;
    if (bytes <= buffer_.size()) return {};
    buffer_ = {};  // freed first, so that the peak is one buffer
    MC_TRY(buffer, mem::HostBuffer::allocate(bytes, {.name = "attention scratch", .huge_pages = true}));
    buffer_ = std::move(buffer);
    return {};
  }
  void rewind() { used_ = 0; }
  template <class T>
  T* take(int64_t count) {
    const size_t at = used_;
    used_ += round_up(static_cast<size_t>(count) * sizeof(T), kAlign);
    MC_ASSERT_LE(used_, buffer_.size());
    return reinterpret_cast<T*>(buffer_.data() + at);
  }

 private:
  mem::HostBuffer buffer_;
  size_t used_ = 0;
};

/// The cuts of the keys that one KV head of a sequence reads in decode.
struct SequenceCuts {
  int64_t first_cut;   // counted over the batch
  int64_t cut_tokens;  // tokens of a cut
  bool sparse;
};

struct CpuScratch {
  Arena shared;
  std::vector<Arena> workers;
  std::vector<SequenceCuts> cuts;  // one for each sequence of a decode
};

/// The values that both drivers derive from a layout.
struct Shape {
  int head_dim;
  int dim;  // head_dim rounded up to 16
  int kv_heads;
  int q_heads;
  int group;    // query heads of one KV head
  bool bf16;    // the leaves read K and V as bf16: of that KV dtype, or widened from fp8_e4m3
  bool e4m3;    // KV dtype
  float scale;  // log2(e) * softmax scale
};
Shape shape_of(const ExtentLayout& layout, int32_t q_heads, float scale);

/// Up to kRun rows of K or of V of one page, as the leaves read them.
struct KvRows {
  const std::byte* k;
  const std::byte* v;
  ScaleExponents scales;  // with fp8_e4m3
};
KvRows rows_at(const ExtentLayout& layout, const KvView& kv, int64_t position, int kv_head);

/// Flushes denormals to zero while it exists, because denormal weights add nothing and are slow. Every task sets it, so
/// caller and workers compute equal bits.
class FlushDenormals {
 public:
  FlushDenormals();
  ~FlushDenormals();
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned saved_;
};

/// Centroids from `first` to `end` of one KV head, at most 64. They are read in place if they are gathered or a page is
/// a moba_block. Otherwise they are computed into `means` (64 rows).
CentroidRows gather_centroids(const Kernels& kernels, const ExtentLayout& layout, const KvView& kv, int kv_head,
                              int32_t moba_block, int64_t first, int64_t end, uint16_t* means);

/// Packs the centroids [first, first + 64) of one KV head into a strip of 4 K panels. Those from `count` on are zero.
void pack_centroids(const Kernels& kernels, const ExtentLayout& layout, const Shape& shape, const KvView& kv,
                    int kv_head, int32_t moba_block, int64_t first, int64_t count, std::byte* strip);

Result<void> prefill_cpu(const Kernels& kernels, Parallel& parallel, CpuScratch& scratch, const PrefillArgs& args);
Result<void> decode_cpu(const Kernels& kernels, Parallel& parallel, CpuScratch& scratch, const DecodeArgs& args);

}  // namespace mc::attn
