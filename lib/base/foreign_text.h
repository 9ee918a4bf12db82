// Functions that write text from other programs (such as a model's answer) to a terminal safely. A control sequence in
// it could move the cursor, rename the window or hide what was written.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace mc {

/// Returns the text with escapes (\xNN, \uNNNN) in place of control characters and of bytes that are not UTF-8. Line
/// feeds and tabs stay.
std::string show_controls(std::string_view text);
/// Applies show_controls() to all strings and member names of a JSON value.
Json show_controls_in(const Json& value);
/// On a terminal, replaces control characters by escapes. A pipe or a file gets the bytes unchanged. `text` ends with a
/// whole character.
Result<void> write_foreign(int fd, std::string_view text);

}  // namespace mc
