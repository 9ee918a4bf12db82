// The reason of a rejection or failure, in the form that the client receives.
#pragma once

#include <string>

#include "node/reason.h"

namespace mc::node {

/// A bound that is predicted to be missed.
struct Miss {
  sched::Bound bound = sched::Bound::none;
  double predicted_s = 0, allowed_s = 0;
  double kv_tokens = 0, capacity_tokens = 0;
  std::string text() const;
};

struct Refusal {
  Reason reason = Reason::internal;
  std::string message;
  Miss miss = {};
  double retry_s = 0;      // delay until a retry makes sense; 0 = follows from the miss
  std::string param = {};  // the field of the request that is wrong; "" = none
};

}  // namespace mc::node
