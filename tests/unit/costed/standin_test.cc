#include "costed/standin.h"

#include <cstring>
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "test.h"

using namespace mc;
using namespace mc::costed;

namespace {

constexpr uint32_t kBlock = 16;

/// Pages of one node, as a sequence of tokens fills them.
struct Pages {
  ExtentLayout layout = Standin::layout(80, kBlock);
  Standin standin{layout};
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::byte*> pages;

  explicit Pages(size_t count) : bytes(count, std::vector<std::byte>(layout.page_bytes())) {
    for (auto& page : bytes) pages.push_back(page.data());
  }
  void fill(uint32_t start, std::span<const uint32_t> tokens) {
    for (uint32_t layer = 0; layer < layout.layers; ++layer) standin.write(pages, layer, start, tokens);
  }
};

std::vector<uint32_t> tokens_of(uint32_t count, uint32_t first = 0) {
  std::vector<uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

uint64_t tag_of(std::span<const uint32_t> tokens) {
  uint64_t tag = Standin::kRoot;
  for (uint32_t t : tokens) tag = Standin::extend(tag, t);
  return tag;
}

std::string complaint(const Pages& p, uint32_t tokens) {
  const auto verified = p.standin.verify(p.pages, tokens);
  return verified ? "" : verified.error().what;
}

}  // namespace

TEST_CASE("costed/standin: pages written in any cut verify to the tag of the prompt alone") {
  const auto tokens = tokens_of(70);
  for (uint32_t cut : {16u, 32u, 48u, 64u}) {
    Pages p(5);
    p.fill(0, std::span(tokens).first(cut));
    p.fill(cut, std::span(tokens).subspan(cut));
    const auto tag = p.standin.verify(p.pages, 70);
    REQUIRE(tag.has_value());
    CHECK(*tag == tag_of(tokens));
  }
}

TEST_CASE("costed/standin: tokens appended one by one leave the bytes of a prompt computed at once") {
  const auto tokens = tokens_of(40);
  Pages whole(3), grown(3);
  whole.fill(0, tokens);
  grown.fill(0, std::span(tokens).first(7));
  for (uint32_t i = 7; i < 40; ++i) grown.fill(i, std::span(tokens).subspan(i, 1));
  CHECK(whole.bytes == grown.bytes);
}

TEST_CASE("costed/standin: every kind of wrong page is found and named") {
  const auto tokens = tokens_of(64);
  Pages p(4), other(4);
  p.fill(0, tokens);
  other.fill(0, tokens_of(64, 1000));
  REQUIRE(complaint(p, 64).empty());

  SUBCASE("swapped") {
    std::swap(p.pages[1], p.pages[2]);
    CHECK(complaint(p, 64) == "stand-in KV of block 1, layer 0: holds position 32");
  }
  SUBCASE("of another prompt") {
    p.pages[2] = other.pages[2];
    CHECK(complaint(p, 64) == "stand-in KV of block 2, layer 0: does not follow the block before it");
  }
  SUBCASE("one layer of another prompt") {
    const size_t at = p.layout.layer_offset(2);
    std::memcpy(p.pages[0] + at, other.pages[0] + at, p.layout.layer_bytes());
    CHECK(complaint(p, 64) == "stand-in KV of block 0: layer 2 is of other tokens than layer 0");
  }
  SUBCASE("layers exchanged") {
    std::memcpy(p.pages[3], p.pages[3] + p.layout.layer_offset(1), p.layout.layer_bytes());
    CHECK(complaint(p, 64) == "stand-in KV of block 3, layer 0: holds layer 1");
  }
  SUBCASE("never written") {
    std::memset(p.pages[3], 0, p.layout.page_bytes());
    CHECK(complaint(p, 64) == "stand-in KV of block 3, layer 0: not written");
  }
  SUBCASE("torn") {
    p.pages[1][p.layout.layer_bytes() - 1] ^= std::byte{1};
    CHECK(complaint(p, 64).starts_with("stand-in KV of block 1, layer 0: torn at byte"));
  }
  SUBCASE("an older length") {
    CHECK(complaint(p, 60).ends_with("holds 16 tokens, not 12"));
  }
}

TEST_CASE("costed/standin: answers stay clear of where tokenizers keep special tokens") {
  Rng rng(test::seed());
  for (int i = 0; i < 1000; ++i) {
    const uint32_t token = Standin::token_after(rng.next(), 2048);
    CHECK(token >= 512);
    CHECK(token < 1024);
  }
}
