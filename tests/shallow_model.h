// The model of tests that compute in the emulator: the first three layers of mc-tiny. The emulator runs every
// instruction of every thread, so the time of such a test grows with the layers.
#pragma once

#include <string>

#include "test.h"

namespace mc::test {

inline std::string shallow_model() { return source_dir() + "/tests/models/mc-shallow"; }

}  // namespace mc::test
