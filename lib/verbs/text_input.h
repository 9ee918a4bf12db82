// Text of the command line and of files that goes to a server in JSON. Text that is not UTF-8 would arrive with U+FFFD
// in place of its bad bytes, which is another prompt or another key.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace mc::verbs {

/// MC1004 with the offset of the first bad byte. `where`: the flag or argument.
Result<void> check_text(std::string_view text, std::string where);

}  // namespace mc::verbs
