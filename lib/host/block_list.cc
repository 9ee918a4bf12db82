#include "host/block_list.h"

#include <algorithm>
#include <vector>

#include "base/units.h"

namespace mc::host {
namespace {

constexpr size_t kLimitMost = 10'000;  // the control loop makes the list, and heartbeats wait meanwhile

struct Row {
  const node::Shelf* shelf = nullptr;
  kv::PageIndex page = kv::kNoPage;
};

Json memory_row(const Row& row, const node::DiskTier& disk) {
  const kv::Pool& pool = row.shelf->pool;
  const kv::BlockMeta& meta = pool.meta(row.page);
  Json out = Json::object({{"id", meta.hash.hex()}, {"tier", "host"}});
  out.set("parent", meta.parent.is_zero() ? "" : meta.parent.hex()).set("namespace", meta.name_space.hex());
  out.set("first_position", meta.first_position).set("tokens", row.shelf->layout.block_tokens);
  out.set("bytes", row.shelf->layout.page_bytes()).set("uses", pool.use(row.page).use_count);
  out.set("pins", pool.pins(row.page)).set("leases", pool.leases(row.page));
  return std::move(out.set("on_disk", disk.has(meta.hash)));
}

Json disk_row(const kv::ResidentBlock& block) {
  Json out = Json::object({{"id", block.hash.hex()}, {"tier", "disk"}});
  out.set("parent", block.parent.is_zero() ? "" : block.parent.hex());
  return std::move(out.set("first_position", block.first_position).set("on_disk", true));
}

/// Puts the first `limit` rows in order. The others may come in any.
void sort_rows(std::vector<Row>& rows, BlockQuery::Sort sort, size_t limit) {
  const auto key = [sort](const Row& row) -> uint64_t {
    const kv::Use& use = row.shelf->pool.use(row.page);
    switch (sort) {
      case BlockQuery::Sort::uses: return UINT64_MAX - use.use_count;
      case BlockQuery::Sort::recent: return UINT64_MAX - use.last_use;
      case BlockQuery::Sort::position: return use.first_position;
    }
    return 0;
  };
  const auto end = rows.begin() + static_cast<std::ptrdiff_t>(std::min(limit, rows.size()));
  std::partial_sort(rows.begin(), end, rows.end(), [&](const Row& a, const Row& b) {
    const uint64_t left = key(a), right = key(b);
    if (left != right) return left < right;
    return a.shelf->number != b.shelf->number ? a.shelf->number < b.shelf->number : a.page < b.page;
  });
}

}  // namespace

Result<BlockQuery> parse_block_query(std::string_view query) {
  BlockQuery out;
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view part = query.substr(0, end);
    query.remove_prefix(std::min(query.size(), end + 1));
    if (part == "sort=uses") {
      out.sort = BlockQuery::Sort::uses;
    } else if (part == "sort=recent") {
      out.sort = BlockQuery::Sort::recent;
    } else if (part == "sort=position") {
      out.sort = BlockQuery::Sort::position;
    } else if (part.starts_with("limit=")) {
      MC_TRY(limit, parse_count(part.substr(6)));
      out.limit = std::min<uint64_t>(limit, kLimitMost);
    } else {
      return Error{Code::invalid, "\"" + std::string(part.substr(0, 100)) +
                                      "\" is not sort=uses, sort=recent, sort=position or limit=N"};
    }
  }
  return out;
}

Json list_blocks(const node::Worker& worker, const BlockQuery& query) {
  std::vector<Row> rows;
  uint64_t in_memory = 0, bytes = 0;
  for (const node::Shelf* shelf : worker.shelves()) {
    for (const kv::ResidentBlock& block : shelf->pool.snapshot()) rows.push_back({shelf, shelf->pool.find(block.hash)});
    in_memory += shelf->pool.counts().cached;
    bytes += shelf->pool.counts().cached * shelf->layout.page_bytes();
  }
  sort_rows(rows, query.sort, query.limit);
  Json blocks = Json::array();
  for (size_t i = 0; i < std::min(rows.size(), query.limit); ++i) blocks.push(memory_row(rows[i], worker.disk()));
  uint64_t on_disk_alone = 0;
  for (const kv::ResidentBlock& block : worker.disk().snapshot()) {
    const bool here = std::any_of(worker.shelves().begin(), worker.shelves().end(), [&](const node::Shelf* shelf) {
      return shelf->pool.find(block.hash) != kv::kNoPage;
    });
    if (!here && ++on_disk_alone <= query.limit) blocks.push(disk_row(block));
  }
  const wire::Load load = worker.load();
  Json out = Json::object({{"node", worker.name()}, {"blocks", std::move(blocks)}});
  out.set("memory_blocks", in_memory).set("memory_bytes", bytes).set("disk_blocks", load.disk_blocks);
  out.set("disk_bytes", load.disk_bytes).set("disk_capacity_bytes", load.disk_capacity_bytes);
  return std::move(out.set("disk_only_blocks", on_disk_alone).set("disk_lost", load.disk_lost));
}

}  // namespace mc::host
