// One budget of file descriptors for a process: the soft limit is raised to the hard one at start, and the connections
// that strangers can open (HTTP, control and data) are bounded so that their sum stays below the limit. The process
// must never run out: libzmq would abort it, and accept(2) would spin.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace mc {

struct DescriptorPlan {
  uint64_t limit = 0;
  uint64_t http = 0;     // connections of clients
  uint64_t control = 0;  // connections that others make to the control plane
  uint64_t data = 0;     // connections that others make to the data plane; 0 without one
};

/// Raises the soft limit on open files to the hard one, for this process and the programs it starts.
/// Returns the limit that holds now.
Result<uint64_t> raise_descriptor_limit();
/// Divides `limit`. The process itself keeps what it has at rest, the `disk_files` that its block store may have open,
/// and a quarter of the remainder: connections that it makes, files, programs that it starts. MC5006 where too little
/// remains.
Result<DescriptorPlan> plan_descriptors(uint64_t limit, bool has_data_plane, uint64_t disk_files);

}  // namespace mc
