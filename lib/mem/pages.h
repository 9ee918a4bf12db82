// Parts that HostBuffer and SharedBuffer share (internal to lib/mem): the refusal of a size that cannot fit, before
// the kernel overcommits it, and the parallel touch of pages, with an error instead of a signal.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"

namespace mc {
class Parallel;
}

namespace mc::mem {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = size_t{2} << 20;

/// "3221225472 bytes (3.0 GiB)".
std::string size_text(size_t bytes);

/// Code::no_space with needed and free bytes when `bytes` exceeds available_bytes().
Result<void> check_room(const char* name, size_t bytes);

/// Makes every page of a fresh writable mapping present, 16 MiB a task.
Result<void> prefault(const char* name, std::byte* data, size_t bytes, Parallel& parallel);

}  // namespace mc::mem
