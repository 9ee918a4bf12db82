// A cost model of this machine and model: measured in well under a second at start, or read from the
// file that `mc-bench model --save-cost` wrote. What the node reports later corrects it.
#pragma once

#include <string>

#include "base/parallel.h"
#include "base/result.h"
#include "model/model.h"
#include "model/runner.h"
#include "sched/cost.h"

namespace mc::run {

/// Times two short prefills and a few decode steps. `budget` bounds the whole; a model too slow for it
/// is measured on fewer points.
Result<sched::Cost> measure_cost(model::Runner& runner, Duration budget);
/// TOML with the field names of sched::Cost.
std::string format_cost(const sched::Cost& cost);
/// MC1003 naming file and line or key.
Result<sched::Cost> load_cost(const std::string& path);

}  // namespace mc::run
