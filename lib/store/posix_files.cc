#include "store/posix_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/assert.h"
#include "base/errors.h"

namespace mc::store {
namespace {

constexpr std::string_view kUnfinished = ".part";  // end of the name of a file that create() has not finished
constexpr size_t kZeroBytes = size_t{1} << 20;
/// Nobody writes to it. A store that finds no memory for a new segment would never grow again.
alignas(kPageBytes) std::byte g_zeros[kZeroBytes];
constexpr mode_t kDirectoryMode = 0700, kFileMode = 0600;  // the files hold the prompts of all users

bool is_unfinished(std::string_view name) {
  return name.ends_with(kUnfinished);
}

/// The pid that the holder of the lock wrote into it. "another process" when it wrote none, or that process has ended:
/// a reader holds the lock and writes nothing.
std::string holder_of(int lock) {
  char text[32] = {};
  const ssize_t got = ::pread(lock, text, sizeof text - 1, 0);
  const std::string pid(text, got > 0 ? std::strspn(text, "0123456789") : 0);
  const long number = pid.empty() ? 0 : std::strtol(pid.c_str(), nullptr, 10);
  const bool lives = number > 0 && number <= INT_MAX && (::kill(static_cast<pid_t>(number), 0) == 0 || errno != ESRCH);
  return lives ? "process " + pid : "another process";
}

Error not_private(const std::string& directory, const std::string& what, const std::string& next) {
  return user_error(err::kFileAccess, directory + " " + what, "directory of a block store", next);
}

/// Opens the directory itself, no link to it. A user who can write into it could plant blocks with right checksums, and
/// a user who can read it could read the prompts of others: it must belong to this user alone.
Result<Fd> open_private(const std::string& directory) {
  Fd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (!fd && ::lstat(directory.c_str(), &status) == 0 && S_ISLNK(status.st_mode))
    return not_private(directory, "is a symbolic link", "name the directory that the link points to");
  if (!fd) return as_user_error(err::kFileAccess, errno_error("open " + directory));
  if (::fstat(fd.get(), &status) != 0) return as_user_error(err::kFileAccess, errno_error("stat " + directory));
  if (status.st_uid != ::geteuid())
    return not_private(directory,
                       "belongs to user " + std::to_string(status.st_uid) + ", and this process runs as user " +
                           std::to_string(::geteuid()),
                       "run the program as the owner of the directory, or name another directory");
  if ((status.st_mode & 077) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(status.st_mode & 07777));
    return not_private(directory, std::string("has mode ") + mode + " and is open to other users",
                       "chmod 700 " + directory);
  }
  return fd;
}

/// Why the file is no file of this user's alone; "" = it is one. A second name of it may lie outside the directory.
std::string objection(const struct stat& status) {
  if (!S_ISREG(status.st_mode)) return " is no regular file";
  if (status.st_uid != ::geteuid()) return " belongs to user " + std::to_string(status.st_uid);
  if (status.st_nlink != 1) return " has " + std::to_string(status.st_nlink) + " names (hard links)";
  return "";
}

}  // namespace

Error PosixFiles::failed(const std::string& what) const {
  return errno_error(directory_ + "/" + what);
}

