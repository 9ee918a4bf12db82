// FUZZ_TARGET(name) { ... } is a fuzz target: a function of `data` and `size` that returns 0. The plain driver calls it
// by its name; libFuzzer takes it for the one target of a program.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef MC_LIBFUZZER
#define FUZZ_TARGET(name) extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
#else
#define FUZZ_TARGET(name)                                              \
  static int name##_target(const uint8_t* data, size_t size);          \
  static const mc::FuzzTarget g_##name(#name, name##_target);          \
  static int name##_target(const uint8_t* data, size_t size)

namespace mc {

/// Makes a target known to the driver.
struct FuzzTarget {
  using Run = int (*)(const uint8_t* data, size_t size);
  FuzzTarget(const char* name, Run run);
};

}  // namespace mc
#endif
