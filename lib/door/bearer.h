// Keys that HTTP clients send as "Authorization: Bearer KEY": of tenants (--api-keys) and of operators
// (--admin-key-file). Keys are kept and compared as digests: neither a dump nor the time of a comparison tells one.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "http/server.h"

namespace mc::door {

constexpr size_t kBearerKeyMin = 8, kBearerKeyMax = 256;
/// 8 to 256 visible ASCII characters.
bool is_bearer_key(std::string_view text);
using KeyDigest = std::array<uint8_t, 32>;
KeyDigest key_digest(std::string_view key);
/// Digest of the KEY in "Bearer KEY"; nothing for other texts.
std::optional<KeyDigest> bearer_digest(std::string_view authorization);

/// The key in a file of one line, which other users may not read; MC1006. `flag` names the setting in errors.
Result<std::string> read_bearer_key(const std::string& path, std::string_view flag);
/// "mcadmin-" and 256 random bits, for keygen --admin.
Result<std::string> new_admin_key();

/// The lock of the operators' pages of one process. Calls may come from any thread.
/// The next step of a refusal by a program that has no admin key. Verbs know by it that no key helps.
inline constexpr std::string_view kNoAdminKeyStep =
    "use the Unix socket in MCT_RUN_DIR on its host, which needs no key, or start it with --admin-key-file";

class PageLock {
 public:
  /// `is_open`: --insecure pages. Without it and without a key only the Unix socket opens the lock.
  explicit PageLock(bool is_open) : is_open_(is_open) {}
  /// Reads the file (--admin-key-file), again on SIGHUP; on failure the key stays as it was.
  Result<void> load(const std::string& path);
  bool has_key() const;
  bool admits(const http::Request& request) const;
  /// For pages that hand out prompts and KV, or take KV: --insecure pages does not open them.
  bool admits_to_kv(const http::Request& request) const;
  /// MC4026 for a request that is not admitted.
  Error refusal(std::string_view path) const;

 private:
  const bool is_open_;
  mutable std::mutex mutex_;
  std::optional<KeyDigest> key_;  // guarded
};

}  // namespace mc::door
