#include "kv/inspect.h"

#include <cmath>

#include "base/errors.h"
#include "kv/chain.h"
#include "kv/namespace.h"
#include "unit/wire/sample_mckv.h"

using namespace mc;
using namespace mc::kv;
using test::SampleMckv;

namespace {

SampleMckv honest() {
  SampleMckv sample;
  const Namespace name_space{.weights = "w", .attention = "full", .block_tokens = 16};
  sample.prologue.kv_namespace = name_space.text();
  sample.prologue.ns = name_space.id();
  sample.ids = chain(sample.prologue.ns, sample.prologue.ids, 16);
  return sample;
}

void set_bf16(SampleMckv& sample, uint32_t block, uint32_t layer, size_t offset, float value) {
  const bf16_t bits = f32_to_bf16(value);
  std::memcpy(sample.pages[block].data() + sample.layout.layer_offset(layer) + offset, &bits, 2);
}

}  // namespace

TEST_CASE("kv/inspect: an honest stream is sound, block by block") {
  const auto bytes = honest().bytes();
  const auto seen = inspect(test::read_from(bytes));
  REQUIRE_OK(seen);
  CHECK(seen->sound());
  CHECK(seen->namespace_matches);
  REQUIRE(seen->blocks.size() == 3);
  CHECK(seen->blocks[2].id.is_zero());
  CHECK(seen->blocks[2].token_count == 5);
  CHECK(seen->text().find("37 tokens in 3 blocks") != std::string::npos);
  CHECK(seen->text().find("sound\n") != std::string::npos);
  const Json json = seen->json();
  CHECK(json["blocks"].size() == 3);
  CHECK(json["blocks"][1]["id_matches"].as_bool());
  CHECK(json["damage"].is_null());
}

TEST_CASE("kv/inspect: ids that are not those of the prompt are shown") {
  SampleMckv forged = honest();
  forged.ids[1].bytes[0] ^= 1;
  const auto bytes = forged.bytes();
  const auto seen = inspect(test::read_from(bytes));
  REQUIRE_OK(seen);
  CHECK_FALSE(seen->sound());
  CHECK(seen->blocks[0].id_matches);
  CHECK_FALSE(seen->blocks[1].id_matches);
  CHECK(seen->text().find("MISMATCH") != std::string::npos);
}

TEST_CASE("kv/inspect: damage is named, and what came before is listed") {
  auto bytes = honest().bytes();
  bytes[bytes.size() - 40] ^= std::byte{1};  // in the last extent
  const auto seen = inspect(test::read_from(bytes));
  REQUIRE_OK(seen);
  CHECK_FALSE(seen->sound());
  REQUIRE(seen->damage);
  CHECK(seen->damage->what.find("mckv: block 2 (positions 32..36) layer 1: checksum") == 0);
  CHECK(seen->blocks[1].checksums_hold);
  CHECK_FALSE(seen->blocks[2].checksums_hold);
  CHECK_FALSE(seen->is_cut_short());
  CHECK(seen->text().find("  MISMATCH\n") != std::string::npos);
  CHECK_FALSE(inspect(test::read_from({})));
}

TEST_CASE("kv/inspect: a stream that ends early is cut short and no block of it is a mismatch") {
  const auto whole = honest().bytes();
  for (const auto& [missing, blocks] : {std::pair<size_t, size_t>{32 + 10, 2}, {10, 3}}) {  // the trailer has 32 bytes
    const std::vector<std::byte> cut(whole.begin(), whole.end() - static_cast<std::ptrdiff_t>(missing));
    const auto seen = inspect(test::read_from(cut));
    REQUIRE_OK(seen);
    CHECK_FALSE(seen->sound());
    CHECK(seen->is_cut_short());
    CHECK(seen->whole_blocks() == blocks);
    const std::string text = seen->text();
    INFO(text);
    CHECK(text.find("MISMATCH") == std::string::npos);
    CHECK((text.find("  incomplete\n") != std::string::npos) == (blocks < 3));
    CHECK(text.find("cut short: " + std::to_string(blocks) + " of 3 blocks are whole; mckv: ") != std::string::npos);
  }
}

TEST_CASE("kv/diff: a stream equals itself in every value") {
  const auto bytes = honest().bytes();
  const auto same = diff({"left", test::read_from(bytes)}, {"right", test::read_from(bytes)});
  REQUIRE_OK(same);
  CHECK(same->equal());
  CHECK(same->blocks_compared == 3);
  CHECK(same->value_count == 2 * (16 + 16 + 5) * 2 * 2 + 3 * 2 * 4);  // layers x rows x (K, V) x dim + sums
  CHECK_FALSE(same->first);
}

