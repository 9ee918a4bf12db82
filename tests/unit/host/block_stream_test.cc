// Runs of blocks as parts of a .mckv stream: what leaves the memory of a node comes back to it, and nothing else does.

#include "host/block_stream.h"

#include <cstring>
#include <map>

#include "base/errors.h"
#include "base/hash.h"
#include "base/rng.h"
#include "node/cache.h"
#include "test.h"
#include "unit/node/bench.h"
#include "wire/mckv.h"

namespace block_stream_test {

using namespace mc;
using namespace mc::host;
using namespace mc::node::bench;

namespace {

ExtentLayout small_layout() {
  ExtentLayout layout = layout_of(2);
  layout.block_tokens = 16, layout.head_dim = 2;
  return layout;
}

/// Pages with random bytes, and a run of them behind `first` blocks that are elsewhere.
struct Memory {
  explicit Memory(uint32_t blocks, uint32_t first = 0) : bytes(blocks * layout.page_bytes()) {
    Rng rng(test::seed());
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng.below(256));
    std::vector<uint32_t> ids;
    for (uint32_t i = 0; i < (first + blocks) * layout.block_tokens; ++i)
      ids.push_back(static_cast<uint32_t>(rng.below(100)));
    const auto hashes = kv::chain(kv.id(), ids, layout.block_tokens);
    run.layout = layout, run.name_space = kv.id(), run.kv_namespace = kv.text(), run.model = "m";
    run.first = first, run.chain_blocks = first + blocks;
    for (uint32_t i = 0; i < blocks; ++i) {
      const uint32_t at = first + i;
      kv::BlockMeta block{hashes[at], at == 0 ? BlockHash{} : hashes[at - 1], kv.id(), at * layout.block_tokens, {}};
      const auto begin = ids.begin() + at * layout.block_tokens;
      block.tokens.assign(begin, begin + layout.block_tokens);
      for (uint32_t layer = 0; layer < layout.layers; ++layer)
        block.layer_crcs.push_back(
            crc32c(std::span<const std::byte>(page(i)).subspan(layout.layer_offset(layer), layout.layer_bytes())));
      run.blocks.push_back(std::move(block));
      run.pages.push_back(i);
    }
  }
  std::span<std::byte> page(uint32_t i) {
    return std::span(bytes).subspan(i * layout.page_bytes(), layout.page_bytes());
  }
  PageMemory memory() {
    return [this](uint32_t, kv::PageIndex i) { return page(i).data(); };
  }
  std::string part() {
    auto out = write_part(run, "test", memory());
    REQUIRE_OK(out);
    return *out;
  }

  ExtentLayout layout = small_layout();
  kv::Namespace kv = namespace_of(layout);
  std::vector<std::byte> bytes;
  node::BlockRun run;
};

}  // namespace

TEST_CASE("host/block_stream: a run that was written is read back with its names, and fills pages with equal bytes") {
  INFO("seed " << test::seed());
  for (const uint32_t first : {0u, 3u}) {
    Memory from(4, first), to(4);
    const auto part = read_part(from.part());
    REQUIRE_OK(part);
    CHECK(part->order.name_space == from.kv.id());
    CHECK(part->order.kv == from.kv);
    CHECK(part->order.layout == from.layout);
    REQUIRE(part->order.blocks.size() == 4);
    for (size_t i = 0; i < 4; ++i) {
      CHECK(part->order.blocks[i].hash == from.run.blocks[i].hash);
      CHECK(part->order.blocks[i].parent == from.run.blocks[i].parent);
      CHECK(part->order.blocks[i].first_position == from.run.blocks[i].first_position);
      CHECK(part->order.blocks[i].tokens == from.run.blocks[i].tokens);
      CHECK(part->order.blocks[i].layer_crcs == from.run.blocks[i].layer_crcs);
    }
    part->fill({0, {1, 3}, {2, 0}}, to.memory());
    const size_t extents = from.layout.layers * from.layout.layer_bytes();
    CHECK(std::memcmp(to.page(2).data(), from.page(1).data(), extents) == 0);
    CHECK(std::memcmp(to.page(0).data(), from.page(3).data(), extents) == 0);
    for (size_t i = extents; i < from.layout.page_bytes(); ++i) REQUIRE(to.page(2)[i] == std::byte{0});
  }
}

