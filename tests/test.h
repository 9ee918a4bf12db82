// Included by every test: doctest, the seed of random tests, and the folders of source and build.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "check.h"

namespace mc::test {

/// Seed of this run's random tests; print it with INFO so that a failure names it.
uint64_t seed();
std::string source_dir();
std::string binary_dir();
/// Ends the test case: a Result of this expression holds an error with this text.
void fail_with_error(const char* file, int line, const char* expression, const char* what);

}  // namespace mc::test

/// REQUIREs that a Result holds a value and prints its error text if not.
#define REQUIRE_OK(result)                                                                                     \
  do {                                                                                                         \
    const auto& mc_r = (result);                                                                               \
    if (!mc_r.has_value()) mc::test::fail_with_error(__FILE__, __LINE__, #result, mc_r.error().what.c_str());  \
  } while (0)
