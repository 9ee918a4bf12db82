// The durable tier of the cache: a store of blocks by id on a disk, in the shape of a circular log (Rosenblum and
// Ousterhout, SOSP 1991). It promises:
//   - a put or drop that returned at Level::durable survives the death of the process and a power cut, until the
//   block's
//     space is reused (oldest first; a block that was read since it was written gets one more round);
//   - a get returns the very bytes that were put under the id, or an error. It never returns other bytes;
//   - after a crash the store holds what some prefix of the writes would leave.
// A block costs one write and one flush, shared with all callers that put at the same time; lib/wire/store_format.h
// draws the files. Any thread may call anything. Nothing here reads a clock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "store/disk.h"

namespace mc::store {

struct Options {
  uint64_t capacity_bytes = 0;    // of all segments; at least four segments are made
  uint64_t segment_bytes = 0;     // of a new store; 0 = 1/256 of the capacity, within 16 MiB and 1 GiB
  Id128 id;                       // of a new store; zero = draw one
  bool report_evictions = false;  // the owner calls take_evicted()
  /// Blocks leave by drop() alone. A put beyond room_bytes() is refused with no_space, and space is made by moving what
  /// is still there (the cleaner of a log-structured file system), which needs about a third of the capacity.
  bool keeps_all = false;
  /// As the disk was opened. read_only: get(), peek(), find() and for_each() alone.
  Access access = Access::read_write;
};

enum class Level : uint8_t {
  written,  // survives the death of the process; a power cut may lose it until the next flush
  durable,  // survives a power cut
};

struct Put {
  Id128 id;
  std::span<const std::byte> bytes;  // 1 to value_bytes_max(); page-aligned memory is written without a copy
  std::optional<uint32_t> crc = {};  // crc32c of the bytes where the caller has it
};

struct Get {
  Id128 id;
  std::span<std::byte> room;  // page-aligned memory of whole pages is read into without a copy, and padded with zeros
  uint32_t bytes = 0;         // set: of the block, also when the room is too small
  /// Set: not_found; no_space: the room is too small; corrupt: the bytes fail their checksum, and the block is
  /// forgotten; io: the disk refused.
  Code code = Code::not_found;
};

struct Stats {
  uint64_t blocks = 0, live_bytes = 0;
  uint64_t segments = 0, segments_free = 0, segment_bytes = 0;
  uint64_t groups = 0, flushes = 0;
  uint64_t evicted_blocks = 0, moved_blocks = 0, corrupt_blocks = 0;
  uint64_t faults = 0;     // writes and flushes that failed, and were survived or told to the caller
  std::string last_fault;  // the text of the last one
};

/// The state that open() found.
struct Restart {
  uint64_t epoch = 0;  // 1 = a new store
  uint64_t blocks = 0;
  uint64_t segments_sealed = 0, segments_walked = 0;
  std::vector<std::string> damaged;  // one line a loss; empty after a power cut on a disk that keeps its word
};

class Store {
 public:
  /// MC6007 store-busy, MC6008 store-version, MC6009 store-corrupt; no_space when four segments do not fit.
  static Result<std::unique_ptr<Store>> open(std::unique_ptr<Disk> disk, const Options& options);
  /// Flushes. No other call may be running.
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// Replaces what the ids had. All or, after an error, any of the blocks are there; the memory belongs to the caller
  /// again. invalid: a size out of bounds, and nothing was done.
  Result<void> put(std::span<const Put> puts, Level level);
  /// Unknown ids are no error.
  Result<void> drop(std::span<const Id128> ids, Level level);
  /// Puts a block and drops others in one group, durably: a power cut during the call leaves all of it or nothing.
  /// After an error nothing was done, and a power cut before the next durable call may still leave all of it. At most
  /// wire::kStoreGroupEntriesMax - 1 ids.
  Result<void> exchange(const Put& put, std::span<const Id128> drops);
  /// All at once; every Get has its own code. Blocks that are read are kept longer.
  void get(std::span<Get> gets);
  /// The first bytes of each block, as many as its room holds in whole pages. Nothing checks them: blocks whose front
  /// has a checksum of its own are listed so without reading all of them. They are not kept longer.
  void peek(std::span<Get> gets);
  /// Size of the block; nothing when it is not there.
  std::optional<uint32_t> find(const Id128& id) const;
  /// Visits all blocks in no order. The visitor may not call the store.
  void for_each(const std::function<void(const Id128&, uint32_t bytes)>& visit) const;
  /// Ids whose blocks were given up for space, or because their bytes were wrong, since the last call. In no order.
  std::vector<Id128> take_evicted();
  /// Makes everything durable that was written before.
  Result<void> flush();
  /// Makes space before it is needed; a thread of the owner calls it now and then. True: call again soon.
  Result<bool> maintain();
  /// Makes one more segment of the capacity now, wanted or not. False: all are there.
  Result<bool> prepare();

  uint32_t value_bytes_max() const;
  /// Bytes of blocks, each in whole pages, that a store with keeps_all takes altogether.
  uint64_t room_bytes() const;
  /// Bytes of the blocks that are there, each in whole pages and with a page for its place in a group.
  uint64_t used_bytes() const;
  Stats stats() const;
  const Restart& restart() const { return restart_; }

 private:
  struct Parts;
  Store(std::unique_ptr<Parts> parts, Restart restart);
  Result<void> commit(std::vector<struct Item> items, bool durable, bool is_apart = false);
  Result<void> grow();
  bool grow_again();
  class Pending;
  Result<void> check_sizes(std::span<const Put> puts) const;
  Result<void> check_room();
  void read(std::span<Get> gets, bool whole);

  std::unique_ptr<Parts> parts_;
  Restart restart_;
};

}  // namespace mc::store
