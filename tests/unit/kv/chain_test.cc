#include "kv/chain.h"

#include <numeric>

#include "base/rng.h"
#include "kv/namespace.h"
#include "test.h"

using namespace mc;
using namespace mc::kv;

namespace {

NamespaceId counting_namespace() {
  NamespaceId id;
  std::iota(id.bytes.begin(), id.bytes.end(), uint8_t{0});
  return id;
}

std::vector<uint32_t> random_tokens(size_t count) {
  Rng rng(test::seed());
  std::vector<uint32_t> tokens(count);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(rng.next());
  return tokens;
}

Namespace sample() {
  return {.weights = "ab12",
          .config = "cd34",
          .dtype = "bf16",
          .weight_dtype = "bf16",
          .kv_dtype = "bf16",
          .rope = "default theta=10000",
          .attention = "moba:block=128,top_k=3,full_last=1",
          .layers = 6,
          .kv_heads = 2,
          .head_dim = 64,
          .block_tokens = 64,
          .layout = 1,
          .salt = "ten%ant\n7"};
}

}  // namespace

TEST_CASE("kv/chain: ids are SHA-256 over parent, namespace and little-endian tokens, as Python's hashlib says") {
  // par = bytes(16); for b in (1,2,3,4), (5,6,7,8): par = sha256(par + bytes(range(16)) + pack('<4I', *b))[:16]
  const std::vector<uint32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto ids = chain(counting_namespace(), tokens, 4);
  REQUIRE(ids.size() == 2);
  CHECK(ids[0].hex() == "31129639756a4610995cd5e34b42ad32");
  CHECK(ids[1].hex() == "8562a89571e934622cd796ae4d423f91");
}

TEST_CASE("kv/chain: a partial tail has no id, and an empty prompt no ids") {
  const auto tokens = random_tokens(130);
  CHECK(chain(counting_namespace(), std::span(tokens).first(63), 64).empty());
  CHECK(chain(counting_namespace(), std::span(tokens).first(64), 64).size() == 1);
  CHECK(chain(counting_namespace(), std::span(tokens).first(127), 64).size() == 1);
  CHECK(chain(counting_namespace(), std::span<const uint32_t>{}, 64).empty());
}

TEST_CASE("kv/chain: growing a chain in any pieces gives the ids of the whole") {
  const auto tokens = random_tokens(1000);
  const auto whole = chain(counting_namespace(), tokens, 64);
  for (const size_t piece : {1u, 7u, 63u, 64u, 65u, 200u, 1000u}) {
    CAPTURE(piece);
    Chain grown(counting_namespace(), 64);
    for (size_t at = 0; at < tokens.size(); at += piece)
      grown.append(std::span(tokens).subspan(at, std::min(piece, tokens.size() - at)));
    CHECK(grown.token_count() == tokens.size());
    CHECK(std::vector<BlockHash>(grown.hashes().begin(), grown.hashes().end()) == whole);
  }
}

TEST_CASE("kv/chain: changing one token changes its block's id and all later ones, none before") {
  auto tokens = random_tokens(64 * 6);
  const auto before = chain(counting_namespace(), tokens, 64);
  tokens[64 * 3 + 5] ^= 1;
  const auto after = chain(counting_namespace(), tokens, 64);
  for (size_t i = 0; i < 6; ++i) CHECK((before[i] == after[i]) == (i < 3));
}

TEST_CASE("kv/chain: another namespace shares no id") {
  const auto tokens = random_tokens(256);
  NamespaceId other = counting_namespace();
  other.bytes[15] ^= 1;
  const auto a = chain(counting_namespace(), tokens, 64), b = chain(other, tokens, 64);
  for (size_t i = 0; i < a.size(); ++i) CHECK(a[i] != b[i]);
}

TEST_CASE("kv/chain: a cached prompt leaves at least one token to compute") {
  CHECK(reusable_blocks(0, 64) == 0);
  CHECK(reusable_blocks(1, 64) == 0);
  CHECK(reusable_blocks(64, 64) == 0);
  CHECK(reusable_blocks(65, 64) == 1);
  CHECK(reusable_blocks(128, 64) == 1);
  CHECK(reusable_blocks(129, 64) == 2);
  CHECK(blocks_for(0, 64) == 0);
  CHECK(blocks_for(64, 64) == 1);
  CHECK(blocks_for(65, 64) == 2);
}

TEST_CASE("kv/namespace: every field changes the id") {
  const Namespace base = sample();
  std::vector<Namespace> variants(13, base);
  variants[0].weights += "0";
  variants[1].config += "0";
  variants[2].dtype = "f32";
  variants[3].weight_dtype = "f32";
  variants[4].kv_dtype = "f32";
  variants[5].rope += "0";
  variants[6].attention = "full";
  variants[7].layers++;
  variants[8].kv_heads++;
  variants[9].head_dim++;
  variants[10].block_tokens = 128;
  variants[11].layout++;
  variants[12] = base.with_salt("other");
  for (const Namespace& variant : variants) CHECK(variant.id() != base.id());
}

TEST_CASE("kv/namespace: text survives parsing, and no value can forge a line") {
  const Namespace base = sample();
  const auto parsed = Namespace::parse(base.text());
  REQUIRE_OK(parsed);
  CHECK(*parsed == base);
  Namespace forger = sample();
  forger.rope = "x\nattention=full";
  const auto again = Namespace::parse(forger.text());
  REQUIRE_OK(again);
  CHECK(again->rope == forger.rope);
  CHECK(again->attention == base.attention);
}

TEST_CASE("kv/namespace: damaged text is refused with its line number") {
  const std::string text = sample().text();
  CHECK(Namespace::parse("").error().what.find("line 1") != std::string::npos);
  std::string renamed = text;
  renamed.replace(renamed.find("rope="), 5, "ropx=");
  CHECK(Namespace::parse(renamed).error().what.find("line 7") != std::string::npos);
  std::string overflow = text;
  overflow.replace(overflow.find("layers=6"), 8, "layers=99999999999");
  CHECK(Namespace::parse(overflow).error().what.find("layers") != std::string::npos);
  CHECK_FALSE(Namespace::parse(text + "extra=1\n"));
  CHECK_FALSE(Namespace::parse(text.substr(0, text.size() / 2)));
  CHECK_FALSE(Namespace::parse(std::string(20000, 'x')));
}

TEST_CASE("kv/namespace: the handshake sees every difference, but never the salt") {
  Namespace theirs = sample();
  theirs.block_tokens = 128;
  theirs.salt = "secret";
  const auto found = differences(sample(), theirs);
  REQUIRE(found.size() == 1);
  CHECK(found[0].name == "block_tokens");
  CHECK(found[0].ours == "64");
  CHECK(found[0].theirs == "128");
  CHECK(differences(sample(), sample()).empty());
}
