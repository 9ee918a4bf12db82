// Texts for people of what the conductor reports of requests: explain, why REQUEST, and the list of why. Tables fit 80
// columns where names are short.
#pragma once

#include <string>

#include "base/json.h"

namespace mc::verbs {

/// Where a request would go (the conductor's /admin/explain): one row a prefill node, then the decode node.
std::string explanation_text(const Json& explanation);

/// The record of one request (/requests/ID): its stages, failed attempts, and the nodes that were considered.
std::string record_text(const Json& record);

/// One row a request (/requests). A finished request shows why it ended, others show their outcome.
/// No line is wider than `columns`, as far as shorter ids can achieve that.
std::string requests_table(const Json& requests, size_t columns = SIZE_MAX);

}  // namespace mc::verbs
