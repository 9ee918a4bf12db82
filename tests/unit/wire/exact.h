// Bytes that every decoder of a frame must refuse.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "test.h"

namespace mc::test {

/// Every proper prefix, and one byte more, must be refused.
template <class Decode>
void check_exact(const std::vector<std::byte>& bytes, Decode decode) {
  for (size_t size = 0; size < bytes.size(); ++size) CHECK(!decode(std::span(bytes).first(size)).has_value());
  auto longer = bytes;
  longer.push_back({});
  CHECK(!decode(longer).has_value());
  CHECK(decode(bytes).has_value());
}

}  // namespace mc::test
