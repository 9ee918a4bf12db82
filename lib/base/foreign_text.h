// Text that others made, such as the answer of a model, on its way to a terminal. A control sequence in it could move
// the cursor, rename the window or hide what was written.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace mc {

/// The text with every control character but line feed and tab, and every byte that is not UTF-8, as \xNN or \uNNNN.
std::string show_controls(std::string_view text);
/// The value with all its strings and names shown so.
Json show_controls_in(const Json& value);
/// On a terminal, replaces control characters by escapes. A pipe or a file gets the bytes unchanged. `text` ends with a
/// whole character.
Result<void> write_foreign(int fd, std::string_view text);

}  // namespace mc
