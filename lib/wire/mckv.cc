#include "wire/mckv.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/assert.h"
#include "base/hash.h"
#include "wire/codec.h"

namespace mc::wire {
namespace {

using std::to_string;

static_assert(std::endian::native == std::endian::little);

struct PrologueHead {
  uint32_t magic = kMckvMagic;
  uint16_t version = kMckvVersion;
  uint16_t flags = 0;
  uint32_t body_bytes = 0;
  uint32_t body_crc = 0;
};
static_assert(sizeof(PrologueHead) == 16);

struct Trailer {
  uint32_t magic = kMckvTrailerMagic;
  uint32_t block_count = 0;
  uint64_t token_count = 0;
  uint64_t block_bytes = 0;
  uint32_t chain_crc = 0;
  uint32_t crc = 0;
};
static_assert(sizeof(Trailer) == 32 && offsetof(Trailer, crc) == 28);

Error corrupt(std::string what) {
  return {Code::corrupt, "mckv: " + std::move(what)};
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

uint32_t chained(uint32_t chain_crc, uint32_t next) {
  return crc32c(bytes_of(next), chain_crc);
}

uint32_t tokens_of(uint64_t token_count, uint64_t before, uint32_t block_tokens) {
  return static_cast<uint32_t>(std::min<uint64_t>(block_tokens, token_count - before));
}

}  // namespace

void KvPrologue::set_layout(const ExtentLayout& layout) {
  layers = layout.layers;
  kv_heads = layout.kv_heads;
  head_dim = layout.head_dim;
  block_tokens = layout.block_tokens;
  kv_dtype = to_string(layout.dtype);
}

Result<ExtentLayout> KvPrologue::layout() const {
  const auto dtype = dtype_from(kv_dtype);
  if (!dtype || !is_kv_dtype(*dtype))
    return Error{Code::unsupported,
                 "mckv: kv_dtype is \"" + kv_dtype.substr(0, 32) + "\", only f32, bf16 and fp8_e4m3 exist"};
  ExtentLayout layout{layers, kv_heads, head_dim, block_tokens, *dtype};
  BlockHeader probe = block_header_for(layout);
  probe.token_count = 1;  // a tail, so only the layout can be wrong
  std::array<std::byte, kBlockHeaderBytes> raw;
  std::memcpy(raw.data(), &probe, raw.size());
  if (auto parsed = parse_block_prefix(raw); !parsed) return within("mckv prologue", std::move(parsed).error());
  return layout;
}

uint32_t KvPrologue::block_count() const {
  return block_tokens == 0 ? 0 : static_cast<uint32_t>((ids.size() + block_tokens - 1) / block_tokens);
}

Result<void> KvPrologue::check_part() const {
  if (first_position == 0 && !prefix_only)
    return parent.is_zero() ? Result<void>{} : corrupt("prologue: a whole stream names a parent");
  if (ids.size() % block_tokens != 0 || first_position % block_tokens != 0)
    return corrupt("prologue: " + to_string(ids.size()) + " ids from position " + to_string(first_position) +
                   " are no full blocks of " + to_string(block_tokens));
  if (parent.is_zero() != (first_position == 0))
    return corrupt("prologue: the position is " + to_string(first_position) + " and the parent " + parent.hex());
  if (first_position + uint64_t{ids.size()} > UINT32_MAX)
    return corrupt("prologue: " + to_string(ids.size()) + " ids from position " + to_string(first_position));
  return {};
}

// -- writing ------------------------------------------------------------------------------------------

Result<KvWriter> KvWriter::open(WriteBytes write, const KvPrologue& prologue) {
  KvWriter writer;
  MC_TRY(layout, prologue.layout());
  if (prologue.ids.empty()) return Error{Code::invalid, "mckv: a prompt of no tokens has no KV"};
  MC_CHECK(prologue.check_part());
  MsgpackWriter body;
  Encoder(body).put_struct(prologue);
  if (body.bytes().size() > kMckvPrologueMax)
    return Error{Code::invalid, "mckv: prologue of " + to_string(body.bytes().size()) + " bytes, at most 16 MiB fit"};
  const auto body_bytes = std::as_bytes(std::span(body.bytes()));
  PrologueHead head;
  head.body_bytes = static_cast<uint32_t>(body_bytes.size());
  head.body_crc = crc32c(body_bytes);
  MC_CHECK(write(bytes_of(head)));
  MC_CHECK(write(body_bytes));
  writer.write_ = std::move(write);
  writer.layout_ = layout;
  writer.ns_ = prologue.ns;
  writer.first_ = writer.tokens_written_ = prologue.first_position;
  writer.end_ = writer.first_ + prologue.ids.size();
  writer.last_ = prologue.parent;
  writer.block_count_ = prologue.block_count();
  writer.chain_crc_ = chained(0, head.body_crc);
  return writer;
}

Result<void> KvWriter::add(const BlockHash& id, std::span<const std::byte> page,
                           std::span<const uint32_t> extent_crcs) {
  MC_ASSERT_LT(blocks_written_, block_count_);
  const size_t extents_bytes = layout_.layers * layout_.layer_bytes();
  MC_ASSERT_LE(extents_bytes, page.size());
  BlockHeader header = block_header_for(layout_);
  header.name_space = ns_;
  header.id = id;
  header.parent = last_;
  header.first_position = static_cast<uint32_t>(tokens_written_);
  header.token_count = tokens_of(end_, tokens_written_, layout_.block_tokens);
  MC_ASSERT_EQ(header.is_tail(), id.is_zero());
  const auto head = encode_block_header(header, extent_crcs);
  std::memcpy(&header, head.data(), kBlockHeaderBytes);
  MC_CHECK(write_(head));
  MC_CHECK(write_(page.first(extents_bytes)));
  last_ = id;
  tokens_written_ += header.token_count;
  block_bytes_ += head.size() + extents_bytes;
  chain_crc_ = chained(chain_crc_, header.header_crc);
  ++blocks_written_;
  return {};
}

Result<void> KvWriter::finish() {
  MC_ASSERT_EQ(blocks_written_, block_count_);
  MC_ASSERT(!finished_);
  finished_ = true;
  Trailer trailer;
  trailer.block_count = block_count_;
  trailer.token_count = end_ - first_;
  trailer.block_bytes = block_bytes_;
  trailer.chain_crc = chain_crc_;
  trailer.crc = crc32c(bytes_of(trailer).first(offsetof(Trailer, crc)));
  return write_(bytes_of(trailer));
}

// -- reading ------------------------------------------------------------------------------------------

Result<KvReader> KvReader::open(ReadBytes read) {
  KvReader reader;
  reader.read_ = std::move(read);
  PrologueHead head;
  MC_CHECK(reader.fill(std::as_writable_bytes(std::span(&head, 1)), "prologue"));
  if (head.magic != kMckvMagic) return corrupt("does not start with \"MCKV\": not a KV stream");
  if (head.version != kMckvVersion || head.flags != 0)
    return Error{Code::unsupported, "mckv: version " + to_string(head.version) + " flags " + to_string(head.flags) +
                                        ", this build reads version 1 flags 0"};
  if (head.body_bytes > kMckvPrologueMax)
    return corrupt("prologue announces " + to_string(head.body_bytes) + " bytes, at most 16 MiB are allowed");
  // The buffer grows as bytes arrive, because an announced length alone must not cost memory.
  Bytes body;
  while (body.size() < head.body_bytes) {
    const size_t begin = body.size();
    body.resize(begin + std::min<size_t>(head.body_bytes - begin, size_t{1} << 20));
    MC_CHECK(reader.fill(std::as_writable_bytes(std::span(body).subspan(begin)), "prologue"));
  }
  if (crc32c(std::as_bytes(std::span(body))) != head.body_crc) return corrupt("prologue: checksum fails");
  auto nodes = parse_msgpack(body, {.bytes = kMckvPrologueMax});
  if (!nodes) return within("mckv", std::move(nodes).error());
  MC_CHECK(Decoder(*nodes, KvPrologue::kType).decode_root(reader.prologue_));
  MC_TRY(layout, reader.prologue_.layout());
  if (reader.prologue_.ids.empty()) return corrupt("prologue: ids is empty");
  MC_CHECK(reader.prologue_.check_part());
  reader.tokens_read_ = reader.prologue_.first_position;
  reader.last_ = reader.prologue_.parent;
  reader.layout_ = layout;
  reader.chain_crc_ = chained(0, head.body_crc);
  return reader;
}

Result<void> KvReader::fill(std::span<std::byte> out, std::string_view what) {
  if (auto read = read_(out); !read) return within("mckv: " + std::string(what), std::move(read).error());
  return {};
}

std::string KvReader::where() const {
  std::string text = "block " + to_string(blocks_read_ - (current_ ? 1 : 0));
  if (current_)
    text += " (positions " + to_string(current_->header.first_position) + ".." +
            to_string(current_->header.first_position + current_->header.token_count - 1) + ") layer " +
            to_string(extents_read_);
  return text;
}

Result<void> KvReader::check_place(const BlockHeader& h) const {
  MC_CHECK(check_layout(h, layout_));
  if (h.first_layer != 0) return Error{Code::corrupt, "first_layer is " + to_string(h.first_layer) + ", must be 0"};
  if (h.name_space != prologue_.ns) return Error{Code::corrupt, "namespace is not the prologue's"};
  if (h.parent != last_)
    return Error{Code::corrupt, "parent is " + h.parent.short_hex() + ", the block before is " + last_.short_hex()};
  const uint32_t tokens =
      tokens_of(prologue_.first_position + prologue_.ids.size(), tokens_read_, layout_.block_tokens);
  if (h.first_position != tokens_read_ || h.token_count != tokens)
    return Error{Code::corrupt, "holds " + to_string(h.token_count) + " tokens from " + to_string(h.first_position) +
                                    ", expected " + to_string(tokens) + " from " + to_string(tokens_read_)};
  return {};
}

Result<std::optional<ParsedBlockHeader>> KvReader::next() {
  MC_ASSERT_EQ(extents_left(), 0u);
  current_.reset();
  extents_read_ = 0;
  if (done_) return std::optional<ParsedBlockHeader>{};
  if (blocks_read_ == prologue_.block_count()) {
    MC_CHECK(read_trailer());
    done_ = true;
    return std::optional<ParsedBlockHeader>{};
  }
  std::vector<std::byte> raw(kBlockHeaderBytes);
  MC_CHECK(fill(raw, where() + ": header"));
  auto prefix = parse_block_prefix(raw);
  if (!prefix) return within("mckv: " + where(), std::move(prefix).error());
  raw.resize(kBlockHeaderBytes + size_t{4} * prefix->extent_count);
  MC_CHECK(fill(std::span(raw).subspan(kBlockHeaderBytes), where() + ": checksums"));
  auto parsed = parse_block_header(raw);
  if (!parsed) return within("mckv: " + where(), std::move(parsed).error());
  if (auto placed = check_place(parsed->header); !placed) return within("mckv: " + where(), std::move(placed).error());
  last_ = parsed->header.id;
  tokens_read_ += parsed->header.token_count;
  block_bytes_ += raw.size() + uint64_t{parsed->header.extent_count} * parsed->header.extent_bytes;
  chain_crc_ = chained(chain_crc_, parsed->header.header_crc);
  ++blocks_read_;
  current_ = std::move(*parsed);
  return current_;
}

Result<void> KvReader::check_extent(uint32_t crc) {
  const uint32_t expected = current_->extent_crcs[extents_read_];
  if (crc != expected)
    return corrupt(where() + ": checksum is " + to_string(crc) + ", the header says " + to_string(expected));
  ++extents_read_;
  return {};
}

Result<void> KvReader::read_extent(std::span<std::byte> out) {
  MC_ASSERT_LT(0u, extents_left());
  MC_ASSERT_EQ(out.size(), layout_.layer_bytes());
  MC_CHECK(fill(out, where()));
  return check_extent(crc32c(out));
}

Result<void> KvReader::read_page(std::span<std::byte> page) {
  MC_ASSERT_LE(layout_.layers * layout_.layer_bytes(), page.size());
  while (extents_left() > 0)
    MC_CHECK(read_extent(page.subspan(layout_.layer_offset(extents_read_), layout_.layer_bytes())));
  return {};
}

Result<void> KvReader::skip_extent() {
  MC_ASSERT_LT(0u, extents_left());
  std::array<std::byte, 16384> buffer;
  uint32_t crc = 0;
  for (size_t left = layout_.layer_bytes(); left > 0;) {
    const auto part = std::span(buffer).first(std::min(left, buffer.size()));
    MC_CHECK(fill(part, where()));
    crc = crc32c(part, crc);
    left -= part.size();
  }
  return check_extent(crc);
}

Result<void> KvReader::read_trailer() {
  Trailer trailer;
  MC_CHECK(fill(std::as_writable_bytes(std::span(&trailer, 1)), "trailer"));
  if (trailer.magic != kMckvTrailerMagic) return corrupt("trailer: does not start with \"MCKE\"");
  if (trailer.crc != crc32c(bytes_of(trailer).first(offsetof(Trailer, crc)))) return corrupt("trailer: checksum fails");
  const struct {
    std::string_view name;
    uint64_t said, seen;
  } counts[] = {{"block count", trailer.block_count, blocks_read_},
                {"token count", trailer.token_count, tokens_read_ - prologue_.first_position},
                {"block bytes", trailer.block_bytes, block_bytes_},
                {"checksum of the stream", trailer.chain_crc, chain_crc_}};
  for (const auto& count : counts)
    if (count.said != count.seen)
      return corrupt("trailer: " + std::string(count.name) + " is " + to_string(count.said) + ", " +
                     to_string(count.seen) + " was read");
  return {};
}

}  // namespace mc::wire
