// How often a random or repeated test runs: few times in the tier that CI runs, as often as was promised in
// scripts/test --full, which sets MC_TEST_FULL=1.
#pragma once

#include <cstdlib>
#include <cstring>

namespace mc::test {

inline bool is_full() {
  const char* text = std::getenv("MC_TEST_FULL");
  return text != nullptr && std::strcmp(text, "1") == 0;
}
template <class Count>
Count count(Count quick, Count full) {
  return is_full() ? full : quick;
}

}  // namespace mc::test
