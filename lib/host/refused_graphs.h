// Logs that a device has no memory for the graph of a decode step: the first time as a warning, later at debug.
#pragma once

#include <cstdint>

namespace mc::host {

class RefusedGraphs {
 public:
  /// `refused` graphs so far (model::Runner::refused_graphs()).
  void note(uint64_t refused);

 private:
  uint64_t logged_ = 0;
};

}  // namespace mc::host
