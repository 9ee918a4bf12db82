// Text that others made, such as the answer of a model, on its way to a terminal. A control sequence in it could move
// the cursor, rename the window or hide what was written.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace mc::verbs {

/// The text with every control character but line feed and tab, and every byte that is not UTF-8, as \xNN or \uNNNN.
std::string show_controls(std::string_view text);
/// Writes text with its controls shown when `fd` is a terminal, and as it is to a pipe or a file. `text` ends with a
/// whole character.
Result<void> write_foreign(int fd, std::string_view text);

}  // namespace mc::verbs
