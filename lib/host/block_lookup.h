// POST /blocks/lookup: where a node has blocks, read from the table that its loop publishes (kv/block_table.h). The
// thread that received the request answers it, so the answer does not wait for the loop.
//
//   {"hashes": ["7f3a...", ...]}      1 to 1,000 block ids
//
//   {"blocks": 3, "held": 2, "leading": 1, "tiers": ["memory", "none", "memory+disk"]}
//
// `leading` counts the blocks before the first one that the node lacks.
#pragma once

#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "http/server.h"
#include "kv/block_table.h"

namespace mc::host {

Result<std::vector<BlockHash>> parse_lookup(std::string_view body);
/// 400 for a body that is no lookup.
http::Response answer_lookup(const http::Request& request, const kv::BlockTable& table);

}  // namespace mc::host
