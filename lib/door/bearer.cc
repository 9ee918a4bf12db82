#include "door/bearer.h"

#include <sys/random.h>

#include <algorithm>

#include "base/assert.h"
#include "base/errors.h"
#include "base/fd.h"
#include "base/hash.h"
#include "base/secret_file.h"

namespace mc::door {

bool is_bearer_key(std::string_view text) {
  return text.size() >= kBearerKeyMin && text.size() <= kBearerKeyMax &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > ' ' && c < 0x7f; });
}

KeyDigest key_digest(std::string_view key) {
  return Sha256().update(key).finish();
}

std::optional<KeyDigest> bearer_digest(std::string_view authorization) {
  constexpr std::string_view kBearer = "bearer ";
  if (authorization.size() <= kBearer.size() || authorization.size() > kBearer.size() + kBearerKeyMax) return {};
  if (!http::iequals(authorization.substr(0, kBearer.size()), kBearer)) return {};
  return key_digest(authorization.substr(kBearer.size()));
}

Result<std::string> read_bearer_key(const std::string& path, std::string_view flag) {
  const std::string next =
      "put one key, 8 to 256 visible ASCII characters, into a file of mode 0600; an admin key is "
      "made with: mc-conductor keygen --admin -o FILE";
  MC_TRY(text, read_secret_file(path, kBearerKeyMax + 2, flag, next));
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  if (is_bearer_key(text)) return text;
  return user_error(err::kKeyFile, path + " is not one line with a key of 8 to 256 visible ASCII characters",
                    std::string(flag) + " " + path, next);
}

Result<std::string> new_admin_key() {
  std::array<uint8_t, 32> secret;
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size()))
    return errno_error("getrandom");
  static constexpr char kHex[] = "0123456789abcdef";
  std::string key = "mcadmin-";
  for (const uint8_t byte : secret) {
    key += kHex[byte >> 4];
    key += kHex[byte & 15];
  }
  MC_ASSERT(is_bearer_key(key));
  return key;
}

Result<void> PageLock::load(const std::string& path) {
  MC_TRY(key, read_bearer_key(path, "--admin-key-file"));
  MC_ASSERT(is_bearer_key(key));
  const std::lock_guard lock(mutex_);
  key_ = key_digest(key);
  return {};
}

bool PageLock::has_key() const {
  const std::lock_guard lock(mutex_);
  return key_.has_value();
}

bool PageLock::admits(const http::Request& request) const {
  return is_open_ || admits_to_kv(request);
}

bool PageLock::admits_to_kv(const http::Request& request) const {
  if (request.over_socket) return true;
  const auto given = bearer_digest(http::find_header(request.headers, "authorization"));
  const std::lock_guard lock(mutex_);
  return given && key_ && *given == *key_;
}

Error PageLock::refusal(std::string_view path) const {
  const std::string page(path.substr(0, 100));
  if (has_key())
    return user_error(err::kForbidden, page + " is for operators: use the Unix socket in MCT_RUN_DIR on this host, or "
                                              "send the admin key of this program's --admin-key-file");
  return user_error(err::kForbidden,
                    page + " is for operators, and this program has no admin key: use the Unix socket in MCT_RUN_DIR "
                           "on this host, or start this program with --admin-key-file and send that key",
                    "", kNoAdminKeyStep);
}

}  // namespace mc::door
