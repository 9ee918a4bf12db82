// Files that hold keys. A file is read only when no other user could have read or changed it, and is written only
// where nothing was before. Every error is MC1006; key text never appears in one.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace mc {

/// The bytes of a regular file with mode 0600 or less that belongs to this process's user or to root. `flag` names the
/// setting in errors ("--auth"), and `next` says how such a file is made; "" = a key set.
Result<std::string> read_secret_file(const std::string& path, size_t bytes_max, std::string_view flag,
                                     const std::string& next = {});
/// Makes `path` with mode 0600 and writes `text`. Refuses a path where anything is, a link too.
Result<void> create_secret_file(const std::string& path, std::string_view text, std::string_view flag);
/// Writes to an open descriptor; a regular file becomes readable by its owner alone before the first byte.
Result<void> write_secret(int fd, std::string_view text);

}  // namespace mc