TEST_CASE("host/block_stream: a part with any bit flipped, any byte missing or bytes behind it is refused whole") {
  INFO("seed " << test::seed());
  Memory from(2);
  const std::string sound = from.part();
  Rng rng(test::seed());
  for (size_t at = 0; at < sound.size(); ++at) {
    std::string damaged = sound;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << rng.below(8)));
    REQUIRE_FALSE(read_part(damaged).has_value());
    if (at % 7 == 0) REQUIRE_FALSE(read_part(sound.substr(0, at)).has_value());
  }
  CHECK(read_part(sound).has_value());
  const auto longer = read_part(sound + "x");
  REQUIRE_FALSE(longer);
  CHECK(longer.error().mc == err::kInvalidField);
}

TEST_CASE(
    "host/block_stream: a part whose token ids are not those of its blocks is refused, with every checksum right") {
  Memory from(2);
  from.run.blocks[1].tokens[3] ^= 1;
  CHECK(write_part(from.run, "test", from.memory()).error().mc == err::kNotFound);  // this side does not write it
  const kv::Namespace other = from.kv.with_salt("5:alice");
  Memory renamed(2);
  renamed.run.name_space = other.id();
  CHECK_FALSE(write_part(renamed.run, "test", renamed.memory()).has_value());
}

TEST_CASE("host/block_stream: a page that changed in memory, and blocks of an unknown model, are not written") {
  Memory from(2);
  from.page(1)[5] ^= std::byte{4};
  CHECK(write_part(from.run, "test", from.memory()).error().mc == err::kChecksum);
  Memory bare(2);
  bare.run.blocks[1].layer_crcs.pop_back();
  CHECK(write_part(bare.run, "test", bare.memory()).error().mc == err::kChecksum);
  CHECK(rotten_blocks(from.run, from.memory()) == std::vector<uint32_t>{1});
  CHECK(rotten_blocks(bare.run, bare.memory()) == std::vector<uint32_t>{1});
  Memory unknown(2);
  unknown.run.kv_namespace.clear();
  CHECK(write_part(unknown.run, "test", unknown.memory()).error().mc == err::kNotFound);
  Memory older(2);
  older.run.blocks[0].tokens.clear();
  CHECK(write_part(older.run, "test", older.memory()).error().what.find("token ids") != std::string::npos);
}

TEST_CASE("host/block_stream: pages whose layout is not that of their namespace are neither written nor read") {
  Memory from(2);
  kv::Namespace other = from.kv;
  other.head_dim = 4;
  from.run.kv_namespace = other.text();
  CHECK(write_part(from.run, "test", from.memory()).error().what.find("layout") != std::string::npos);
  // The same stream as a peer could make it: only the text of the namespace is another.
  std::string body;
  const auto append = [&](std::span<const std::byte> bytes) -> Result<void> {
    body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  };
  wire::KvPrologue prologue;
  prologue.kv_namespace = other.text(), prologue.ns = from.run.name_space, prologue.prefix_only = true;
  prologue.set_layout(from.layout);
  for (const kv::BlockMeta& block : from.run.blocks)
    prologue.ids.insert(prologue.ids.end(), block.tokens.begin(), block.tokens.end());
  auto writer = wire::KvWriter::open(append, prologue);
  REQUIRE_OK(writer);
  for (uint32_t i = 0; i < 2; ++i)
    REQUIRE_OK(writer->add(from.run.blocks[i].hash, from.page(i), from.run.blocks[i].layer_crcs));
  REQUIRE_OK(writer->finish());
  const auto read = read_part(body);
  REQUIRE_FALSE(read);
  CHECK(read.error().what.find("layout") != std::string::npos);
}

}  // namespace block_stream_test
