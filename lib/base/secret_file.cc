#include "base/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/errors.h"
#include "base/fd.h"

namespace mc {

Result<std::string> read_secret_file(const std::string& path, size_t bytes_max, std::string_view flag,
                                     const std::string& next) {
  const std::string where = std::string(flag) + " " + path;
  const auto refuse = [&](std::string what, std::string mend) {
    return user_error(err::kKeyFile, path + " " + std::move(what), where, std::move(mend));
  };
  // O_NONBLOCK: opening a FIFO must not wait for its writer.
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return user_error(err::kKeyFile, errno_error("open " + path).what, where, next);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return user_error(err::kKeyFile, errno_error("fstat " + path).what, where);
  if (!S_ISREG(info.st_mode))
    return refuse("is not a regular file", "give a file of mode 0600, not a pipe or a directory");
  if (info.st_uid != ::geteuid() && info.st_uid != 0)
    return refuse("belongs to user " + std::to_string(info.st_uid) + ", not to you",
                  "chown it to the user of this program, or make a file of your own");
  if ((info.st_mode & 077) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(info.st_mode & 07777));
    return refuse("has mode " + std::string(mode) + ": other users may read or change it",
                  "chmod 600 " + path + "; if others could read it, replace its keys by new ones");
  }
  auto text = read_to_end(fd.get(), bytes_max);
  if (!text) return user_error(err::kKeyFile, within(path, std::move(text).error()).what, where, next);
  return text;
}

Result<void> create_secret_file(const std::string& path, std::string_view text, std::string_view flag) {
  const std::string where = std::string(flag) + " " + path;
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd && errno == EEXIST)
    return user_error(err::kKeyFile, path + " exists already: a key file is never overwritten", where,
                      "choose another name, or move the old file away once nothing uses it");
  if (!fd)
    return user_error(err::kKeyFile, errno_error("create " + path).what, where,
                      "name a file in a directory that exists and that you may write");
  auto written = write_secret(fd.get(), text);
  if (written && ::fsync(fd.get()) != 0) written = errno_error("fsync " + path);
  if (written) return {};
  ::unlink(path.c_str());  // half a key set is of no use
  return user_error(err::kKeyFile, path + ": " + written.error().what, where);
}

Result<void> write_secret(int fd, std::string_view text) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return errno_error("fstat");
  if (S_ISREG(info.st_mode) && ::fchmod(fd, 0600) != 0) return errno_error("fchmod 0600");
  return write_all(fd, text);
}

}  // namespace mc
