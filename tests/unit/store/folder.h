// A folder on the real disk for one test, removed at its end.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "test.h"

namespace store_test {

class Folder {
 public:
  Folder() {
    std::string pattern = mc::test::binary_dir() + "/store-test-XXXXXX";  // not /tmp, which may be memory
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~Folder() {
    std::error_code error;
    std::filesystem::remove_all(path, error);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path;
};

}  // namespace store_test
