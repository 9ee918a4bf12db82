// Attention of a batch on a device: what the kernels of lib/gpu/kernels compute, in the meaning of lib/attn (attn/
// args.h, attn/visible.h). Prefill and decode are one call; they differ in the rows of a sequence. A batch may have
// both: chunks of prompts, each of its own length, beside decode rows. The kernel of a sequence follows from the rows
// of that sequence alone, so its result has equal bits in every batch. Few decode rows may take clusters in place of
// the decode kernel, the gate and the merge: the bits of both ways are equal.
//
// MoBA prefill has two ways. The rows of a tile read the union of their blocks and mask what they did not choose; or
// each block reads the rows that chose it (gpu/routed.h), which costs an index and a merge and skips what nobody chose.
// The way follows from the length of a chunk too, so a prompt in other chunks may round in another way. Within the
// second way of a GPU of compute capability 9.0 nothing rounds in another way: the shapes of a list, and the device's
// choice of tiles of rows that go by their union after all, give a row equal bits.
//
// A MoBA sequence none of whose rows chooses is a sequence of full attention: it has no gate and no centroids.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "attn/visible.h"
#include "base/extent.h"
#include "gpu/gpu.h"
#include "gpu/kernels/attention.h"

namespace mc::gpu {

/// Rows of one sequence: tokens at positions q_begin .. q_begin + tokens - 1, whose K and V are in the pool when its
/// layer runs.
struct SequenceRows {
  int64_t q_begin = 0, kv_len = 0;
  int32_t tokens = 0;
  std::vector<int32_t> pages;  // numbers in the pool, of all kv_len tokens
  attn::Mode mode;
  int32_t splits = 0;  // CTAs that share the keys of a row tile, at most kSplitsMax; 0: splits_of()
};

enum class AttentionKernel : uint8_t {
  automatic,  // by the rows and the device
  prefill,    // 64 rows of a KV head share what they read
  decode,     // 16 rows; the keys of a tile go to different warps
  cluster,    // the rows, choices and bits of decode in one launch: compute capability 9.0 alone
  hopper,     // prefill by TMA and wgmma: compute capability 9.0 alone
  routed,     // MoBA prefill by key blocks, 16 rows of a list at a time; prefill for other plans and rounded steps
  // MoBA prefill by key blocks with TMA and wgmma, in the shapes of gpu/routed.h; hopper for other plans and rounded
  // steps. All have equal bits.
  wide,        // 128 rows of a list walk the keys of the block
  stationary,  // up to 1,024 rows pass a block that stays in shared memory; wide for blocks of more than 256 keys
  transposed,  // up to 64 rows, padded to a multiple of 8
  united,      // no lists: every tile of 128 rows walks the union of its blocks
};

constexpr int32_t kSplitsMax = 64;
/// CTAs that share the keys of a decode row: one for each 512 keys, up to a wave of CTAs over all KV heads. The number
/// follows from the sequence and the model alone, so a row's result has equal bits in every batch.
int32_t splits_of(const SequenceRows& sequence, uint32_t kv_heads);

/// The properties that all layers of a batch share.
struct AttentionShape {
  ExtentLayout layout;
  uint64_t page_bytes = 0;  // from page to page
  int32_t q_heads = 0;
  float scale = 0;  // 0 = 1 / sqrt(head_dim)
  AttentionKernel kernel = AttentionKernel::automatic;
  /// Grids and the places of tables are rounded up, so that decode steps of about one length launch equal kernels
  /// (gpu/launch_graphs.h). Sequences without rows then count as one row, and MoBA rows are never routed, for a step
  /// takes one kernel whatever the lengths of its sequences.
  bool is_rounded = false;
  size_t routed_bytes = 0;  // of the index and parts of a wave; 0: by the device's memory (gpu/routed.h)
  bool unites = true;       // false: lists alone, but for AttentionKernel::united, to compare their bits
};

/// One layer. Addresses are the device's; q and out are bf16 [tokens of all sequences, q_heads, head_dim].
struct AttentionLayer {
  uint64_t pool = 0;  // the layer's extent in page 0
  uint64_t q = 0, out = 0;
  /// MoBA: int32 [tokens, q_heads, top_k - 1], written by the gate: -1 where a row chooses nothing. A cluster leaves
  /// what was there for a tile of rows none of which chooses. 0: the batch's own memory.
  uint64_t selection = 0;
};

/// Device memory of an AttentionBatch at most.
struct AttentionMemory {
  size_t fixed = 0;
  size_t page = 0;  // for each page of a sequence
};
/// Query rows of a KV head up to which a sequence takes the decode kernel, unless AttentionShape names one.
constexpr int32_t kDecodeRowsMax = 16;
/// The memory for passes of at most `rows` tokens, whose sequences are at most the larger of `sequences` and
/// kDecodeRowsMax. So are the tokens before the first sequence that takes another kernel than decode. Centroids, the
/// selection, the index and the parts of routed rows are counted with `has_moba` alone. `device_bytes`: the device's
/// whole memory, by which waves of routed rows are large or small.
AttentionMemory attention_memory(const ExtentLayout& layout, int32_t q_heads, size_t rows, size_t sequences,
                                 bool has_moba, size_t device_bytes);

/// Why no kernel computes this mode over the first `kv_len` tokens of a sequence: Code::invalid names the limit.
Result<void> check_mode(const ExtentLayout& layout, const attn::Mode& mode, int64_t kv_len);

class RoutedPlan;
struct RoutedWave;

/// Attention of a batch, layer by layer. begin() copies what the layers share to the device once; attend() queues the
/// kernels of a layer and neither copies, allocates nor waits. A batch with sequences of one token before those of many
/// takes the least memory.
class AttentionBatch {
 public:
  /// The device must outlive the batch, which keeps its memory from begin() to begin().
  explicit AttentionBatch(Device& device);
  AttentionBatch(AttentionBatch&&) noexcept;
  AttentionBatch& operator=(AttentionBatch&&) noexcept;
  ~AttentionBatch();

