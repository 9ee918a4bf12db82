// The keys of a program: those of the cluster's key file (--auth), else those that this user's programs share in the
// run directory. A key file is read at start, and again on SIGHUP. Keys of a rotated file are pending until whoever
// uses them has taken them: a control plane that is busy at that moment is asked again, or the daemon would go on with
// keys that the rest of the cluster gave up.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "ctl/ctl.h"
#include "node/node.h"
#include "product/doors.h"
#include "xfer/xfer.h"

namespace mc::host {

class KeyFile {
 public:
  KeyFile() = default;  // none
  static Result<KeyFile> open(std::string path);
  /// Those of --auth, else those of `run_dir`. A door that --insecure opens has no keys but those of --auth.
  static Result<KeyFile> of(const cli::Args& args, const std::string& run_dir);
  /// Where the keys of a door count.
  ctl::Keys lock(Door door) const;
  /// Those of a door: none where lock() is none.
  std::optional<ctl::KeySet> keys(Door door) const;
  /// The file that the keys come from; "" without keys.
  const std::string& path() const { return path_; }
  /// Sets what they mean for xfer: the secret, and how far it goes.
  void apply(xfer::Options& options) const;
  /// The mark of the data door's keys for the registration of a node: an HMAC of its instance under the secret, so that
  /// it tells equal keys from different ones and nothing else.
  node::KeyMark mark(const InstanceId& node) const;
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
  bool local_ = false;                  // the run directory's
  std::set<Door> opened_;               // by --insecure
  std::optional<ctl::KeySet> keys_;     // in use
  std::optional<ctl::KeySet> pending_;  // read, and not taken yet
};

}  // namespace mc::host
