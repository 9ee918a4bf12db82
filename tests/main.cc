// The one doctest main. `--seed=N` reproduces a random test; without it the seed is fixed in the
// quick tier (0) so that a red run can be repeated. MC_TEST_SEED does the same from the environment.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>

#include "test.h"

namespace mc::test {
namespace {
uint64_t g_seed = 0;
}
uint64_t seed() { return g_seed; }
// Compiled here alone, so that ccache shares the objects of all other tests between source trees.
std::string source_dir() { return MC_SOURCE_DIR; }
std::string binary_dir() { return MC_BINARY_DIR; }
void fail_with_error(const char* file, int line, const char* expression, const char* what) {
  const std::string text = std::string(expression) + ": " + what;  // a char pointer would be printed as an address
  DOCTEST_ADD_FAIL_AT(file, line, doctest::String(text.c_str()));
}
}  // namespace mc::test

namespace mc::assertion {
namespace {
thread_local std::string g_values;
}

bool shown(bool passed) { return !passed || doctest::getContextOptions()->success; }

void keep(const doctest::String& values) { g_values = values.c_str(); }

bool report(doctest::assertType::Enum kind, const char* file, int line, const char* expression, Outcome outcome) {
  const doctest::String values = shown(outcome.passed) ? doctest::String(g_values.c_str()) : doctest::String();
  return doctest::detail::decomp_assert(kind, file, line, expression, {outcome.passed, values});
}

doctest::String text_of(const char* value) { return value ? value : "nullptr"; }
doctest::String text_of(const std::string& value) { return {value.data(), static_cast<unsigned>(value.size())}; }
doctest::String text_of(const std::string_view& value) { return {value.data(), static_cast<unsigned>(value.size())}; }
}  // namespace mc::assertion

int main(int argc, char** argv) {
  if (const char* env = std::getenv("MC_TEST_SEED")) mc::test::g_seed = std::strtoull(env, nullptr, 10);
  for (int i = 1; i < argc; ++i)
    if (std::strncmp(argv[i], "--seed=", 7) == 0) mc::test::g_seed = std::strtoull(argv[i] + 7, nullptr, 10);
  doctest::Context context(argc, argv);
  return context.run();
}
