#include "wire/block.h"

#include <bit>
#include <cstring>
#include <iterator>

#include "base/assert.h"
#include "base/hash.h"

namespace mc::wire {

static_assert(std::endian::native == std::endian::little, "headers are copied to the wire as they lie in memory");

namespace {

using std::to_string;

constexpr size_t kCrcAt = offsetof(BlockHeader, header_crc);

uint32_t crc_of(std::span<const std::byte> header, std::span<const std::byte> table) {
  return crc32c(table, crc32c(header.first(kCrcAt)));
}

Error bad(std::string_view field, uint64_t value, std::string_view rule) {
  return {Code::corrupt, "block: " + std::string(field) + " is " + to_string(value) + ", " + std::string(rule)};
}

bool within_range(uint64_t value, uint64_t low, uint64_t high) {
  return value >= low && value <= high;
}

Result<void> check_shape(const BlockHeader& h) {
  if (!within_range(h.block_tokens, kBlockTokensMin, kBlockTokensMax) || !std::has_single_bit(h.block_tokens))
    return bad("block_tokens", h.block_tokens, "must be a power of two in 16..512");
  if (!within_range(h.kv_heads, 1, kBlockHeadsMax)) return bad("kv_heads", h.kv_heads, "must be 1..1024");
  if (!within_range(h.head_dim, 1, kBlockHeadDimMax)) return bad("head_dim", h.head_dim, "must be 1..1024");
  if (!within_range(h.layer_count, 1, kBlockLayersMax)) return bad("layer_count", h.layer_count, "must be 1..1024");
  if (h.first_layer > kBlockLayersMax - h.layer_count)
    return bad("first_layer", h.first_layer, "must leave all layers below 1024");
  if (!is_kv_dtype(static_cast<Dtype>(h.dtype)))
    return Error{Code::unsupported,
                 "block: dtype is " + to_string(h.dtype) + ", only f32 (0), bf16 (1) and fp8_e4m3 (3) exist"};
  if (h.extent_count != h.layer_count) return bad("extent_count", h.extent_count, "must equal layer_count");
  if (h.extent_bytes != h.extent_layout().layer_bytes() || h.extent_bytes > kExtentBytesMax)
    return bad("extent_bytes", h.extent_bytes,
               "the layout gives " + to_string(h.extent_layout().layer_bytes()) + ", at most 1 GiB");
  return {};
}

Result<void> check_place(const BlockHeader& h) {
  if (!within_range(h.token_count, 1, h.block_tokens))
    return bad("token_count", h.token_count, "must be 1.." + to_string(h.block_tokens));
  if (h.first_position % h.block_tokens != 0)
    return bad("first_position", h.first_position, "must be a multiple of " + to_string(h.block_tokens));
  if (h.parent.is_zero() != (h.first_position == 0))
    return bad("first_position", h.first_position, "does not fit its parent " + h.parent.short_hex());
  if (h.is_tail() != h.id.is_zero())
    return bad("token_count", h.token_count, "does not fit its id " + h.id.short_hex());
  return {};
}

}  // namespace

ExtentLayout BlockHeader::extent_layout() const {
  return {.layers = layer_count,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .block_tokens = block_tokens,
          .dtype = static_cast<Dtype>(dtype)};
}

BlockHeader block_header_for(const ExtentLayout& layout) {
  BlockHeader header;
  header.layer_count = layout.layers;
  header.block_tokens = layout.block_tokens;
  header.kv_heads = layout.kv_heads;
  header.head_dim = layout.head_dim;
  header.dtype = static_cast<uint8_t>(layout.dtype);
  header.extent_bytes = layout.layer_bytes();
  header.extent_count = layout.layers;
  return header;
}

std::vector<std::byte> encode_block_header(BlockHeader header, std::span<const uint32_t> extent_crcs) {
  MC_ASSERT_EQ(extent_crcs.size(), header.extent_count);
  std::vector<std::byte> out(kBlockHeaderBytes + extent_crcs.size_bytes());
  std::memcpy(out.data(), &header, kBlockHeaderBytes);
  if (!extent_crcs.empty()) std::memcpy(out.data() + kBlockHeaderBytes, extent_crcs.data(), extent_crcs.size_bytes());
  header.header_crc = crc_of(out, std::span(out).subspan(kBlockHeaderBytes));
  std::memcpy(out.data() + kCrcAt, &header.header_crc, 4);
  return out;
}

Result<BlockHeader> parse_block_prefix(std::span<const std::byte> bytes) {
  if (bytes.size() < kBlockHeaderBytes)
    return Error{Code::corrupt, "block: header of " + to_string(bytes.size()) + " bytes, 128 are needed"};
  BlockHeader h;
  std::memcpy(&h, bytes.data(), kBlockHeaderBytes);
  if (h.magic != kBlockMagic) return Error{Code::corrupt, "block: does not start with \"MCKB\""};
  if (h.version != kBlockVersion)
    return Error{Code::unsupported, "block: version " + to_string(h.version) + ", this build reads version 1"};
  if (h.layout != ExtentLayout::kVersion)
    return Error{Code::unsupported, "block: layout version " + to_string(h.layout) + ", this build reads version " +
                                        to_string(ExtentLayout::kVersion)};
  if (h.flags != 0 || h.reserved16 != 0) return bad("flags", h.flags, "must be 0, like the reserved bytes");
  for (const uint32_t word : h.reserved)
    if (word != 0) return bad("reserved", word, "must be 0");
  MC_CHECK(check_shape(h));
  MC_CHECK(check_place(h));
  return h;
}

Result<ParsedBlockHeader> parse_block_header(std::span<const std::byte> bytes) {
  MC_TRY(header, parse_block_prefix(bytes));
  const size_t table_bytes = size_t{4} * header.extent_count;
  if (bytes.size() - kBlockHeaderBytes < table_bytes)
    return Error{Code::corrupt, "block: table of " + to_string(header.extent_count) + " checksums is cut"};
  const auto table = bytes.subspan(kBlockHeaderBytes, table_bytes);
  if (const uint32_t crc = crc_of(bytes, table); crc != header.header_crc)
    return Error{Code::corrupt,
                 "block: header checksum is " + to_string(header.header_crc) + ", its bytes give " + to_string(crc)};
  ParsedBlockHeader out{header, std::vector<uint32_t>(header.extent_count)};
  std::memcpy(out.extent_crcs.data(), table.data(), table_bytes);
  return out;
}

Result<void> check_layout(const BlockHeader& header, const ExtentLayout& ours) {
  const struct {
    std::string_view name;
    uint64_t theirs, ours;
  } fields[] = {
      {"layers", header.layer_count, ours.layers},
      {"kv_heads", header.kv_heads, ours.kv_heads},
      {"head_dim", header.head_dim, ours.head_dim},
      {"block_tokens", header.block_tokens, ours.block_tokens},
  };
  for (const auto& field : fields)
    if (field.theirs != field.ours)
      return Error{Code::invalid, "block: " + std::string(field.name) + " is " + to_string(field.theirs) +
                                      ", here it is " + to_string(field.ours)};
  if (const auto theirs = static_cast<Dtype>(header.dtype); theirs != ours.dtype)
    return Error{Code::invalid, "block: kv dtype is " + std::string(to_string(theirs)) + ", here it is " +
                                    std::string(to_string(ours.dtype))};
  return {};
}

std::string describe(const BlockHeader& h) {
  return "block " + (h.is_tail() ? std::string("(tail)") : h.id.short_hex()) + " positions " +
         to_string(h.first_position) + ".." + to_string(h.first_position + h.token_count - 1) + " layers " +
         to_string(h.first_layer) + ".." + to_string(h.first_layer + h.layer_count - 1) + " " +
         std::string(to_string(static_cast<Dtype>(h.dtype))) + " " + to_string(h.block_tokens) + "x" +
         to_string(h.kv_heads) + "x" + to_string(h.head_dim);
}

}  // namespace mc::wire
