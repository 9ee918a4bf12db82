// The list of a node's blocks for its operators: GET /blocks and mc-cache ls.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "node/worker.h"

namespace mc::host {

struct BlockQuery {
  enum class Sort : uint8_t { uses, recent, position };
  Sort sort = Sort::uses;
  size_t limit = 1000;
};
/// "sort=uses&limit=20"; both may be absent. Code::invalid names the part that is wrong.
Result<BlockQuery> parse_block_query(std::string_view query);

/// The blocks in memory, then those that are on disk alone, each part in the order asked for, at most `limit` of each;
/// and the totals. The thread that owns `worker`.
Json list_blocks(const node::Worker& worker, const BlockQuery& query);

}  // namespace mc::host
