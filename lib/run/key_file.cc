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

std::string KeyFile::data_secret() const {
  if (!keys_) return "";
  const auto digest = Sha256().update(keys_->data_secret).finish();  // Z85 text to 32 bytes
  return std::string(digest.begin(), digest.end());
}

bool KeyFile::reload() {
  if (!keys_) return false;
  auto keys = ctl::load_key_set(path_);
  if (!keys) {
    log_warn("keys not reloaded, the old ones stay", {{"why", one_line(keys.error())}});
    return false;
  }
  if (*keys == *keys_) return false;  // a log rotation: nobody's connections need to end
  keys_ = std::move(*keys);
  log_info("keys reloaded", {{"file", path_}});
  return true;
}

}  // namespace mc::run
