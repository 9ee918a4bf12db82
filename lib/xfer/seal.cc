// The fence around OpenSSL's AES-GCM, and HKDF.
#include "xfer/seal.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/assert.h"

namespace mc::xfer {
namespace {

using Block = std::array<uint8_t, 32>;

Block hmac(std::span<const uint8_t> key, std::span<const uint8_t> message) {
  Block out{};
  unsigned length = 0;
  MC_ASSERT(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), message.data(), message.size(), out.data(),
                 &length) != nullptr);
  MC_ASSERT_EQ(length, out.size());
  return out;
}

unsigned char* bytes_of(void* at) {
  return static_cast<unsigned char*>(at);
}
unsigned char* bytes_of(std::byte* at) {
  return reinterpret_cast<unsigned char*>(at);
}
const unsigned char* bytes_of(const std::byte* at) {
  return reinterpret_cast<const unsigned char*>(at);
}

}  // namespace

Block hkdf_extract(std::span<const uint8_t> salt, std::span<const uint8_t> input) {
  return hmac(salt, input);
}

void hkdf_expand(std::span<const uint8_t> key, std::string_view info, std::span<uint8_t> out) {
  MC_ASSERT_LE(out.size(), size_t{255} * 32);
  std::vector<uint8_t> message;  // the block before, `info`, and the number of the block
  for (uint8_t number = 1; !out.empty(); ++number) {
    message.insert(message.end(), info.begin(), info.end());
    message.push_back(number);
    const Block block = hmac(key, message);
    const size_t count = std::min(out.size(), block.size());
    std::copy_n(block.begin(), count, out.begin());
    out = out.subspan(count);
    message.assign(block.begin(), block.end());
  }
  OPENSSL_cleanse(message.data(), message.size());
}

size_t record_length(std::span<const std::byte, kRecordHead> head) {
  uint32_t length;
  std::memcpy(&length, head.data(), sizeof length);
  return length <= kRecordBytes ? length : 0;
}

void Gcm::Free::operator()(evp_cipher_ctx_st* context) const {
  EVP_CIPHER_CTX_free(context);  // wipes the key
}

Gcm::Gcm(const Key& key) : context_(EVP_CIPHER_CTX_new()) {
  MC_ASSERT(context_ != nullptr);
  set_key(key);
}

void Gcm::set_key(const Key& key) {
  MC_ASSERT_EQ(EVP_CipherInit_ex(context_.get(), EVP_aes_128_gcm(), nullptr, key.data(), nullptr, 1), 1);
}

void Gcm::encrypt(const Nonce& nonce, std::span<const std::byte> additional, std::span<const iovec> parts,
                  std::span<std::byte> cipher, std::span<std::byte, kRecordTag> tag) {
  evp_cipher_ctx_st* const context = context_.get();
  int done = 0;
  MC_ASSERT_EQ(EVP_CipherInit_ex(context, nullptr, nullptr, nullptr, nonce.data(), 1), 1);
  MC_ASSERT_EQ(
      EVP_CipherUpdate(context, nullptr, &done, bytes_of(additional.data()), static_cast<int>(additional.size())), 1);
  size_t at = 0;
  for (const iovec& part : parts) {
    MC_ASSERT_LE(part.iov_len, cipher.size() - at);
    MC_ASSERT_EQ(EVP_CipherUpdate(context, bytes_of(cipher.data() + at), &done, bytes_of(part.iov_base),
                                  static_cast<int>(part.iov_len)),
                 1);
    at += part.iov_len;
  }
  MC_ASSERT_EQ(at, cipher.size());
  MC_ASSERT_EQ(EVP_CipherFinal_ex(context, bytes_of(cipher.data() + at), &done), 1);
  MC_ASSERT_EQ(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, static_cast<int>(tag.size()), tag.data()), 1);
}

bool Gcm::decrypt(const Nonce& nonce, std::span<const std::byte> additional, std::span<const std::byte> cipher,
                  std::span<const std::byte, kRecordTag> tag, std::span<const iovec> parts) {
  evp_cipher_ctx_st* const context = context_.get();
  int done = 0;
  MC_ASSERT_EQ(EVP_CipherInit_ex(context, nullptr, nullptr, nullptr, nonce.data(), 0), 1);
  MC_ASSERT_EQ(
      EVP_CipherUpdate(context, nullptr, &done, bytes_of(additional.data()), static_cast<int>(additional.size())), 1);
  size_t at = 0;
  for (const iovec& part : parts) {
    MC_ASSERT_LE(part.iov_len, cipher.size() - at);
    MC_ASSERT_EQ(EVP_CipherUpdate(context, bytes_of(part.iov_base), &done, bytes_of(cipher.data() + at),
                                  static_cast<int>(part.iov_len)),
                 1);
    at += part.iov_len;
  }
  MC_ASSERT_EQ(at, cipher.size());
  Tag given;  // OpenSSL takes a writable tag
  std::memcpy(given.data(), tag.data(), tag.size());
  MC_ASSERT_EQ(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, static_cast<int>(given.size()), given.data()), 1);
  unsigned char none[16];
  if (EVP_CipherFinal_ex(context, none, &done) == 1) return true;
  // An attacker chose which bits of the plaintext changed, so no caller may see it.
  for (const iovec& part : parts) OPENSSL_cleanse(part.iov_base, part.iov_len);
  return false;
}

Seal::Seal(const SealSecret& secret, uint64_t records_per_key)
    : secret_(secret), records_per_key_(records_per_key), gcm_(derive_key()) {}

Seal::~Seal() {
  OPENSSL_cleanse(secret_.data(), secret_.size());
}

Gcm::Key Seal::derive_key() {
  Gcm::Key key;
  hkdf_expand(secret_, "mc-xfer-3 key", key);
  hkdf_expand(secret_, "mc-xfer-3 nonce", base_);
  return key;
}

/// The nonce: the big-endian number of the record, combined with the last eight bytes of the derived nonce.
Gcm::Nonce Seal::next_nonce() {
  if (number_ == records_per_key_) {
    SealSecret next;
    hkdf_expand(secret_, "mc-xfer-3 next", next);
    secret_ = next;
    gcm_.set_key(derive_key());
    number_ = 0;
  }
  Gcm::Nonce nonce = base_;
  for (size_t i = 0; i < sizeof number_; ++i) nonce[nonce.size() - 1 - i] ^= static_cast<uint8_t>(number_ >> (8 * i));
  ++number_;
  return nonce;
}

void Seal::seal(std::span<const iovec> parts, std::span<std::byte> record) {
  MC_ASSERT_LT(kRecordExtra, record.size());
  const size_t length = record.size() - kRecordExtra;
  MC_ASSERT_LE(length, kRecordBytes);
  const auto word = static_cast<uint32_t>(length);
  std::memcpy(record.data(), &word, sizeof word);
  gcm_.encrypt(next_nonce(), record.first(kRecordHead), parts, record.subspan(kRecordHead, length),
               record.last<kRecordTag>());
}

bool Seal::open(std::span<const std::byte> record, std::span<const iovec> parts) {
  MC_ASSERT_LT(kRecordExtra, record.size());
  return gcm_.decrypt(next_nonce(), record.first(kRecordHead),
                      record.subspan(kRecordHead, record.size() - kRecordExtra), record.last<kRecordTag>(), parts);
}

}  // namespace mc::xfer
