// A cost model of this machine and model, measured in well under a second at start when --cost names no
// profile (mc-bench model --save-cost writes one). What the node reports later corrects it.
#pragma once

#include <string>

#include "base/parallel.h"
#include "base/result.h"
#include "model/model.h"
#include "model/runner.h"
#include "sched/cost.h"

namespace mc::host {

/// Times two short prefills and a few decode steps. `budget` bounds the whole; a model too slow for it
/// is measured on fewer points.
Result<sched::Cost> measure_cost(model::Runner& runner, Duration budget);
}  // namespace mc::host
