// How far a simulation is, told on stderr: a search is hundreds of runs, and one of them may be minutes. On a terminal
// one line that is written again; elsewhere nothing, or with --progress always a line every ten seconds.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/cli.h"
#include "base/clock.h"

namespace mc::bench {

class SimProgress {
 public:
  /// Reads --progress and --quiet.
  SimProgress(const cli::Args& args, size_t requests);
  ~SimProgress();
  SimProgress(const SimProgress&) = delete;
  SimProgress& operator=(const SimProgress&) = delete;

  /// Names the simulation that begins now.
  void next(std::string what);
  /// For sim::ClusterOptions::progress; null when nothing is shown. Valid as long as this.
  std::function<void(uint64_t over)> watcher();

 private:
  void tell(uint64_t over);

  size_t requests_;
  bool shown_ = false, terminal_ = false, drawn_ = false;
  uint64_t runs_ = 0;
  std::string what_;
  TimePoint begin_{}, due_{};
};

}  // namespace mc::bench
