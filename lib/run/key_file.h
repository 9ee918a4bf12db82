// The cluster's key file of a daemon (--auth): read at start, and again on SIGHUP. Keys of a rotated
// file are pending until whoever uses them has taken them: a control plane that is busy at that moment
// is asked again, or the daemon would go on with keys that the rest of the cluster gave up.
#pragma once

#include <functional>
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
  std::string data_secret() const { return keys_ ? data_secret(*keys_) : ""; }
  static std::string data_secret(const ctl::KeySet& keys);
  /// Reads the file again. One that cannot be read changes nothing and is logged.
  void reload();
  /// Gives `use` the keys that were read and are not in use, if there are any. ok: they are in use now;
  /// busy: they stay pending; any other error is logged and the old keys stay.
  void offer(const std::function<Result<void>(const ctl::KeySet&)>& use);

 private:
  std::string path_;
  std::optional<ctl::KeySet> keys_;     // in use
  std::optional<ctl::KeySet> pending_;  // read, and not taken yet
};

}  // namespace mc::run
