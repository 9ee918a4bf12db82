// The cluster's key file of a daemon (--auth): read at start, and again on SIGHUP.
#pragma once

#include <optional>
#include <string>

#include "ctl/ctl.h"

namespace mc::run {

class KeyFile {
 public:
  KeyFile() = default;  // none
  static Result<KeyFile> open(std::string path);
  const std::optional<ctl::KeySet>& keys() const { return keys_; }
  /// The 32 bytes that xfer wants; "" without keys.
  std::string data_secret() const;
  /// True when the file holds other keys now. A file that cannot be read changes nothing and is logged.
  bool reload();

 private:
  std::string path_;
  std::optional<ctl::KeySet> keys_;
};

}  // namespace mc::run
