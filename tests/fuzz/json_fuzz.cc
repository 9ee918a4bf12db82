// links: base
// A value that was parsed prints to text that parses to an equal value and prints the same again. Lookups and
// conversions on it never fail.
#include <cstdlib>
#include <string_view>

#include "base/json.h"
#include "fuzz_target.h"

namespace mc::json_fuzz {

FUZZ_TARGET(json) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::string quoted;
  append_json_string(quoted, text);
  if (!Json::parse(quoted)) std::abort();
  const auto json = Json::parse(text, {.bytes = 1 << 16, .depth = 20, .values = 5000});
  if (!json) return 0;
  if (find_invalid_utf8(text)) std::abort();
  (void)(*json)["a"][3]["b"].as_int();
  (void)json->as_double();
  const std::string printed = json->dump();
  const auto again = Json::parse(printed);
  if (!again || !(*again == *json) || again->dump() != printed) std::abort();
  return 0;
}

}  // namespace mc::json_fuzz
