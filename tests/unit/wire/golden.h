// Golden files of wire formats: text a person can read in a diff, one line a value, bytes as hex.
// MC_SET_GOLDEN=1 in the environment rewrites them; the diff is then the review.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <span>
#include <sstream>
#include <string>

#include "test.h"

namespace mc::test {

inline std::string hex(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const uint8_t byte : bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

inline std::string hex(std::span<const std::byte> bytes) {
  return hex(std::span(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
}

/// Compares `text` with tests/golden/wire/<name>.
inline void check_golden(const std::string& name, const std::string& text) {
  const std::string path = source_dir() + "/tests/golden/wire/" + name;
  if (std::getenv("MC_SET_GOLDEN")) std::ofstream(path) << text;
  std::ifstream file(path);
  std::stringstream golden;
  golden << file.rdbuf();
  INFO("golden file ", path);
  CHECK(text == golden.str());
}

}  // namespace mc::test
