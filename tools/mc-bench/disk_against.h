// The references of `mc-bench disk --against`, in the same folder of the same disk, right beside ours.
//   fio      write + fdatasync of whole blocks with O_DIRECT into a file that was laid out before; random reads through
//   an
//            io_uring at the same depth
//   rocksdb  db_bench: fillrandom with sync and blob files; readrandom
#pragma once

#include <string>

#include "disk_runs.h"

namespace mc::bench {

enum class DiskReference : uint8_t { none, fio, rocksdb };

/// Blocks per second that the program writes, or reads at random. MC8005: it is not installed; MC8008: it failed. Its
/// files stay in `folder`, since a second run needs them.
Result<double> run_disk_reference(DiskReference reference, bool writes, const DiskPlan& plan,
                                  const std::string& folder);

/// Reads their output.
Result<double> parse_fio(const std::string& text, bool write);
Result<double> parse_db_bench(const std::string& text);

}  // namespace mc::bench
