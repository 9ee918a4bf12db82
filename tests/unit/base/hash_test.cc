#include "base/hash.h"

#include "base/dtype.h"
#include "base/rng.h"
#include "test.h"

using namespace mc;

TEST_CASE("base/hash: crc32c of the nine digits is the published check value") {
  CHECK(crc32c(std::as_bytes(std::span(std::string_view("123456789")))) == 0xe3069283u);
}

TEST_CASE("base/hash: crc32c continues over pieces as over the whole") {
  Rng rng(test::seed());
  std::string text(1000, ' ');
  for (char& c : text) c = static_cast<char>(rng.next());
  const auto bytes = std::as_bytes(std::span(std::string_view(text)));
  for (size_t cut : {0u, 1u, 7u, 512u, 999u, 1000u})
    CHECK(crc32c(bytes.subspan(cut), crc32c(bytes.first(cut))) == crc32c(bytes));
}

TEST_CASE("base/hash: sha256 of abc is the FIPS 180 vector") {
  CHECK(Sha256().update("abc").finish128().hex() == "ba7816bf8f01cfea414140de5dae2223");
}

TEST_CASE("base/ids: hex survives a round trip and rejects 31 digits and letters beyond f") {
  const Id128 id = Sha256().update("x").finish128();
  CHECK(Id128::from_hex(id.hex()) == id);
  CHECK_FALSE(Id128::from_hex(id.hex().substr(1)));
  CHECK_FALSE(Id128::from_hex("g" + id.hex().substr(1)));
}

TEST_CASE("base/rng: philox matches the Random123 known answer for zero key and counter") {
  const auto words = philox4x32(0, 0, 0);
  CHECK(words[0] == 0x6627e8d5u);
  CHECK(words[1] == 0xe169c58du);
  CHECK(words[2] == 0xbc57ac4cu);
  CHECK(words[3] == 0x9b00dbd8u);
}

TEST_CASE("base/rng: below never reaches its bound and hits every value of a small range") {
  Rng rng(test::seed());
  int seen[5] = {};
  for (int i = 0; i < 1000; ++i) ++seen[rng.below(5)];
  for (int count : seen) CHECK(count > 100);
}

TEST_CASE("base/dtype: bf16 rounds to nearest even and keeps NaN") {
  CHECK(f32_to_bf16(1.0f) == 0x3f80);
  CHECK(f32_to_bf16(std::bit_cast<float>(0x3f808000u)) == 0x3f80);  // tie to even
  CHECK(f32_to_bf16(std::bit_cast<float>(0x3f818000u)) == 0x3f82);
  CHECK(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u))) != bf16_to_f32(0x7f80));
}
