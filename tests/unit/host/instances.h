// Instance ids of nodes with a data plane.
#pragma once

#include <unistd.h>

#include "base/hash.h"

namespace mc::test {

/// The id is the name of the node's shm socket, which two runs on one host must not share.
inline InstanceId instance_of_run(uint8_t id) {
  InstanceId out{};
  out.bytes.fill(id);
  out.bytes[14] = static_cast<uint8_t>(::getpid() >> 8), out.bytes[15] = static_cast<uint8_t>(::getpid());
  return out;
}

}  // namespace mc::test
