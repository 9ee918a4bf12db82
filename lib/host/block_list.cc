#include "host/block_list.h"

#include <algorithm>
#include <new>
#include <tuple>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/units.h"

namespace mc::host {
namespace {

constexpr size_t kLimitMost = 10'000;  // the rows of a list are in memory at once

/// Model and tenant of a block, as far as the node knows them.
void set_owner(Json& row, const NamespaceId& ns, const node::NamespaceBook& names) {
  row.set("namespace", ns.hex());
  const node::NamespaceBook::Entry* entry = names.find(ns);
  if (!entry) return;
  if (!entry->model.empty()) row.set("model", entry->model);
  if (entry->tenant) row.set("tenant", *entry->tenant);
}

/// Time since the last use.
void set_age(Json& row, TimePoint used, const ListedNode& node) {
  row.set("age_ms", static_cast<int64_t>(std::max(Duration{}, node.now - used) / 1ms));
}

Json memory_row(const node::Shelf& shelf, kv::PageIndex page, const ListedNode& node) {
  const kv::Pool& pool = shelf.pool;
  const kv::BlockMeta& meta = pool.meta(page);
  Json out = Json::object({{"id", meta.hash.hex()}, {"tier", "host"}});
  out.set("parent", meta.parent.is_zero() ? "" : meta.parent.hex());
  set_owner(out, meta.name_space, node.names);
  out.set("first_position", meta.first_position).set("tokens", shelf.layout.block_tokens);
  out.set("bytes", shelf.layout.page_bytes()).set("uses", pool.use(page).use_count);
  set_age(out, node.uses.time_of(shelf.number, pool.use(page).last_use).value_or(node.now), node);
  const uint32_t pinned = node.pins.leases(shelf, page);
  MC_ASSERT_LE(pinned, pool.leases(page));
  out.set("pins", pool.pins(page)).set("leases", pool.leases(page) - pinned);
  if (const auto until = node.pins.until(shelf, page)) out.set("pin_ms", to_ms(*until - node.now));
  return std::move(out.set("on_disk", node.disk.has(meta.hash)));
}

uint64_t key_of(BlockQuery::Sort sort, const kv::Use& use) {
  switch (sort) {
    case BlockQuery::Sort::uses: return UINT64_MAX - use.use_count;
    case BlockQuery::Sort::recent: return UINT64_MAX - use.last_use;
    case BlockQuery::Sort::position: return use.first_position;
  }
  return 0;
}

/// Keeps the first `limit` rows in any order. The vector is cut when it has twice as many, so that a row costs the same
/// however many there are.
template <class Row, class Less>
void cut(std::vector<Row>& rows, size_t limit, Less less, bool at_once = false) {
  if (rows.size() <= limit || (!at_once && rows.size() < 2 * limit)) return;
  const auto end = rows.begin() + static_cast<std::ptrdiff_t>(limit);
  std::nth_element(rows.begin(), end, rows.end(), less);
  rows.erase(end, rows.end());
}

template <class Row, class Less>
void sort_first(std::vector<Row>& rows, size_t limit, Less less) {
  cut(rows, limit, less, true);
  std::sort(rows.begin(), rows.end(), less);
}

constexpr auto comes_first = [](const auto& a, const auto& b) {
  return std::tie(a.key, a.shelf, a.page) < std::tie(b.key, b.shelf, b.page);
};
constexpr auto has_lower_name = [](const auto& a, const auto& b) { return a.hash < b.hash; };

}  // namespace

Result<BlockQuery> parse_block_query(std::string_view query) {
  BlockQuery out;
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view part = query.substr(0, end);
    query.remove_prefix(std::min(query.size(), end + 1));
    if (part == "sort=uses" || part == "sort=hits") {
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
                                      "\" is not sort=uses, sort=hits, sort=recent, sort=position or limit=N"};
    }
  }
  return out;
}

