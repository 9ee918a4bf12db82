// The list of a node's blocks for its operators: GET /blocks and mc-cache ls.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "http/server.h"
#include "node/services.h"
#include "node/worker.h"

namespace mc::host {

struct BlockQuery {
  enum class Sort : uint8_t { uses, recent, position };
  Sort sort = Sort::uses;
  size_t limit = 1000;
};
/// "sort=uses&limit=20"; both may be absent. Code::invalid names the part that is wrong.
Result<BlockQuery> parse_block_query(std::string_view query);

/// The blocks of a node. The references are used during one step alone.
struct ListedNode {
  const std::string& name;
  std::span<node::Shelf* const> shelves;
  const node::DiskTier& disk;
  const node::OperatorPins& pins;
  const node::NamespaceBook& names;
  const node::UseClock& uses;
  TimePoint now{};
};

/// One list: the blocks in memory in the order asked for, then those that are on disk alone by their names, at most
/// `limit` of each; and the totals. A list is made in steps, because the control loop makes it and heartbeats wait
/// during a step. A block that comes or leaves meanwhile may be listed or not.
class BlockListing {
 public:
  static constexpr size_t kLooksAStep = 1024;  // pages, or buckets of blocks on disk
  static constexpr size_t kRowsAStep = 256;    // written as text

  explicit BlockListing(const BlockQuery& query) : query_(query) {}
  /// Goes on by one step. True: the list is complete.
  bool step(const ListedNode& node);
  /// The list as JSON text, once.
  std::string take() { return std::move(text_); }

 private:
  struct Row {  // a block in memory
    uint64_t key = 0;
    uint32_t shelf = 0;
    kv::PageIndex page = kv::kNoPage;
    BlockHash hash;
  };
  struct DiskRow {
    BlockHash hash, parent;
    NamespaceId name_space;
    uint32_t first_position = 0;
    TimePoint used{};
  };
  enum class Phase : uint8_t { memory, disk, memory_rows, disk_rows, over };
  void look_at_memory(const ListedNode& node);
  void look_at_disk(const ListedNode& node);
  void write_memory_rows(const ListedNode& node);
  void write_disk_rows(const ListedNode& node);
  static Json disk_row(const DiskRow& block, const ListedNode& node);
  void write_totals(const ListedNode& node);
  void write_row(const std::string& row);

  BlockQuery query_;
  Phase phase_ = Phase::memory;
  uint32_t shelf_ = 0;
  size_t at_ = 0;       // the next page, bucket or row
  size_t buckets_ = 0;  // of the blocks on disk, when the walk over them began
  std::vector<Row> rows_;
  std::vector<DiskRow> disk_rows_;
  uint64_t on_disk_alone_ = 0;
  std::string text_;
};

/// Answers GET /blocks. One list is made at a time, and a few wait. A list whose client has left is given up.
class BlockLister {
 public:
  static constexpr size_t kWaitingMax = 8;

  /// Both outlive this; the loop has ended before this goes.
  BlockLister(const node::Worker& worker, node::MachineLoop& loop) : worker_(worker), loop_(loop) {}
  /// Answers 400 for a wrong query, and 429 when kWaitingMax lists wait. Any thread.
  void answer(const http::Request& request, const http::Responder& out);

 private:
  struct Call {
    BlockQuery query;
    http::Responder out;
  };
  void go_on(TimePoint now);
  std::optional<http::Response> step(TimePoint now);
  bool begin_next();

  const node::Worker& worker_;
  node::MachineLoop& loop_;
  std::mutex mutex_;
  std::deque<Call> waiting_;  // guarded by mutex_
  bool is_busy_ = false;      // guarded by mutex_: a task of the loop makes lists
  // the loop's thread
  std::optional<BlockListing> listing_;
  std::optional<http::Responder> out_;
};

}  // namespace mc::host
