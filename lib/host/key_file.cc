#include "host/key_file.h"

#include "base/assert.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/hmac.h"
#include "base/log.h"
#include "product/flags.h"

namespace mc::host {

Result<KeyFile> KeyFile::open(std::string path) {
  KeyFile file;
  MC_TRY(keys, ctl::load_key_set(path));
  file.path_ = std::move(path);
  file.keys_ = std::move(keys);
  return file;
}

Result<KeyFile> KeyFile::of(const cli::Args& args, const std::string& run_dir) {
  KeyFile file;
  if (args.present(flags::kAuth)) {
    MC_TRY(opened, open(args.text(flags::kAuth)));
    file = std::move(opened);
  } else {
    MC_TRY(keys, ctl::local_key_set(run_dir));
    file.path_ = run_dir + "/local.key";
    file.local_ = true;
    file.keys_ = std::move(keys);
  }
  for (const Door door : {Door::control, Door::data})
    if (insecure(args, door)) file.opened_.insert(door);
  return file;
}

ctl::Keys KeyFile::lock(Door door) const {
  MC_ASSERT(!local_ || keys_);
  if (!keys_ || (local_ && opened_.contains(door))) return ctl::Keys::none;
  return local_ ? ctl::Keys::machine : ctl::Keys::cluster;
}

std::optional<ctl::KeySet> KeyFile::keys(Door door) const {
  return lock(door) == ctl::Keys::none ? std::nullopt : keys_;
}

void KeyFile::apply(xfer::Options& options) const {
  const ctl::Keys lock = this->lock(Door::data);
  options.secret = lock == ctl::Keys::none ? "" : data_secret(*keys_);
  MC_ASSERT(lock == ctl::Keys::none || !options.secret.empty());
  options.local_secret = lock == ctl::Keys::machine;
  options.insecure = opened_.contains(Door::data);
}

node::KeyMark KeyFile::mark(const InstanceId& node) const {
  if (lock(Door::data) == ctl::Keys::none) return {};
  const std::string_view instance(reinterpret_cast<const char*>(node.bytes.data()), node.bytes.size());
  const auto check = hmac_sha256(data_secret(), "mct registration" + std::string(instance));
  return {path_, wire::Bytes(check.begin(), check.end())};
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
  MC_ASSERT(keys_.has_value());
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

}  // namespace mc::host
