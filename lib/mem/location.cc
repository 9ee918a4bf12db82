// Names of memory locations, as users type them (--device) and as layouts print them.
#include <charconv>

#include "mem/mem.h"

namespace mc::mem {

std::string to_string(Location location) {
  return location.kind == Location::Kind::cpu ? "cpu" : "cuda:" + std::to_string(location.index);
}

Result<Location> parse_location(std::string_view text) {
  if (text == "cpu") return Location{};
  if (text == "cuda") return Location{Location::Kind::cuda, 0};
  constexpr std::string_view kPrefix = "cuda:";
  if (text.starts_with(kPrefix)) {
    const std::string_view digits = text.substr(kPrefix.size());
    int index = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (error == std::errc() && end == digits.data() + digits.size() && index >= 0 && index < 64)
      return Location{Location::Kind::cuda, index};
  }
  return Error{Code::invalid,
               "mem: no location named '" + std::string(text) + "'; use cpu, cuda or cuda:N with N in 0..63"};
}

}  // namespace mc::mem
