#include "verbs/text_input.h"

#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "base/json.h"

namespace mc::verbs {

Result<void> check_text(std::string_view text, std::string where) {
  MC_ASSERT(!where.empty());
  const auto bad = find_invalid_utf8(text);
  if (!bad) return {};
  return user_error(err::kInputNotUtf8, "the text is not valid UTF-8 at byte " + std::to_string(*bad),
                    std::move(where));
}

}  // namespace mc::verbs
