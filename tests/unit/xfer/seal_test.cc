// Sealed records: the published vectors of every part, and what a changed record does.
#include "xfer/seal.h"

#include <cstring>
#include <string>
#include <vector>

#include "pair.h"
#include "xfer/auth.h"

namespace seal_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

std::vector<uint8_t> hex(std::string_view text) {
  std::vector<uint8_t> out;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    out.push_back(static_cast<uint8_t>(std::stoul(std::string(text.substr(i, 2)), nullptr, 16)));
  return out;
}
template <size_t N>
std::array<uint8_t, N> hex_array(std::string_view text) {
  const auto bytes = hex(text);
  REQUIRE(bytes.size() == N);
  std::array<uint8_t, N> out{};
  std::copy(bytes.begin(), bytes.end(), out.begin());
  return out;
}
std::span<const std::byte> bytes_of(const std::vector<uint8_t>& bytes) {
  return std::as_bytes(std::span(bytes));
}
std::vector<uint8_t> expanded(std::span<const uint8_t> key, const std::vector<uint8_t>& info, size_t length) {
  std::vector<uint8_t> out(length);
  hkdf_expand(key, {reinterpret_cast<const char*>(info.data()), info.size()}, out);
  return out;
}

constexpr SealSecret kSecret{1, 2, 3};

std::vector<std::byte> content(size_t size, uint64_t seed) {
  std::vector<std::byte> out(size);
  fill(out, seed);
  return out;
}

std::vector<std::byte> sealed(Seal& seal, std::vector<std::byte> plain) {
  std::vector<std::byte> record(plain.size() + kRecordExtra);
  const iovec part{plain.data(), plain.size()};
  seal.seal({&part, 1}, record);
  return record;
}

/// The plaintext, or nothing when the record does not open; then the room must hold zeros.
std::optional<std::vector<std::byte>> opened(Seal& seal, std::span<const std::byte> record) {
  std::vector<std::byte> plain(record.size() - kRecordExtra, std::byte{0x5a});
  const iovec part{plain.data(), plain.size()};
  if (seal.open(record, {&part, 1})) return plain;
  CHECK(equal(plain, std::vector<std::byte>(plain.size())));
  return std::nullopt;
}

}  // namespace