TEST_CASE("kv/diff: the first difference is the lowest layer, then token, and errors are the largest") {
  SampleMckv left = honest(), right = honest();
  const size_t v = left.layout.v_offset(), row = left.layout.row_bytes();
  for (SampleMckv* sample : {&left, &right}) {
    set_bf16(*sample, 0, 1, 0, 1.0f);
    set_bf16(*sample, 1, 0, v + 3 * row + 2, 2.0f);
    set_bf16(*sample, 2, 0, 4 * row, 8.0f);
  }
  set_bf16(right, 0, 1, 0, 1.5f);                // layer 1, token 0
  set_bf16(right, 1, 0, v + 3 * row + 2, 2.5f);  // layer 0, token 19, V[1]
  set_bf16(right, 2, 0, 4 * row, 10.0f);         // layer 0, token 36, K[0]
  const auto a = left.bytes(), b = right.bytes();
  const auto found = diff({"left", test::read_from(a)}, {"right", test::read_from(b)});
  REQUIRE_OK(found);
  CHECK_FALSE(found->equal());
  CHECK(found->differing_count == 3);
  REQUIRE(found->first);
  CHECK(found->first->layer == 0);
  CHECK(found->first->position == 19);
  CHECK(found->first->part == 'v');
  CHECK(found->first->index == 1);
  CHECK(found->first->left == 2.0);
  CHECK(found->first->right == 2.5);
  CHECK(found->abs_max == 2.0);
  CHECK(found->rel_max == doctest::Approx(1.0 / 3));
  CHECK(found->abs_max_by_layer == std::vector<double>{2.0, 0.5});
  CHECK(found->text().find("layer 0 token 19 kv head 0 V[1]: 2.0 | 2.5") != std::string::npos);
  CHECK(found->json()["first"]["position"].as_int() == 19);
}

TEST_CASE("kv/diff: a NaN on one side is an infinite error, rows beyond the tokens do not count") {
  SampleMckv left = honest(), right = honest();
  set_bf16(right, 2, 0, 9 * left.layout.row_bytes(), 7.0f);  // the tail has 5 rows
  auto a = left.bytes(), b = right.bytes();
  CHECK(diff({"left", test::read_from(a)}, {"right", test::read_from(b)})->equal());
  set_bf16(right, 0, 0, 0, std::nanf(""));
  b = right.bytes();
  const auto found = diff({"left", test::read_from(a)}, {"right", test::read_from(b)});
  REQUIRE_OK(found);
  CHECK(std::isinf(found->abs_max));
  CHECK(found->json().dump().find("\"abs_error_max\":null") != std::string::npos);
  CHECK(found->text().find("not finite") != std::string::npos);
}

TEST_CASE("kv/diff: prompts that part are compared as far as both go, other layouts not at all") {
  SampleMckv left = honest();
  SampleMckv shorter(20);
  const auto a = left.bytes(), b = shorter.bytes();
  const auto found = diff({"left", test::read_from(a)}, {"right", test::read_from(b)});
  REQUIRE_OK(found);
  CHECK(found->first_token == 20);
  CHECK(found->blocks_compared == 2);
  SampleMckv wide;
  wide.layout.head_dim = 4;
  wide.reshape();
  const auto c = wide.bytes();
  const auto refused = diff({"left", test::read_from(a)}, {"right", test::read_from(c)});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().mc == err::kKvFileForeign);  // both are sound
  CHECK(refused.error().what == "diff-kv: head_dim is 2 in left and 4 in right: nothing to compare");
}

TEST_CASE("kv/diff: an error names the stream, and the offset of the bytes at fault") {
  constexpr size_t kTrailerBytes = 32;
  SampleMckv sample = honest();
  const auto sound = sample.bytes();
  struct Case {
    size_t at;
    std::string what;
  };
  const Case cases[] = {{0, "byte 0: mckv: does not start with \"MCKV\""},
                        {sound.size() - 1, "byte " + std::to_string(sound.size() - kTrailerBytes) + ": mckv: trailer"}};
  for (const Case& c : cases) {
    auto damaged = sound;
    damaged[c.at] ^= std::byte{1};
    const auto left = diff({"a.mckv", test::read_from(damaged)}, {"b.mckv", test::read_from(sound)});
    const auto right = diff({"a.mckv", test::read_from(sound)}, {"b.mckv", test::read_from(damaged)});
    REQUIRE((!left && !right));
    CHECK(left.error().what.starts_with("a.mckv: " + c.what));
    CHECK(right.error().what.starts_with("b.mckv: " + c.what));
  }
}
