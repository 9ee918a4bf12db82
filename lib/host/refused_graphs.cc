#include "host/refused_graphs.h"

#include <utility>

#include "base/log.h"

namespace mc::host {

void RefusedGraphs::note(uint64_t refused) {
  const uint64_t before = std::exchange(logged_, refused);
  if (refused == before) return;
  log(before == 0 ? LogLevel::warn : LogLevel::debug,
      "the device has no memory for the graph of a decode step, whose kernels are queued one by one",
      {{"times", refused}});
}

}  // namespace mc::host
