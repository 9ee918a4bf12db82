// The cluster's key file, and the places where a program may listen without one.
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/errors.h"
#include "base/fd.h"
#include "base/secret_file.h"
#include "ctl/ctl.h"
#include "ctl/zmq_socket.h"

namespace mc::ctl {
namespace {

constexpr std::string_view kHeader =
    "# mooncake-toolkit key set v1: keep secret (mode 0600), the same file on every host";
constexpr size_t kKeyFileMax = 4096;
constexpr size_t kKeyText = 40;  // 32 bytes as Z85
constexpr std::string_view kZ85 =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

struct Field {
  std::string_view name;
  std::string KeySet::*member;
};
constexpr Field kFields[] = {{"server-public", &KeySet::server_public},
                             {"server-secret", &KeySet::server_secret},
                             {"client-public", &KeySet::client_public},
                             {"client-secret", &KeySet::client_secret},
                             {"data-secret", &KeySet::data_secret}};

Error bad(std::string what) {
  return user_error(err::kKeyFile, std::move(what));
}

/// Reads one line. Messages contain only the line's number and the fault, never key text.
Result<void> read_line(std::string_view line, size_t number, KeySet& keys) {
  const std::string where = "line " + std::to_string(number);
  const size_t space = line.find(' ');
  const std::string_view name = line.substr(0, space);
  const auto* field =
      std::find_if(std::begin(kFields), std::end(kFields), [&](const Field& f) { return f.name == name; });
  if (field == std::end(kFields) || space == std::string_view::npos)
    return bad(where +
               " is not one of server-public, server-secret, client-public, client-secret, data-secret and a key");
  const std::string_view value = line.substr(space + 1);
  const bool clean =
      std::all_of(value.begin(), value.end(), [](char c) { return kZ85.find(c) != std::string_view::npos; });
  if (value.size() != kKeyText || !clean)
    return bad(where + " (" + std::string(name) + ") is not a key of 40 Z85 characters");
  std::string& target = keys.*(field->member);
  if (!target.empty()) return bad(where + " repeats " + std::string(name));
  target = value;
  return {};
}

Result<void> check_pair(const std::string& public_key, const std::string& secret_key, std::string_view name) {
  auto derived = curve_public(secret_key);
  if (!derived || *derived != public_key)
    return bad(std::string(name) + "-public and " + std::string(name) + "-secret do not belong together");
  return {};
}

}  // namespace

Result<KeySet> new_key_set() {
  MC_TRY(server, new_curve_pair());
  MC_TRY(client, new_curve_pair());
  uint8_t secret[32];
  if (::getrandom(secret, sizeof secret, 0) != static_cast<ssize_t>(sizeof secret)) return errno_error("getrandom");
  return KeySet{server.public_key, server.secret_key, client.public_key, client.secret_key, z85_text(secret)};
}

std::string format_key_set(const KeySet& keys) {
  std::string out(kHeader);
  out += '\n';
  for (const Field& field : kFields) out += std::string(field.name) + " " + keys.*(field.member) + "\n";
  return out;
}

Result<void> write_key_set(const KeySet& keys, int fd) {
  return write_secret(fd, format_key_set(keys));
}

Result<KeySet> parse_key_set(std::string_view text) {
  if (text.size() > kKeyFileMax)
    return bad("a key set has at most 4096 bytes, this has " + std::to_string(text.size()));
  KeySet keys;
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty() || line.front() == '#') continue;
    MC_CHECK(read_line(line, number, keys));
  }
  for (const Field& field : kFields)
    if ((keys.*(field.member)).empty()) return bad(std::string(field.name) + " is missing");
  MC_CHECK(check_pair(keys.server_public, keys.server_secret, "server"));
  MC_CHECK(check_pair(keys.client_public, keys.client_secret, "client"));
  return keys;
}

namespace {

Result<KeySet> read_key_set(const std::string& path, const std::string& where) {
  MC_TRY(text, read_secret_file(path, kKeyFileMax, where));
  auto keys = parse_key_set(text);
  if (keys) return keys;
  Error error = within(path, std::move(keys).error());
  error.where = where;
  return error;
}

}  // namespace

Result<KeySet> load_key_set(const std::string& path) {
  return read_key_set(path, "--auth");
}

Result<KeySet> local_key_set(const std::string& run_dir) {
  const std::string path = run_dir + "/local.key";
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) {
    MC_TRY(keys, new_key_set());
    // A link appears whole or not at all, and never replaces a file that another program made in the meantime.
    std::string temporary = path + ".tmp.XXXXXX";
    const Fd fd(::mkostemp(temporary.data(), O_CLOEXEC));
    if (!fd) return as_user_error(err::kRunDir, errno_error("create " + temporary));
    auto made = write_all(fd.get(), format_key_set(keys));
    if (made && ::fsync(fd.get()) != 0) made = errno_error("fsync " + temporary);
    if (made && ::link(temporary.c_str(), path.c_str()) != 0 && errno != EEXIST) made = errno_error("link " + path);
    ::unlink(temporary.c_str());
    if (!made) return as_user_error(err::kRunDir, within(temporary, std::move(made).error()));
  }
  auto keys = read_key_set(path, "MCT_RUN_DIR");
  if (keys || keys.error().mc != err::kKeyFile) return keys;
  Error error = std::move(keys).error();
  error.next = "remove " + path + ", start the programs of this run directory anew, and they make another";
  return error;
}

Result<void> check_exposure(Door door, const Uri& uri, Keys keys, bool insecure, Side side) {
  if (insecure || keys == Keys::cluster || (uri.scheme != "tcp" && is_local(uri))) return {};
  if (!is_local(uri)) return no_lock(door, uri.text(), side);
  if (keys == Keys::machine) return {};
  return user_error(err::kAuthRequired,
                    "every user of this machine can connect to " + uri.text() + ", and there are no keys",
                    "listen address " + uri.text());
}

}  // namespace mc::ctl
