#include "base/model_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/errors.h"

namespace mc {

Result<ModelFile> open_model_file(const std::string& path) {
  ModelFile file;
  file.fd = Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  const bool special = !file.fd && errno == ENXIO;  // a socket, or a device without a driver
  if (!file.fd && !special) {
    const Error error = errno_error("open " + path);
    return user_error(error.code == Code::not_found ? err::kModelIncomplete : err::kFileAccess, error.what);
  }
  struct stat status {};
  if (!special && ::fstat(file.fd.get(), &status) != 0)
    return as_user_error(err::kFileAccess, errno_error("stat " + path));
  if (special || !S_ISREG(status.st_mode)) return user_error(err::kModelCorrupt, path + ": is not a regular file");
  file.bytes = static_cast<uint64_t>(status.st_size);
  return file;
}

Result<std::string> read_model_file(const std::string& path, size_t limit) {
  MC_TRY(file, open_model_file(path));
  if (file.bytes > limit)
    return user_error(err::kModelCorrupt, path + ": is " + std::to_string(file.bytes) + " bytes long, at most " +
                                              std::to_string(limit) + " are read");
  auto text = read_to_end(file.fd.get(), limit);
  if (!text) return as_user_error(err::kFileAccess, within(path, std::move(text).error()));
  return text;
}

}  // namespace mc
