// Names of memory locations, as layouts print them.
#include "mem/mem.h"

namespace mc::mem {

std::string to_string(Location location) {
  return location.kind == Location::Kind::cpu ? "cpu" : "cuda:" + std::to_string(location.index);
}

}  // namespace mc::mem