TEST_CASE("xfer/seal: HKDF gives the outputs of RFC 5869, appendix A") {
  const std::vector<uint8_t> input(22, 0x0b);
  const auto key = hkdf_extract(hex("000102030405060708090a0b0c"), input);
  CHECK(key == hex_array<32>("077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5"));
  CHECK(expanded(key, hex("f0f1f2f3f4f5f6f7f8f9"), 42) ==
        hex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"));
  const auto plain_key = hkdf_extract({}, input);
  CHECK(plain_key == hex_array<32>("19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04"));
  CHECK(expanded(plain_key, {}, 42) ==
        hex("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"));
}

TEST_CASE("xfer/seal: AES-GCM gives the output of test case 4 of the GCM specification, however it is cut") {
  const auto key = hex_array<Gcm::kKeyBytes>("feffe9928665731c6d6a8f9467308308");
  const auto nonce = hex_array<Gcm::kNonceBytes>("cafebabefacedbaddecaf888");
  const auto additional = hex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
  auto plain = hex(
      "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657"
      "ba637b39");
  const auto cipher = hex(
      "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac97"
      "3d58e091");
  const auto tag = hex("5bc94fbc3221a5db94fae95ae7121a47");
  Gcm gcm(key);
  for (size_t cut = 0; cut <= plain.size(); ++cut) {
    CAPTURE(cut);
    const iovec parts[] = {{plain.data(), cut}, {plain.data() + cut, plain.size() - cut}};
    std::vector<std::byte> out(plain.size());
    std::array<std::byte, kRecordTag> made;
    gcm.encrypt(nonce, bytes_of(additional), parts, out, made);
    CHECK(equal(out, bytes_of(cipher)));
    CHECK(equal(made, bytes_of(tag)));
    std::vector<std::byte> back(plain.size());
    const iovec places[] = {{back.data(), cut}, {back.data() + cut, back.size() - cut}};
    CHECK(gcm.decrypt(nonce, bytes_of(additional), out, made, places));
    CHECK(equal(back, bytes_of(plain)));
    made[cut % made.size()] ^= std::byte{1};
    CHECK_FALSE(gcm.decrypt(nonce, bytes_of(additional), out, made, places));
    CHECK(equal(back, std::vector<std::byte>(back.size())));
  }
}

TEST_CASE("xfer/auth: X25519 gives the outputs of RFC 7748, section 6.1, and takes no point of small order") {
  const ShareKey alice(hex_array<32>("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"));
  const ShareKey bob(hex_array<32>("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"));
  CHECK(alice.share() == hex_array<32>("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"));
  CHECK(bob.share() == hex_array<32>("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"));
  const auto secret = hex_array<32>("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
  REQUIRE(alice.agree(bob.share()).has_value());
  CHECK(*alice.agree(bob.share()) == secret);
  CHECK(*bob.agree(alice.share()) == secret);
  CHECK_FALSE(alice.agree({}).has_value());
  CHECK_FALSE(alice.agree({1}).has_value());
  CHECK_FALSE(
      alice.agree(hex_array<32>("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800")).has_value());
  CHECK(ShareKey().share() != ShareKey().share());
}

TEST_CASE("xfer/auth: keys differ by direction, and with every byte of both messages") {
  const std::string secret(32, 'k');
  const std::array<uint8_t, 32> exchanged{9};
  wire::XferHello hello{.lane = 1, .lane_count = 4, .secured = true, .seal = wire::SealSetting::may, .name = "a"};
  static_cast<Id128&>(hello.instance) = random_id();
  hello.nonce = random_nonce();
  hello.share = ShareKey().share();
  wire::XferChallenge challenge{.secured = true, .seal = wire::SealSetting::must, .name = "b"};
  static_cast<Id128&>(challenge.instance) = random_id();
  challenge.nonce = random_nonce();
  challenge.share = ShareKey().share();
  challenge.proof = prove(secret, "listener", hello, challenge);
  const SealSecrets dialler = seal_secrets(exchanged, secret, hello, challenge, true);
  const SealSecrets listener = seal_secrets(exchanged, secret, hello, challenge, false);
  CHECK(dialler.out == listener.in);
  CHECK(dialler.in == listener.out);
  CHECK(dialler.in != dialler.out);
  CHECK(seal_secrets({8}, secret, hello, challenge, true).out != dialler.out);
  CHECK(seal_secrets(exchanged, std::string(32, 'K'), hello, challenge, true).out != dialler.out);
  const auto proof = prove(secret, "dialler", hello, challenge);
  size_t changed = 0;
  auto hello_bytes = wire::encode(hello);
  for (auto& byte : hello_bytes) {
    byte ^= std::byte{1};
    if (const auto other = wire::decode_hello(hello_bytes)) {
      CHECK(seal_secrets(exchanged, secret, *other, challenge, true).out != dialler.out);
      CHECK_FALSE(same(prove(secret, "dialler", *other, challenge), proof));
      ++changed;
    }
    byte ^= std::byte{1};
  }
  CHECK(changed + 4 >= hello_bytes.size());  // lengths and lanes that make no sense are refused before
  auto challenge_bytes = wire::encode(challenge);
  for (size_t i = 0; i < challenge_bytes.size(); ++i) {
    challenge_bytes[i] ^= std::byte{1};
    if (const auto other = wire::decode_challenge(challenge_bytes)) {
      CHECK(seal_secrets(exchanged, secret, hello, *other, true).out != dialler.out);
      const bool only_proof = other->proof != challenge.proof;  // a proof does not cover itself
      CHECK(same(prove(secret, "dialler", hello, *other), proof) == only_proof);
    }
    challenge_bytes[i] ^= std::byte{1};
  }
}

TEST_CASE("xfer/seal: records open in their order and in no other, across changes of the key") {
  for (const uint64_t per_key : {uint64_t{1}, uint64_t{3}, kRecordsPerKey}) {
    CAPTURE(per_key);
    Seal out(kSecret, per_key);
    Seal in(kSecret, per_key);
    for (size_t i = 0; i < 10; ++i) {
      const auto plain = content(1 + i * 997, i);
      const auto record = sealed(out, plain);
      CHECK(record_length(std::span<const std::byte>(record).first<kRecordHead>()) == plain.size());
      const auto back = opened(in, record);
      REQUIRE(back.has_value());
      CHECK(equal(*back, plain));
    }
  }
}

TEST_CASE("xfer/seal: a record that was left out, repeated, swapped, or is of another secret fails") {
  const auto record_of = [](size_t number, const SealSecret& secret) {
    Seal out(secret, 4);
    std::vector<std::byte> record;
    for (size_t i = 0; i <= number; ++i) record = sealed(out, content(100, i));
    return record;
  };
  const auto in_after = [&](size_t number) {
    auto in = std::make_unique<Seal>(kSecret, 4);
    for (size_t i = 0; i < number; ++i) CHECK(opened(*in, record_of(i, kSecret)).has_value());
    return in;
  };
  for (size_t expected = 0; expected < 9; ++expected)
    for (size_t given = 0; given < 9; ++given) {
      CAPTURE(expected);
      CAPTURE(given);
      CHECK(opened(*in_after(expected), record_of(given, kSecret)).has_value() == (expected == given));
    }
  CHECK_FALSE(opened(*in_after(0), record_of(0, {1, 2, 4})).has_value());
}

TEST_CASE("xfer/seal: a record with any bit flipped fails") {
  Seal out(kSecret);
  const auto record = sealed(out, content(70, 1));
  for (size_t bit = 0; bit < record.size() * 8; ++bit) {
    auto changed = record;
    changed[bit / 8] ^= std::byte(1u << (bit % 8));
    Seal in(kSecret);
    CHECK_FALSE(opened(in, changed).has_value());
  }
}

TEST_CASE("xfer/seal: lengths no honest peer sends are none") {
  const auto length_of = [](uint32_t length) {
    std::array<std::byte, kRecordHead> head;
    std::memcpy(head.data(), &length, sizeof length);
    return record_length(head);
  };
  CHECK(length_of(1) == 1);
  CHECK(length_of(kRecordBytes) == kRecordBytes);
  CHECK(length_of(0) == 0);
  CHECK(length_of(kRecordBytes + 1) == 0);
  CHECK(length_of(wire::kXferMagic) == 0);  // a frame that was not sealed
  CHECK(length_of(UINT32_MAX) == 0);
}

}  // namespace seal_test