// ---- one list --------------------------------------------------------------------------------

bool BlockListing::step(const ListedNode& node) {
  switch (phase_) {
    case Phase::memory: look_at_memory(node); break;
    case Phase::disk: look_at_disk(node); break;
    case Phase::memory_rows: write_memory_rows(node); break;
    case Phase::disk_rows: write_disk_rows(node); break;
    case Phase::over: return true;
  }
  if (phase_ == Phase::over) write_totals(node);
  return phase_ == Phase::over;
}

void BlockListing::look_at_memory(const ListedNode& node) {
  for (size_t looks = 0; looks < kLooksAStep; ++looks) {
    while (shelf_ < node.shelves.size() && at_ >= node.shelves[shelf_]->pool.end_page()) ++shelf_, at_ = 0;
    if (shelf_ == node.shelves.size()) {
      sort_first(rows_, query_.limit, comes_first);
      MC_ASSERT_LE(rows_.size(), query_.limit);
      phase_ = Phase::disk, at_ = 0, buckets_ = node.disk.blocks().buckets();
      return;
    }
    const kv::Pool& pool = node.shelves[shelf_]->pool;
    const auto page = static_cast<kv::PageIndex>(at_++);
    if (pool.state(page) != kv::PageState::cached) continue;
    rows_.push_back({key_of(query_.sort, pool.use(page)), shelf_, page, pool.meta(page).hash});
    cut(rows_, query_.limit, comes_first);
  }
}

void BlockListing::look_at_disk(const ListedNode& node) {
  if (buckets_ != node.disk.blocks().buckets()) {  // the table has grown, and its blocks have moved
    disk_rows_.clear();
    on_disk_alone_ = 0, at_ = 0, buckets_ = node.disk.blocks().buckets();
  }
  const auto look = [&](const BlockHash& hash, const node::DiskBlocks::Entry& entry) {
    const bool is_here = std::any_of(node.shelves.begin(), node.shelves.end(),
                                     [&](const node::Shelf* shelf) { return shelf->pool.find(hash) != kv::kNoPage; });
    if (is_here) return;
    ++on_disk_alone_;
    disk_rows_.push_back({hash, entry.parent, entry.name_space, entry.first_position, entry.used});
    cut(disk_rows_, query_.limit, has_lower_name);
  };
  for (const size_t end = std::min(buckets_, at_ + kLooksAStep); at_ < end; ++at_)
    node.disk.blocks().look_at_bucket(at_, look);
  if (at_ < buckets_) return;
  sort_first(disk_rows_, query_.limit, has_lower_name);
  text_ = Json::object({{"node", node.name}}).dump();
  text_.back() = ',';
  text_ += "\"blocks\":[";
  phase_ = Phase::memory_rows, at_ = 0;
}

void BlockListing::write_row(const std::string& row) {
  if (text_.back() != '[') text_ += ',';
  text_ += row;
}

void BlockListing::write_memory_rows(const ListedNode& node) {
  for (const size_t end = std::min(rows_.size(), at_ + kRowsAStep); at_ < end; ++at_) {
    const Row& row = rows_[at_];
    const node::Shelf& shelf = *node.shelves[row.shelf];
    if (shelf.pool.find(row.hash) == row.page) write_row(memory_row(shelf, row.page, node).dump());
  }
  if (at_ == rows_.size()) phase_ = Phase::disk_rows, at_ = 0;
}

Json BlockListing::disk_row(const DiskRow& block, const ListedNode& node) {
  Json out = Json::object({{"id", block.hash.hex()}, {"tier", "disk"}});
  out.set("parent", block.parent.is_zero() ? "" : block.parent.hex());
  set_owner(out, block.name_space, node.names);
  set_age(out, block.used, node);
  return std::move(out.set("first_position", block.first_position).set("on_disk", true));
}

