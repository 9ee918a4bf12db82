// Included by every test: doctest, the seed of random tests, and the folders of source and build.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "base/result.h"

namespace mc::test {

/// Seed of this run's random tests; print it with INFO so that a failure names it.
uint64_t seed();
std::string source_dir();
std::string binary_dir();

}  // namespace mc::test

/// REQUIREs that a Result holds a value and prints its error text if not.
#define REQUIRE_OK(result)                                                                  \
  do {                                                                                      \
    const auto& mc_r = (result);                                                            \
    if (!mc_r.has_value()) FAIL_CHECK(#result << ": " << mc_r.error().what);                \
    REQUIRE(mc_r.has_value());                                                              \
  } while (0)
