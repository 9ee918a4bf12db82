// Public face of lib/sched: pure scheduling functions over a snapshot of the cluster.
#pragma once

#include "sched/admission.h"
#include "sched/bars.h"
#include "sched/board.h"
#include "sched/breaker.h"
#include "sched/copies.h"
#include "sched/cost.h"
#include "sched/direct_plan.h"
#include "sched/fair.h"
#include "sched/fetch_plan.h"
#include "sched/inline_place.h"
#include "sched/line.h"
#include "sched/policy.h"
#include "sched/predict.h"
#include "sched/profile.h"
#include "sched/reason.h"
#include "sched/replicate.h"
