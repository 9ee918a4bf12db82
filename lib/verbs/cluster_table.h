// The state of a cluster as text, for `mc-conductor ps` and `mc-conductor top`.
#pragma once

#include <string>

#include "base/json.h"

namespace mc::verbs {

/// "mc-tiny on cpu at http://127.0.0.1:8000, 5 nodes, 2 requests unfinished" of the conductor's page /cluster.
std::string cluster_line(const Json& cluster);

/// One row a node, which 80 columns hold where names are short. MODEL and DEVICE are columns where nodes differ in
/// them, SSD where a node has a disk, and all three if `wide`. The last errors of nodes, and pairs that are set aside,
/// are lines below.
std::string cluster_table(const Json& cluster, bool wide);

}  // namespace mc::verbs
