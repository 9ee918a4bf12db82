#include "verbs/misses_text.h"

#include <algorithm>

#include "wire/miss.h"

namespace mc::verbs {

std::string missed_line(const Json& run) {
  wire::Miss miss;
  miss.kind = wire::miss_from(run["reason"].as_string());
  miss.node = run["node"].as_string();
  miss.age_ms = static_cast<uint64_t>(std::max<int64_t>(0, run["age_ms"].as_int()));
  const auto number = [&](const char* key) { return std::clamp<int64_t>(run[key].as_int(), 0, UINT32_MAX); };
  const int64_t first = number("first_block"), last = first + number("blocks") - 1;
  return (last > first ? "blocks " + std::to_string(first) + ".." + std::to_string(last)
                       : "block " + std::to_string(first)) +
         " computed: " + wire::describe(miss);
}

}  // namespace mc::verbs