void BlockListing::write_disk_rows(const ListedNode& node) {
  for (const size_t end = std::min(disk_rows_.size(), at_ + kRowsAStep); at_ < end; ++at_)
    write_row(disk_row(disk_rows_[at_], node).dump());
  if (at_ == disk_rows_.size()) phase_ = Phase::over;
}

void BlockListing::write_totals(const ListedNode& node) {
  uint64_t in_memory = 0, bytes = 0;
  for (const node::Shelf* shelf : node.shelves) {
    in_memory += shelf->pool.counts().cached;
    bytes += shelf->pool.counts().cached * shelf->layout.page_bytes();
  }
  wire::Load load;
  node.disk.fill_load(load);
  Json totals = Json::object({{"memory_blocks", in_memory}, {"memory_bytes", bytes}});
  totals.set("disk_blocks", load.disk_blocks).set("disk_bytes", load.disk_bytes);
  totals.set("disk_capacity_bytes", load.disk_capacity_bytes);
  totals.set("disk_only_blocks", on_disk_alone_).set("disk_lost", load.disk_lost);
  totals.set("pinned_bytes", node.pins.bytes()).set("pinned_bytes_max", node.pins.bytes_max());
  text_ += "]," + totals.dump().substr(1);
}

// ---- the calls -------------------------------------------------------------------------------

void BlockLister::answer(const http::Request& request, const http::Responder& out) {
  const auto query = parse_block_query(request.query);
  if (!query) return out.respond(http::error_response(err::kBadRequest, query.error().what));
  bool is_full = false, begins = false;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(waiting_, [](const Call& call) { return !call.out.is_open(); });
    is_full = waiting_.size() >= kWaitingMax;
    if (!is_full) waiting_.push_back({*query, out}), begins = !std::exchange(is_busy_, true);
  }
  if (is_full) {
    http::Response refused =
        http::error_response(err::kQueueFull, std::to_string(kWaitingMax) + " lists of blocks wait already");
    refused.headers.push_back({"Retry-After", "1"});
    return out.respond(std::move(refused));
  }
  // Without a list under way nobody would answer the calls that wait.
  const FailsAlone uses_reserve(false);
  if (begins) loop_.post([this](TimePoint now, node::Actions&) { go_on(now); });
}

/// False: no call waits.
bool BlockLister::begin_next() {
  const std::lock_guard lock(mutex_);
  while (!waiting_.empty() && !waiting_.front().out.is_open()) waiting_.pop_front();
  if (waiting_.empty()) return is_busy_ = false;
  listing_.emplace(waiting_.front().query);
  out_ = std::move(waiting_.front().out);
  waiting_.pop_front();
  return true;
}

/// The answer to the list under way once it is complete. A list has megabytes: when memory runs out, only this one
/// fails.
std::optional<http::Response> BlockLister::step(TimePoint now) {
  try {
    const FailsAlone alone;
    if (!listing_->step({worker_.name(), worker_.shelves(), worker_.disk(), worker_.orders().pins(),
                         worker_.orders().names(), worker_.orders().uses(), now}))
      return std::nullopt;
    return http::Response{.status = 200, .headers = {{"Content-Type", "application/json"}}, .body = listing_->take()};
  } catch (const std::bad_alloc&) {
    listing_.reset();  // frees the room that the answer needs
    log_warn("list of blocks given up: not enough memory");
  }
  return http::error_response(err::kNotEnoughMemory, "there is not enough memory for the list; lower limit, or retry");
}

/// One step of one list. The loop handles the events of the node between two steps.
void BlockLister::go_on(TimePoint now) {
  if (out_ && !out_->is_open()) listing_.reset(), out_.reset();  // nobody waits for it
  if (!listing_ && !begin_next()) return;
  if (auto answer = step(now)) {
    listing_.reset();
    out_->respond(std::move(*answer));
    out_.reset();
  }
  loop_.post([this](TimePoint at, node::Actions&) { go_on(at); });
}

}  // namespace mc::host
