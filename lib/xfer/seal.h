// Sealed records (internal): AES-GCM over the bytes that one side of a connection sends.
//
//   | length u32 | ciphertext, `length` bytes | tag 16 bytes |
//
// The length is additional authenticated data. The nonce is not sent. It is the number of the record under its key,
// combined with a derived value as in RFC 8446, section 5.3. So a record that was changed, left out, repeated, moved,
// or taken from another lane or direction fails its tag.
//
// One key seals kRecordsPerKey records (64 GiB at most). Then both sides derive the next key from it. 2^32 blocks under
// a key keep the distinguishing advantage below 2^-63 (NIST SP 800-38D allows 2^32 records).
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

extern "C" struct evp_cipher_ctx_st;

namespace mc::xfer {

inline constexpr size_t kRecordBytes = size_t{64} << 10;  // largest plaintext of a record
inline constexpr size_t kRecordHead = 4;
inline constexpr size_t kRecordTag = 16;
inline constexpr size_t kRecordExtra = kRecordHead + kRecordTag;
inline constexpr uint64_t kRecordsPerKey = uint64_t{1} << 20;

/// The secret from which the keys of one direction of one connection are derived.
using SealSecret = std::array<uint8_t, 32>;

/// HKDF with SHA-256 (RFC 5869). `out` holds at most 255 times 32 bytes.
std::array<uint8_t, 32> hkdf_extract(std::span<const uint8_t> salt, std::span<const uint8_t> input);
void hkdf_expand(std::span<const uint8_t> key, std::string_view info, std::span<uint8_t> out);

/// The length of the plaintext of the record that starts here; 0 when it is out of range.
size_t record_length(std::span<const std::byte, kRecordHead> head);

/// AES-GCM with one key and a nonce from the caller. It is separate from Seal for the published test vectors.
class Gcm {
 public:
  static constexpr size_t kKeyBytes = 16;
  static constexpr size_t kNonceBytes = 12;
  using Key = std::array<uint8_t, kKeyBytes>;
  using Nonce = std::array<uint8_t, kNonceBytes>;
  using Tag = std::array<uint8_t, kRecordTag>;

  explicit Gcm(const Key& key);
  /// Replaces the key.
  void set_key(const Key& key);
  /// Encrypts the concatenation of `parts` into `cipher`, which has an equal number of bytes.
  void encrypt(const Nonce& nonce, std::span<const std::byte> additional, std::span<const iovec> parts,
               std::span<std::byte> cipher, std::span<std::byte, kRecordTag> tag);
  /// False: the tag does not match, and the parts hold zeros.
  bool decrypt(const Nonce& nonce, std::span<const std::byte> additional, std::span<const std::byte> cipher,
               std::span<const std::byte, kRecordTag> tag, std::span<const iovec> parts);

 private:
  struct Free {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  std::unique_ptr<evp_cipher_ctx_st, Free> context_;
};

/// The records of one direction, in order. Each side has two objects: one seals, the other opens.
class Seal {
 public:
  explicit Seal(const SealSecret& secret, uint64_t records_per_key = kRecordsPerKey);
  ~Seal();
  Seal(const Seal&) = delete;
  Seal& operator=(const Seal&) = delete;

  /// Seals the parts, together 1 to kRecordBytes bytes, into `record`, which is kRecordExtra larger.
  void seal(std::span<const iovec> parts, std::span<std::byte> record);
  /// Opens a whole record into parts of exactly its length. False: the bytes are not the next record of the peer. The
  /// parts then hold zeros, and nothing more can be opened.
  bool open(std::span<const std::byte> record, std::span<const iovec> parts);

 private:
  Gcm::Nonce next_nonce();
  Gcm::Key derive_key();

  SealSecret secret_;
  uint64_t records_per_key_;
  uint64_t number_ = 0;  // number of the next record under this key
  Gcm::Nonce base_{};
  Gcm gcm_;
};

}  // namespace mc::xfer
