// Numbers for the reads, runs and leases of one process. No number is used twice.
#pragma once

#include <cstdint>

namespace mc::node {

class Numbers {
 public:
  uint64_t next() { return ++last_; }

 private:
  uint64_t last_ = 0;
};

}  // namespace mc::node
