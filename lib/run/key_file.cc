#include "run/key_file.h"

#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"

namespace mc::run {

Result<KeyFile> KeyFile::open(std::string path) {
  KeyFile file;
  MC_TRY(keys, ctl::load_key_set(path));
  file.path_ = std::move(path);
  file.keys_ = std::move(keys);
  return file;
}

std::string KeyFile::data_secret(const ctl::KeySet& keys) {
  const auto digest = Sha256().update(keys.data_secret).finish();  // Z85 text to 32 bytes
  return std::string(digest.begin(), digest.end());
}

void KeyFile::reload() {
  if (!keys_) return;
  auto keys = ctl::load_key_set(path_);
  if (!keys) return log_warn("keys not reloaded, the old ones stay", {{"why", one_line(keys.error())}});
  pending_.reset();
  if (*keys != *keys_) pending_ = std::move(*keys);  // equal: a log rotation, nobody's connections need to end
}

void KeyFile::offer(const std::function<Result<void>(const ctl::KeySet&)>& use) {
  if (!pending_) return;
  const auto used = use(*pending_);
  if (!used && used.error().code == Code::busy) return;
  if (used) {
    keys_ = std::move(*pending_);
    log_info("keys reloaded", {{"file", path_}});
  } else {
    log_warn("keys not changed, the old ones stay", {{"why", used.error().what}});
  }
  pending_.reset();
}

}  // namespace mc::run
