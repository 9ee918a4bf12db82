#include "host/block_stream.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/errors.h"
#include "base/hash.h"
#include "wire/mckv.h"

namespace mc::host {
namespace {

constexpr size_t kPrologueMax = size_t{1} << 20;  // of a part: its ids, the namespace and names

Error wrong(std::string what) {
  return user_error(err::kInvalidField, std::move(what), "body");
}

/// The layout of the blocks and the text of their namespace agree in every number.
Result<kv::Namespace> check_namespace(const wire::KvPrologue& prologue, const ExtentLayout& layout) {
  auto kv = kv::Namespace::parse(prologue.kv_namespace);
  if (!kv) return wrong("the namespace of the stream: " + kv.error().what);
  const bool same = kv->layers == layout.layers && kv->kv_heads == layout.kv_heads && kv->head_dim == layout.head_dim &&
                    kv->block_tokens == layout.block_tokens && kv->layout == ExtentLayout::kVersion &&
                    dtype_from(kv->kv_dtype) == layout.dtype;
  if (!same) return wrong("the layout of the stream is not that of its namespace");
  if (!kv->salt.empty()) return wrong("the namespace of the stream has a salt");
  return kv;
}

bool is_sound(const node::BlockRun& run, size_t block, const PageMemory& memory) {
  const std::vector<uint32_t>& crcs = run.blocks[block].layer_crcs;
  if (crcs.size() != run.layout.layers) return false;
  const std::span<const std::byte> page(memory(run.shelf, run.pages[block]), run.layout.page_bytes());
  for (uint32_t layer = 0; layer < run.layout.layers; ++layer)
    if (crc32c(page.subspan(run.layout.layer_offset(layer), run.layout.layer_bytes())) != crcs[layer]) return false;
  return true;
}

}  // namespace

std::vector<uint32_t> rotten_blocks(const node::BlockRun& run, const PageMemory& memory) {
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < run.pages.size(); ++i)
    if (!is_sound(run, i, memory)) out.push_back(i);
  return out;
}

size_t stream_part_max(uint64_t page_bytes) {
  return static_cast<size_t>(std::max(kStreamPartBytes, page_bytes)) + kPrologueMax;
}

Result<std::string> write_part(const node::BlockRun& run, const std::string& writer, const PageMemory& memory) {
  MC_ASSERT(!run.pages.empty() && run.pages.size() == run.blocks.size());
  if (run.kv_namespace.empty())
    return user_error(err::kNotFound, "the node does not know the model of these blocks", "prefix",
                      "export from a node that computed them, or send a prompt of their model and tenant to this node");
  wire::KvPrologue prologue;
  prologue.writer = writer, prologue.model = run.model;
  prologue.kv_namespace = run.kv_namespace, prologue.ns = run.name_space;
  prologue.set_layout(run.layout);
  prologue.prefix_only = true;
  prologue.first_position = run.blocks.front().first_position, prologue.parent = run.blocks.front().parent;
  const auto kv = check_namespace(prologue, run.layout);
  if (!kv)
    return user_error(
        err::kNotFound,
        "the node has stand-ins for blocks, without the layout of their model, as costed nodes do; export "
        "from a node that computes",
        "prefix");
  prologue.prefill_attention = prologue.decode_attention = kv->attention;
  MC_ASSERT_EQ(run.layout.stage.count(), 0u);  // a member of a pipeline gives no runs
  for (const kv::BlockMeta& block : run.blocks) {
    if (block.tokens.size() != run.layout.block_tokens ||
        kv::chain_next(block.parent, run.name_space, block.tokens) != block.hash)
      return user_error(err::kNotFound, "the node does not know the token ids of block " + block.hash.hex(), "prefix",
                        "export from a node that computed the prompt");
    prologue.ids.insert(prologue.ids.end(), block.tokens.begin(), block.tokens.end());
  }
  std::string out;
  const auto append = [&](std::span<const std::byte> bytes) -> Result<void> {
    out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  };
  out.reserve(run.pages.size() * run.layout.page_bytes() + prologue.ids.size() * 5 + 4096);
  MC_TRY(stream, wire::KvWriter::open(append, prologue));
  for (size_t i = 0; i < run.pages.size(); ++i) {
    if (!is_sound(run, i, memory))
      return user_error(err::kChecksum, "block " + run.blocks[i].hash.hex() + " does not match its checksums in memory",
                        "prefix");
    const std::span<const std::byte> page(memory(run.shelf, run.pages[i]), run.layout.page_bytes());
    MC_CHECK(stream.add(run.blocks[i].hash, page, run.blocks[i].layer_crcs));
  }
  MC_CHECK(stream.finish());
  return out;
}

Result<ReadPart> read_part(std::string body) {
  ReadPart part;
  part.body = std::make_shared<const std::string>(std::move(body));
  size_t at = 0;
  const auto take = [&at, bytes = part.body](std::span<std::byte> out) -> Result<void> {
    if (bytes->size() - at < out.size()) return Error{Code::corrupt, "it ends after " + std::to_string(at) + " bytes"};
    std::memcpy(out.data(), bytes->data() + at, out.size());
    at += out.size();
    return {};
  };
  auto opened = wire::KvReader::open(take);
  if (!opened) return wrong(opened.error().what);
  wire::KvReader& reader = *opened;
  const wire::KvPrologue& prologue = reader.prologue();
  if (!prologue.prefix_only) return wrong("the stream is not of full blocks alone");
  MC_TRY(kv, check_namespace(prologue, reader.layout()));
  part.order.kv = std::move(kv);
  part.order.name_space = prologue.ns, part.order.model = prologue.model.substr(0, 1024);
  part.order.layout = reader.layout();
  const uint32_t bt = reader.layout().block_tokens;
  for (;;) {
    auto header = reader.next();
    if (!header) return wrong(header.error().what);
    if (!*header) break;
    kv::BlockMeta block;
    block.hash = BlockHash{(*header)->header.id}, block.parent = BlockHash{(*header)->header.parent};
    block.name_space = prologue.ns, block.first_position = (*header)->header.first_position;
    block.layer_crcs = (*header)->extent_crcs;
    const auto ids = std::span(prologue.ids).subspan(part.order.blocks.size() * bt, bt);
    block.tokens.assign(ids.begin(), ids.end());
    if (kv::chain_next(block.parent, prologue.ns, ids) != block.hash)
      return wrong("block " + block.hash.hex() + " is not the block of its token ids");
    part.offsets.push_back(at);
    while (reader.extents_left() > 0)
      if (auto extent = reader.skip_extent(); !extent) return wrong(extent.error().what);
    part.order.blocks.push_back(std::move(block));
  }
  if (at != part.body->size()) return wrong(std::to_string(part.body->size() - at) + " bytes follow the stream");
  MC_ASSERT_EQ(part.offsets.size(), part.order.blocks.size());
  return part;
}

void ReadPart::fill(const node::PagesToFill& pages, const PageMemory& memory) const {
  MC_ASSERT_EQ(pages.pages.size(), pages.blocks.size());
  const size_t bytes = order.layout.layers * order.layout.layer_bytes();
  for (size_t i = 0; i < pages.pages.size(); ++i) {
    const size_t from = offsets.at(pages.blocks[i]);
    MC_ASSERT_LE(from + bytes, body->size());
    std::byte* page = memory(pages.shelf, pages.pages[i]);
    std::memcpy(page, body->data() + from, bytes);
    std::memset(page + bytes, 0, order.layout.page_bytes() - bytes);
  }
}

}  // namespace mc::host
