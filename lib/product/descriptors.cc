#include "product/descriptors.h"

#include <sys/resource.h>

#include <algorithm>

#include "base/errors.h"
#include "base/fd.h"

namespace mc {
namespace {

constexpr uint64_t kAtRest = 48;   // measured: 25 (conductor) and 46 (worker) with three peers
constexpr uint64_t kShareMin = 8;  // connections that are left to each kind of peer, or the process does not start
constexpr uint64_t kUsual = 4096;  // the least limit that is advised
constexpr uint64_t kHttpMax = 10'000;
constexpr uint64_t kControlMax = 4'096;
constexpr uint64_t kDataMax = 16'384;

}  // namespace

Result<uint64_t> raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return errno_error("getrlimit RLIMIT_NOFILE");
  if (limit.rlim_cur < limit.rlim_max) {
    rlimit raised = limit;
    raised.rlim_cur = limit.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return static_cast<uint64_t>(limit.rlim_cur);
}

Result<DescriptorPlan> plan_descriptors(uint64_t limit, bool has_data_plane, uint64_t disk_files) {
  const uint64_t kinds = has_data_plane ? 3 : 2;
  const uint64_t needed = kAtRest + disk_files + (kinds + 1) * kShareMin;
  if (limit < needed) {
    std::string what =
        "at most " + std::to_string(limit) + " files may be open, at least " + std::to_string(needed) + " are needed";
    std::string next = "raise the hard limit on open files: ulimit -n " + std::to_string(std::max(needed * 2, kUsual));
    if (disk_files > 0) {
      what += ", " + std::to_string(disk_files) + " of them by the block store of --ssd";
      next += ", or give --ssd a smaller SIZE";
    }
    return user_error(err::kSystemLimit, std::move(what), "ulimit -Hn", std::move(next));
  }
  const uint64_t free = limit - kAtRest - disk_files;
  DescriptorPlan plan{.limit = limit};
  plan.control = std::clamp(free / 8, kShareMin, kControlMax);
  if (has_data_plane) plan.data = std::clamp(free / 4, kShareMin, kDataMax);
  const uint64_t own = std::max(free / 4, kShareMin);
  plan.http = std::min(free - own - plan.control - plan.data, kHttpMax);
  return plan;
}

}  // namespace mc
