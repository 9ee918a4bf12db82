// A folder for one test, removed at its end; on the real disk if the test names no other place.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "test.h"

namespace store_test {

class Folder {
 public:
  explicit Folder(const std::string& place = mc::test::binary_dir()) {  // not /tmp, which may be memory
    std::string pattern = place + "/store-test-XXXXXX";
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
