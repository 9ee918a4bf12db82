// .mckv: the KV of one prompt as a byte stream, so that prefill and decode compose through a pipe or a file. A stream
// is written and read in one pass, front to back, in bounded memory. mckv(5) describes it.
//
//   | "MCKV" ver=1 flags=0 | length u32 | CRC32C u32 |  body: msgpack map of KvPrologue's fields     |
//     u32    u16   u16       of the body  of the body
//   | block 0: header, checksums, extents | block 1 | ... | last block, possibly a tail |   wire/block.h
//   | "MCKE" u32 | block count u32 | token count u64 | block bytes u64 | CRC u32 * | CRC32C u32 of this trailer |
//
//   * CRC32C over the prologue's CRC and every block's header CRC, in order. The trailer therefore protects the
//     whole stream, because header CRCs cover the checksums of their extents.
//   Blocks are consecutive from position 0, each the child of the one before, all of the prologue's
//   namespace and layout. A prompt of n tokens has ceil(n / block_tokens) blocks. A long chain of blocks travels to and
//   from a node in parts, which are streams that begin at a later position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/extent.h"
#include "base/result.h"
#include "wire/block.h"
#include "wire/messages.h"

namespace mc::wire {

inline constexpr uint32_t kMckvMagic = 0x564b434d;         // "MCKV"
inline constexpr uint32_t kMckvTrailerMagic = 0x454b434d;  // "MCKE"
inline constexpr uint16_t kMckvVersion = 1;
inline constexpr size_t kMckvPrologueMax = size_t{16} << 20;

/// The data that decode needs besides the KV itself.
struct KvPrologue {
  static constexpr std::string_view kType = "mckv";
  std::string writer;        // "mc-prefill 0.1.0"
  std::string model;         // the model's name at the writer; only the namespace decides whether the KV fits
  std::string kv_namespace;  // kv::Namespace::text()
  NamespaceId ns;
  uint32_t layers = 0, kv_heads = 0, head_dim = 0, block_tokens = 0;
  std::string kv_dtype;          // "f32", "bf16", "fp8_e4m3"
  std::vector<uint32_t> ids;     // prompt; its KV is in the blocks
  uint32_t first_token = 0;      // drawn by prefill; its KV is not in the blocks
  std::string finish_reason;     // "" unless the first token ended the answer
  TokenLogprobs first_logprobs;  // of first_token
  Sampling sampling;             // its seed and stream determine every further token by position
  Stopping stopping;
  uint32_t next_index = 1;        // the position in the answer that the sampler draws next
  std::string prefill_attention;  // the attention plan of the KV
  std::string decode_attention;   // the attention plan for decode
  bool prefix_only = false;       // full blocks alone, without a first token: decode cannot continue from them
  uint32_t first_position = 0;    // of a part of a stream: the position of its first token in the prompt
  BlockHash parent;               // of a part: the block before it

  bool operator==(const KvPrologue&) const = default;
  template <class V>
  void fields(V& v) {
    v("writer", writer), v("model", model), v("kv_namespace", kv_namespace), v("ns", ns), v("layers", layers);
    v("kv_heads", kv_heads), v("head_dim", head_dim), v("block_tokens", block_tokens), v("kv_dtype", kv_dtype);
    v("ids", ids), v("first_token", first_token), v("finish_reason", finish_reason);
    v("first_logprobs", first_logprobs), v("sampling", sampling), v("stopping", stopping);
    v("next_index", next_index), v("prefill_attention", prefill_attention), v("decode_attention", decode_attention);
    v.later("prefix_only", prefix_only), v.later("first_position", first_position), v.later("parent", parent);
  }
  void set_layout(const ExtentLayout& layout);
  /// Code::corrupt when a number is out of range, Code::unsupported for an unknown dtype.
  Result<ExtentLayout> layout() const;
  /// The number of blocks in the stream: ceil(ids / block_tokens).
  uint32_t block_count() const;
  /// Whether the place of a part, and the length of a stream without a first token, agree with its blocks.
  Result<void> check_part() const;
};

/// A function that writes all bytes or fails (mc::write_all on a descriptor).
using WriteBytes = std::function<Result<void>(std::span<const std::byte>)>;
/// A function that fills the whole span or fails (mc::read_all on a descriptor).
using ReadBytes = std::function<Result<void>(std::span<std::byte>)>;

class KvWriter {
 public:
  /// Writes the prologue. Code::invalid when it contradicts itself.
  static Result<KvWriter> open(WriteBytes write, const KvPrologue& prologue);
  /// Writes the next block, in order. `page` is the block's page: its extents one after the other (layout.layers *
  /// layer_bytes() or more bytes). `extent_crcs` are those of its seal. `id` is zero for the tail. The rest of the
  /// header follows from the prologue.
  Result<void> add(const BlockHash& id, std::span<const std::byte> page, std::span<const uint32_t> extent_crcs);
  /// Writes the trailer, which completes the stream.
  Result<void> finish();

 private:
  KvWriter() = default;
  WriteBytes write_;
  ExtentLayout layout_;
  NamespaceId ns_;
  BlockHash last_;
  uint64_t first_ = 0, end_ = 0, tokens_written_ = 0, block_bytes_ = 0;  // positions in the prompt
  uint32_t block_count_ = 0, blocks_written_ = 0, chain_crc_ = 0;
  bool finished_ = false;
};

class KvReader {
 public:
  /// Reads and checks the prologue.
  static Result<KvReader> open(ReadBytes read);
  const KvPrologue& prologue() const { return prologue_; }
  const ExtentLayout& layout() const { return layout_; }

  /// Reads the next block's header and checks it against the prologue and the block before it. nullopt after the last
  /// block, once the trailer has been read and checked. All extents of the block before must have been read.
  Result<std::optional<ParsedBlockHeader>> next();
  /// Reads the next extent (layer_bytes() bytes) of the current block. Code::corrupt when its checksum fails.
  Result<void> read_extent(std::span<std::byte> out);
  /// Reads all extents of the current block into a page of at least layers * layer_bytes() bytes.
  Result<void> read_page(std::span<std::byte> page);
  /// Checks the next extent without keeping it.
  Result<void> skip_extent();
  /// The number of extents of the current block that are not yet read.
  uint32_t extents_left() const { return current_ ? current_->header.extent_count - extents_read_ : 0; }

 private:
  KvReader() = default;
  Result<void> fill(std::span<std::byte> out, std::string_view what);
  Result<void> check_place(const BlockHeader& header) const;
  Result<void> check_extent(uint32_t crc);
  Result<void> read_trailer();
  std::string where() const;

  ReadBytes read_;
  KvPrologue prologue_;
  ExtentLayout layout_;
  std::optional<ParsedBlockHeader> current_;
  Id128 last_;
  uint32_t blocks_read_ = 0, extents_read_ = 0, chain_crc_ = 0;
  uint64_t tokens_read_ = 0, block_bytes_ = 0;
  bool done_ = false;
};

}  // namespace mc::wire
