#include "base/assert.h"

#include <cstdio>
#include <cstdlib>

namespace mc {

void assert_failed(const char* file, int line, const char* expr, const std::string& values) {
  std::fprintf(stderr, "%s:%d: assertion failed: %s%s%s\n", file, line, expr, values.empty() ? "" : ": ",
               values.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace mc
