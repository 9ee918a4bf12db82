// The folder of the sockets of this user's cluster.
#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "base/errors.h"
#include "base/fd.h"
#include "ctl/ctl.h"

namespace mc::ctl {
namespace {

constexpr std::string_view kVariable = "$MCT_RUN_DIR";
/// Seconds. bind() makes the file of a socket a moment before the kernel finds the socket by it. A program may take
/// longer to write local.key.tmp.*.
constexpr time_t kSocketInTheMaking = 5, kKeysInTheMaking = 60;
/// Prefixes of the sockets and temporary files of these programs. No other file in the folder is touched.
constexpr std::array<std::string_view, 3> kSockets = {"node-", "data-", "bench-"};
constexpr std::string_view kTemporary = "local.key.tmp.";

std::string set_or_empty(const char* text) {
  return text ? text : "";
}

Error bad(const std::string& path, std::string what) {
  return user_error(err::kRunDir, path + " " + std::move(what), "run directory");
}

/// No process holds the socket. A datagram socket is refused by the type of any other before anything is connected.
bool is_dead(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, path.data(), path.size());
  const Fd probe(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return probe && ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
         errno == ECONNREFUSED;
}

bool is_rubbish(const std::string& path, std::string_view name) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 || info.st_uid != ::geteuid()) return false;
  const time_t age = ::time(nullptr) - info.st_mtime;
  if (S_ISREG(info.st_mode)) return age >= kKeysInTheMaking && name.starts_with(kTemporary);
  if (!S_ISSOCK(info.st_mode) || age < kSocketInTheMaking) return false;
  for (const std::string_view prefix : kSockets)
    if (name.starts_with(prefix)) return is_dead(path);
  return false;
}

}  // namespace

void sweep_run_dir(const std::string& directory) {
  DIR* folder = ::opendir(directory.c_str());
  if (folder == nullptr) return;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string path = directory + "/" + entry->d_name;
    if (is_rubbish(path, entry->d_name)) ::unlink(path.c_str());
  }
  ::closedir(folder);
}

Result<std::string> run_dir(const char* (*environment)(const char*)) {
  std::string path = set_or_empty(environment("MCT_RUN_DIR"));
  if (path.empty()) {
    const std::string xdg = set_or_empty(environment("XDG_RUNTIME_DIR"));
    path = xdg.empty() ? "/tmp/mct-" + std::to_string(::getuid()) : xdg + "/mct";
  }
  if (path.front() != '/') return bad(path, "is not an absolute path");
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return bad(path, "cannot be made: " + errno_error("mkdir").what);
  // lstat, because in /tmp another user could have made a link or a directory with this name.
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return bad(path, "cannot be read: " + errno_error("lstat").what);
  if (!S_ISDIR(info.st_mode)) return bad(path, "is not a directory");
  if (info.st_uid != ::geteuid()) return bad(path, "belongs to user " + std::to_string(info.st_uid));
  if ((info.st_mode & 077) != 0) return bad(path, "is open to other users; chmod 700 it");
  return path;
}

Result<Uri> resolve_endpoint(std::string_view text, const char* (*environment)(const char*)) {
  constexpr std::string_view kPrefix = "ipc://";
  if (text.substr(0, kPrefix.size()) != kPrefix || text.substr(kPrefix.size(), kVariable.size()) != kVariable)
    return parse_uri(text);
  MC_TRY(directory, run_dir(environment));
  return parse_uri(std::string(kPrefix) + directory + std::string(text.substr(kPrefix.size() + kVariable.size())));
}

}  // namespace mc::ctl