  /// Code::unsupported names the limit: head_dim 64 or 128, bf16, pages of a multiple of 64 tokens, room for a cluster
  /// where the shape names that kernel. Code::invalid: check_mode() of a sequence. MC7005: the device has no room.
  Result<void> begin(const AttentionShape& shape, std::vector<SequenceRows> sequences);
  /// Queues on the device's own stream.
  Result<void> attend(const AttentionLayer& layer);

 private:
  /// The batch's memory on the device, in bytes from its start.
  struct Parts {
    size_t pages = 0, sequences = 0, routing = 0, centroids = 0, scores = 0, selection = 0, split_o = 0, split_m = 0,
           split_d = 0, routed = 0, end = 0;
  };
  /// A sequence, and its first token's index in q and out.
  struct Placed {
    SequenceRows rows;
    int32_t first = 0;
    bool is_dense = false;  // a MoBA sequence none of whose rows chooses: its mode has become full
  };
  /// Sequences that stand side by side in the table on the device and take one kernel.
  struct Group {
    AttentionKernel kernel = AttentionKernel::automatic;
    size_t first = 0, count = 0;
    int32_t longest = 0;               // tokens of a sequence
    int32_t splits = 1;                // the most of a sequence
    size_t first_wave = 0, waves = 0;  // of the plan, when the rows are routed
    bool is_routed() const { return kernel >= AttentionKernel::routed; }
  };
  uint32_t heads_of_group() const { return static_cast<uint32_t>(shape_.q_heads) / shape_.layout.kv_heads; }
  Result<void> size_waves();
  void place_sequences(std::vector<SequenceRows> sequences);
  void form_groups();
  Result<void> form_clusters();
  void plan_routed();
  bool suits_cluster(const Group& group) const;
  LaunchShape cluster_shape(const Group& group) const;
  void count_workspace();
  void round_up_sizes();
  Parts place() const;
  Result<void> reserve(size_t bytes);
  Sequence sequence_of(const Placed& placed, size_t pages, size_t centroids) const;
  Result<void> copy_tables();
  size_t rows_of(int32_t tokens) const { return static_cast<size_t>(tokens) * static_cast<size_t>(shape_.q_heads); }
  Result<void> clear_selection(uint64_t selection);
  Result<void> run_gate(const AttentionArgs& args);
  Result<void> run_decode_gate(const GateArgs& gate);
  bool takes_scores(const Group& group) const;
  Result<void> run_kernel(const Group& group, const AttentionArgs& args);
  Result<void> run_cluster(const Group& group, const AttentionArgs& args);
  Result<void> run_group(const Group& group, AttentionArgs args);
  LaunchShape tiles_of(uint32_t rows, int32_t tokens, size_t sequences) const;
  Result<void> launch_hopper(std::string_view kernel, LaunchShape shape, const AttentionArgs& args);
  Result<void> launch_mapped(std::string_view kernel, const LaunchShape& shape, const AttentionArgs& args);
  Result<void> run_items(const Group& group, const RoutedWave& wave, const AttentionArgs& args);
  Result<void> run_lists(const Group& group, const RoutedWave& wave, const AttentionArgs& args);
  Result<void> run_wave(const Group& group, const RoutedWave& wave, AttentionArgs args);
  Result<EncodedMap> encode_pool(uint64_t address) const;

  Device* device_;
  DeviceBuffer memory_;
  AttentionShape shape_;
  std::vector<Placed> sequences_;  // those of the first group first
  std::vector<Group> groups_;      // one for each kernel
  std::unique_ptr<RoutedPlan> routed_;
  Parts at_;
  int32_t longest_ = 0, total_ = 0;  // rows: tokens of a sequence, of all
  int32_t split_tokens_ = 0;         // behind them, no sequence has splits
  int32_t splits_ = 1, chosen_ = 0;  // the most of a sequence
  // Sequences from this one on need the gate's kernels, centroids and selection. A cluster has those of its own.
  size_t gated_ = 0;
  bool has_gate_ = false;       // one of them is MoBA's
  bool has_centroids_ = false;  // and needs centroids other than the means of pages
  size_t scored_ = 0;           // the first ones are decode rows, which have the gate by scores
  int64_t blocks_ = 0;          // complete MoBA blocks of the longest one
  uint64_t pages_ = 0;          // of the pool, as far as the batch reads it
  size_t wave_bytes_ = 0;       // of routed rows on this device; 0: not asked for yet
};

}  // namespace mc::gpu