Result<void> PosixFiles::take_lock() {
  // A link named "lock" would make this process truncate the file behind the link.
  const bool reads = access_ == Access::read_only;
  const int flags = (reads ? O_RDONLY : O_RDWR | O_CREAT) | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  lock_ = Fd(::openat(directory_fd_.get(), "lock", flags, kFileMode));
  if (!lock_ && reads && errno == ENOENT) return {};  // a store that is in use has one
  struct stat status {};
  if (!lock_ || ::fstat(lock_.get(), &status) != 0) return as_user_error(err::kFileAccess, failed("lock"));
  if (const std::string what = objection(status); !what.empty())
    return not_private(directory_ + "/lock", what.substr(1), "remove that file; the store makes its own");
  if (::flock(lock_.get(), (reads ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0)
    return user_error(err::kStoreBusy, directory_ + " is in use by " + holder_of(lock_.get()));
  if (reads) return {};
  const std::string pid = std::to_string(::getpid()) + "\n";
  if (::ftruncate(lock_.get(), 0) != 0 || ::pwrite(lock_.get(), pid.data(), pid.size(), 0) < 0)
    errno = 0;  // the number is for people; the lock holds without it
  return {};
}

Result<void> PosixFiles::enter(const std::string& directory, Access access) {
  access_ = access;
  directory_ = directory;
  while (directory_.size() > 1 && directory_.back() == '/') directory_.pop_back();  // "link/" would follow the link
  if (access == Access::read_write) {
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(directory_).parent_path(), error);
    if (::mkdir(directory_.c_str(), kDirectoryMode) != 0 && errno != EEXIST) {
      const int cause = errno == ENOENT && error ? error.value() : errno;  // why there is no folder to make it in
      return as_user_error(err::kFileAccess, errno_error("make " + directory_, cause));
    }
  }
  MC_TRY(opened, open_private(directory_));
  directory_fd_ = std::move(opened);
  MC_CHECK(take_lock());
  if (access == Access::read_only) return {};
  MC_TRY(names, list());
  for (const std::string& name : names)
    if (is_unfinished(name)) ::unlinkat(directory_fd_.get(), name.c_str(), 0);
  return {};
}

Result<std::vector<std::string>> PosixFiles::list() {
  const int copy = ::openat(directory_fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* entries = copy < 0 ? nullptr : ::fdopendir(copy);
  if (entries == nullptr) {
    if (copy >= 0) ::close(copy);
    return failed("");
  }
  std::vector<std::string> out;
  while (const dirent* entry = ::readdir(entries))
    if (entry->d_name[0] != '.') out.push_back(entry->d_name);
  ::closedir(entries);
  std::sort(out.begin(), out.end());
  return out;
}

Result<FileId> PosixFiles::keep(Fd fd, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  files_.push_back({std::move(fd), bytes});
  return static_cast<FileId>(files_.size() - 1);
}

Result<FileId> PosixFiles::open(const std::string& name) {
  // A FIFO in the place of a segment must not make a reader wait.
  const int flags = (access_ == Access::read_only ? O_RDONLY | O_NONBLOCK : O_RDWR) | O_CLOEXEC | O_NOFOLLOW;
  Fd fd(::openat(directory_fd_.get(), name.c_str(), flags | O_DIRECT));
  if (!fd && errno == EINVAL) fd = Fd(::openat(directory_fd_.get(), name.c_str(), flags));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) return failed(name);
  if (const std::string what = objection(status); !what.empty())
    return Error{Code::invalid, directory_ + "/" + name + what};
  return keep(std::move(fd), static_cast<uint64_t>(status.st_size));
}

Result<FileId> PosixFiles::create(const std::string& name, uint64_t bytes) {
  MC_ASSERT(access_ == Access::read_write);
  const std::string unfinished = name + std::string(kUnfinished);
  if (::faccessat(directory_fd_.get(), name.c_str(), F_OK, 0) == 0)
    return Error{Code::invalid, directory_ + "/" + name + " is there already"};
  ::unlinkat(directory_fd_.get(), unfinished.c_str(), 0);
  const Fd made(::openat(directory_fd_.get(), unfinished.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kFileMode));
  if (!made) return failed(name);
  std::optional<FileId> kept;
  const auto fail = [&] {
    const Error error = failed(name + ": " + std::to_string(bytes) + " bytes");
    ::unlinkat(directory_fd_.get(), unfinished.c_str(), 0);
    const std::lock_guard lock(mutex_);
    if (kept) files_[*kept].fd.reset();  // open, it would keep the space of the file
    return error;
  };
  // Allocated at once, so that a full disk shows now, then written: an extent that was never written is converted by
  // the first write to it, and then every flush waits for the file system's journal.
  if (::fallocate(made.get(), 0, 0, static_cast<off_t>(bytes)) != 0 && errno != EOPNOTSUPP) return fail();
  MC_TRY(id, open(unfinished));
  kept = id;
  for (uint64_t at = 0; at < bytes;) {
    const iovec part{g_zeros, std::min<uint64_t>(kZeroBytes, bytes - at)};
    Io write{.op = Io::Op::write, .file = id, .offset = at, .parts = {&part, 1}};
    transfer(write);
    errno = write.error;
    if (write.error != 0) return fail();
    at += part.iov_len;
  }
  const bool done = ::fsync(made.get()) == 0 &&
                    ::renameat(directory_fd_.get(), unfinished.c_str(), directory_fd_.get(), name.c_str()) == 0 &&
                    ::fsync(directory_fd_.get()) == 0;
  if (!done) return fail();
  const std::lock_guard lock(mutex_);
  files_[id].bytes = bytes;
  return id;
}

Result<void> PosixFiles::remove(const std::string& name, FileId file) {
  MC_ASSERT(access_ == Access::read_write);
  if (::unlinkat(directory_fd_.get(), name.c_str(), 0) != 0 || ::fsync(directory_fd_.get()) != 0) return failed(name);
  const std::lock_guard lock(mutex_);
  files_[file].fd.reset();
  return {};
}

uint64_t PosixFiles::size(FileId file) const {
  const std::lock_guard lock(mutex_);
  MC_ASSERT(file < files_.size());
  return files_[file].bytes;
}

int PosixFiles::fd(FileId file) const {
  const std::lock_guard lock(mutex_);
  MC_ASSERT(file < files_.size());
  return files_[file].fd.get();
}

void PosixFiles::transfer(Io& io) const {
  const int to = fd(io.file);
  io.error = 0;
  if (io.op == Io::Op::flush) {
    if (::fdatasync(to) != 0) io.error = errno;
    return;
  }
  MC_ASSERT_LE(io.parts.size(), kPartsMax);
  std::array<iovec, kPartsMax> rest;  // after a short transfer; no allocation can fail here
  std::span<const iovec> parts = io.parts;
  for (uint64_t at = io.offset; !parts.empty();) {
    const auto offset = static_cast<off_t>(at);
    const int count = static_cast<int>(parts.size());
    const ssize_t moved =
        io.op == Io::Op::read ? ::preadv(to, parts.data(), count, offset) : ::pwritev(to, parts.data(), count, offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) {
      io.error = moved < 0 ? errno : io.op == Io::Op::read ? ENODATA : EIO;
      return;
    }
    at += static_cast<uint64_t>(moved);
    auto left = static_cast<size_t>(moved);
    size_t whole = 0;
    while (whole < parts.size() && left >= parts[whole].iov_len) left -= parts[whole++].iov_len;
    parts = parts.subspan(whole);
    if (parts.empty()) return;
    std::copy(parts.begin(), parts.end(), rest.begin());  // to the front, also where the parts are in `rest`
    rest.front().iov_base = static_cast<std::byte*>(rest.front().iov_base) + left;
    rest.front().iov_len -= left;
    parts = std::span(rest).first(parts.size());
  }
}

}  // namespace mc::store
