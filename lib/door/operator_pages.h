// The JSON that operators ask the conductor for: the cluster (`mc-conductor ps | wait`) and the decision that a request
// would get now (`mc-conductor explain`).
#pragma once

#include <string>

#include "base/json.h"
#include "node/conductor.h"

namespace mc::door {

Json cluster_json(const node::Conductor& conductor, const std::string& model, const std::string& url, TimePoint now);
Json explanation_json(const node::Conductor::Explanation& e, const node::Submit& submit);

}  // namespace mc::door
