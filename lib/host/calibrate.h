// A cost model of this machine and model, measured in well under a second at start when --cost names no
// profile (mc-bench model --save-cost writes one). What the node reports later corrects it.
// A node measures the work of its own role: the conductor asks no decode node for the time of a prompt.
#pragma once

#include <string>

#include "base/parallel.h"
#include "base/result.h"
#include "model/model.h"
#include "model/runner.h"
#include "sched/cost.h"

namespace mc::host {

/// Times short prefills of two lengths and sets the prefill coefficients of `cost`. `budget` bounds the passes. A model
/// too slow for it is measured by fewer passes, and one far too slow by one short pass.
Result<void> measure_prefill(model::Runner& runner, Duration budget, sched::Cost& cost);

/// Times a few decode steps of one row and sets the decode coefficients of `cost`. Needs a whole model.
Result<void> measure_decode(model::Runner& runner, Duration budget, sched::Cost& cost);

}  // namespace mc::host
