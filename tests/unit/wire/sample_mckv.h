// A small .mckv stream in memory, with values a test can predict, and streams over byte vectors.
#pragma once

#include <cstring>
#include <vector>

#include "base/hash.h"
#include "test.h"
#include "wire/mckv.h"

namespace mc::test {

inline wire::ReadBytes read_from(const std::vector<std::byte>& bytes) {
  return [&bytes, at = size_t{0}](std::span<std::byte> out) mutable -> Result<void> {
    if (bytes.size() - at < out.size())
      return Error{Code::peer_lost, "end of file after " + std::to_string(bytes.size() - at) + " of " +
                                        std::to_string(out.size()) + " bytes"};
    if (!out.empty()) std::memcpy(out.data(), bytes.data() + at, out.size());
    at += out.size();
    return {};
  };
}

inline wire::WriteBytes write_to(std::vector<std::byte>& bytes) {
  return [&bytes](std::span<const std::byte> more) -> Result<void> {
    bytes.insert(bytes.end(), more.begin(), more.end());
    return {};
  };
}

struct SampleMckv {
  ExtentLayout layout{.layers = 2, .kv_heads = 1, .head_dim = 2, .block_tokens = 16, .dtype = Dtype::bf16};
  wire::KvPrologue prologue;
  std::vector<BlockHash> ids;                 // of the full blocks
  std::vector<std::vector<std::byte>> pages;  // one a block, extents only

  explicit SampleMckv(uint32_t tokens = 37) {
    prologue.writer = "mc-prefill test";
    prologue.model = "sample";
    prologue.kv_namespace = "mc-namespace 1\n";
    prologue.ns = NamespaceId{Sha256().update("namespace").finish128()};
    for (uint32_t i = 0; i < tokens; ++i) prologue.ids.push_back(100 + 7 * i);
    prologue.first_token = 42;
    prologue.prefill_attention = prologue.decode_attention = "full";
    prologue.sampling = {.temperature = 0.5, .seed = 9, .stream = 1};
    reshape();
  }

  /// After a change of `layout` or of the prompt's length.
  void reshape() {
    prologue.set_layout(layout);
    pages.clear();
    ids.clear();
    for (uint32_t block = 0; block < prologue.block_count(); ++block) {
      auto& page = pages.emplace_back(layout.layers * layout.layer_bytes());
      for (size_t i = 0; i < page.size(); ++i) page[i] = static_cast<std::byte>((i * 7 + block) & 0x3f);
      if ((block + 1) * layout.block_tokens <= prologue.ids.size())
        ids.push_back(BlockHash{Sha256().update("block" + std::to_string(block)).finish128()});
    }
  }

  std::vector<uint32_t> crcs(size_t block) const {
    std::vector<uint32_t> out;
    for (uint32_t layer = 0; layer < layout.layers; ++layer)
      out.push_back(crc32c(std::span(pages[block]).subspan(layout.layer_offset(layer), layout.layer_bytes())));
    return out;
  }

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> out;
    auto writer = wire::KvWriter::open(write_to(out), prologue);
    REQUIRE_OK(writer);
    for (size_t block = 0; block < pages.size(); ++block)
      REQUIRE_OK(writer->add(block < ids.size() ? ids[block] : BlockHash{}, pages[block], crcs(block)));
    REQUIRE_OK(writer->finish());
    return out;
  }
};

}  // namespace mc::test
