// Where the sockets of this user's cluster live.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/errors.h"
#include "base/fd.h"
#include "ctl/ctl.h"

namespace mc::ctl {
namespace {

constexpr std::string_view kVariable = "$MCT_RUN_DIR";

std::string set_or_empty(const char* text) {
  return text ? text : "";
}

Error bad(const std::string& path, std::string what) {
  return user_error(err::kRunDir, path + " " + std::move(what), "run directory");
}

}  // namespace

Result<std::string> run_dir(const char* (*environment)(const char*)) {
  std::string path = set_or_empty(environment("MCT_RUN_DIR"));
  if (path.empty()) {
    const std::string xdg = set_or_empty(environment("XDG_RUNTIME_DIR"));
    path = xdg.empty() ? "/tmp/mct-" + std::to_string(::getuid()) : xdg + "/mct";
  }
  if (path.front() != '/') return bad(path, "is not an absolute path");
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return bad(path, "cannot be made: " + errno_error("mkdir").what);
  // lstat: in /tmp another user could have put a link or a directory of his own in our place.
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
