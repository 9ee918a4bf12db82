// Behaviour when the operating system starts no more threads: RLIMIT_NPROC counts all threads of a user, pids.max those
// of a control group.
#pragma once

#include "base/result.h"

namespace mc {

/// MC5006 of a thread that could not be started; `error` is the errno. The text names the limit and its value.
Error thread_limit_error(int error);

/// Fails with thread_limit_error() when the process cannot have `count` threads more. For libraries that end the
/// process when a thread of theirs does not start: asked at once before they start theirs.
Result<void> check_thread_room(int count);

}  // namespace mc
