#include "store/store.h"

#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "base/assert.h"
#include "base/copy_crc.h"
#include "base/errors.h"
#include "base/fd.h"
#include "base/hash.h"
#include "store/commit_queue.h"
#include "store/recovery.h"
#include "store/superblock.h"
#include "store/writer.h"

namespace mc::store {
namespace {

constexpr uint64_t kSegmentBytesLeast = uint64_t{16} << 20;  // of the default
constexpr uint32_t kGroupPagesMax = 1024;                    // 4 MiB of values: larger writes are no faster

uint64_t store_word(const Id128& id) {
  uint64_t word;
  std::memcpy(&word, id.bytes.data(), sizeof word);
  return word;
}

Result<wire::StoreSuper> new_super(const Options& options) {
  wire::StoreSuper super;
  const uint64_t share = whole_pages(options.capacity_bytes / 256);
  super.segment_bytes = options.segment_bytes != 0 ? options.segment_bytes
                                                   : std::clamp(share, kSegmentBytesLeast, wire::kStoreSegmentBytesMax);
  const uint64_t bytes = super.segment_bytes;
  if (bytes % kPageBytes != 0 || bytes < wire::kStoreSegmentBytesMin || bytes > wire::kStoreSegmentBytesMax)
    return Error{Code::invalid, "store: segments of " + std::to_string(bytes) + " bytes: 64 KiB to 1 GiB in pages"};
  super.store = options.id;
  if (!super.store.is_zero()) return super;
  if (::getrandom(super.store.bytes.data(), super.store.bytes.size(), 0) !=
      static_cast<ssize_t>(super.store.bytes.size()))
    return errno_error("getrandom");
  super.store.bytes[15] |= 1;  // zero means none
  return super;
}

}  // namespace

struct Store::Parts {
  Parts(std::unique_ptr<Disk> opened, const wire::StoreSuper& super, size_t segments_most, const Options& options)
      : disk(std::move(opened)),
        access(options.access),
        keeps_all(options.keeps_all),
        segment_bytes(super.segment_bytes),
        pages(static_cast<uint32_t>(super.segment_bytes / kPageBytes)),
        reader{*disk, store_word(super.store), super.epoch, pages},
        log(*disk, store_word(super.store), super.epoch, pages),
        segments(*disk, super.segment_bytes, access),
        writer(log, segments, index, reader, *disk, {.segments_max = segments_most, .keeps_all = options.keeps_all}) {}

  /// Header, one page of table and tail leave so many pages of a segment to values. With keeps_all a group has at most
  /// an eighth of a segment, so that the end of a segment that no group fits into is small.
  uint32_t group_pages_max() const { return keeps_all ? std::max(pages / 8, 2u) : pages - 3; }
  /// The commits of one round: as few groups as they fit in, and one flush.
  void write_round(std::span<Commit* const> round);

  std::unique_ptr<Disk> disk;
  const Access access;
  const bool keeps_all;
  const uint64_t segment_bytes;
  const uint32_t pages;  // of a segment
  SegmentReader reader;
  Index index;
  Log log;
  Segments segments;
  Writer writer;
  mutable std::mutex writing;  // of log, segments and writer
  CommitQueue queue;
  std::atomic<uint64_t> pending_bytes{0};   // of puts that are being written
  std::atomic<uint64_t> corrupt_blocks{0};  // a count, ordered with nothing
  std::atomic<uint64_t> lost_groups{0};     // the writer's, readable without waiting for a write
};

/// Bytes that a call is about to write.
class Store::Pending {
 public:
  Pending(std::atomic<uint64_t>& all, uint64_t bytes) : all_(all), bytes_(bytes) { all_ += bytes_; }
  ~Pending() { all_ -= bytes_; }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

 private:
  std::atomic<uint64_t>& all_;
  const uint64_t bytes_;
};

void Store::Parts::write_round(std::span<Commit* const> round) {
  const std::lock_guard lock(writing);
  const uint64_t lost_before = writer.counters().lost_groups;
  const uint32_t pages_max = std::min(kGroupPagesMax, group_pages_max());
  bool durable = false;
  for (const Commit* commit : round) durable = durable || commit->durable;
  std::vector<Item*> group;
  for (size_t begin = 0; begin < round.size();) {
    size_t end = begin;
    uint32_t group_pages = 0;
    bool is_apart = false;
    group.clear();
    for (; end < round.size() && !is_apart; ++end) {
      const Commit& next = *round[end];
      const bool full =
          group.size() + next.items.size() > wire::kStoreGroupEntriesMax || group_pages + next.pages > pages_max;
      if (full && end > begin) break;
      group_pages += next.pages;
      is_apart = next.is_apart;
      for (Item& item : round[end]->items) group.push_back(&item);
    }
    // One flush at the end is for all groups of the round.
    const Result<void> done = writer.write(group, is_apart || (durable && end == round.size()));
    for (; begin < end; ++begin) round[begin]->result = done;
  }
  lost_groups = writer.counters().lost_groups;
  const Result<void> last = round.back()->result;
  if (last && lost_groups == lost_before) return;
  const Error error = last ? Error{Code::io, "store: groups were lost: " + writer.last_fault()} : last.error();
  for (Commit* commit : round)
    if (commit->durable && !commit->is_apart && commit->result) commit->result = error;
}

Store::Store(std::unique_ptr<Parts> parts, Restart restart) : parts_(std::move(parts)), restart_(std::move(restart)) {}

Store::~Store() {
  if (parts_->access == Access::read_only) return;
  const std::lock_guard lock(parts_->writing);
  (void)parts_->writer.finish();  // what is not durable yet was never promised
}

Result<std::unique_ptr<Store>> Store::open(std::unique_ptr<Disk> disk, const Options& options) {
  MC_TRY(fresh, new_super(options));
  MC_TRY(super, open_superblocks(*disk, fresh, options.access));
  const uint64_t least = options.keeps_all ? Writer::kSegmentsKept : Writer::kSegmentsMin;
  const size_t segments_max = std::max(options.capacity_bytes / super.segment_bytes, least);
  auto parts = std::make_unique<Parts>(std::move(disk), super, segments_max, options);
  MC_TRY(recovered, recover(parts->reader, parts->segments, parts->index));
  Restart restart{.epoch = super.epoch,
                  .blocks = parts->index.count(),
                  .segments_sealed = recovered.sealed,
                  .segments_walked = recovered.walked,
                  .damaged = std::move(recovered.damaged)};
  if (options.report_evictions) parts->index.keep_forgotten();
  parts->log.start_after(recovered.number);
  if (options.access == Access::read_write)
    MC_CHECK(parts->writer.start(std::move(recovered.active), recovered.sequence));
  return std::unique_ptr<Store>(new Store(std::move(parts), std::move(restart)));
}

uint32_t Store::value_bytes_max() const {
  return static_cast<uint32_t>(parts_->group_pages_max() * kPageBytes);
}

uint64_t Store::room_bytes() const {
  const uint64_t segments = parts_->writer.segments_max();
  if (!parts_->keeps_all) return segments * parts_->segment_bytes;
  return (std::max(segments, Writer::kSegmentsApart) - Writer::kSegmentsApart) * parts_->segment_bytes / 4 * 3;
}

uint64_t Store::used_bytes() const {
  return parts_->index.live_bytes() + parts_->index.count() * 2 * kPageBytes;
}

Result<void> Store::check_sizes(std::span<const Put> puts) const {
  for (const Put& put : puts)
    if (put.bytes.empty() || put.bytes.size() > value_bytes_max())
      return Error{Code::invalid, "store: a block of " + std::to_string(put.bytes.size()) + " bytes; 1 to " +
                                      std::to_string(value_bytes_max()) + " fit"};
  return {};
}

/// Whether the puts under way have room. They count from before this check until they are in the index.
Result<void> Store::check_room() {
  if (!parts_->keeps_all) return {};
  uint64_t writing = 0, used = 0, room = 0;
  const auto fits = [&] {
    writing = parts_->pending_bytes, used = used_bytes(), room = room_bytes();
    return used + writing <= room;
  };
  if (fits() || (grow_again() && fits())) return {};
  return Error{Code::no_space, "store: the blocks do not fit: " + std::to_string(used) + " of " + std::to_string(room) +
                                   " bytes are in use, and " + std::to_string(writing) + " are being written"};
}

Result<void> Store::put(std::span<const Put> puts, Level level) {
  MC_CHECK(check_sizes(puts));
  uint64_t need = 0;
  for (const Put& put : puts) need += put.bytes.size() + 2 * kPageBytes;
  const Pending pending(parts_->pending_bytes, need);
  MC_CHECK(check_room());
  std::vector<Item> items;
  const uint32_t pages_max = std::min(kGroupPagesMax, parts_->group_pages_max());
  uint32_t pages = 0;
  const uint64_t lost_before = parts_->lost_groups;
  for (const Put& put : puts) {
    const auto bytes = static_cast<uint32_t>(put.bytes.size());
    if (!items.empty() &&
        (items.size() == wire::kStoreGroupEntriesMax || pages + wire::store_pages(bytes) > pages_max)) {
      MC_CHECK(commit(std::exchange(items, {}), false));  // the last commit's flush is for all
      pages = 0;
    }
    pages += wire::store_pages(bytes);
    const uint32_t crc = put.crc ? *put.crc : crc32c(put.bytes);
    items.push_back({.entry = {.id = put.id, .bytes = bytes, .crc = crc}, .value = put.bytes.data()});
  }
  if (items.empty()) return {};
  MC_CHECK(commit(std::move(items), level == Level::durable));
  if (level == Level::durable && parts_->lost_groups != lost_before)
    return Error{Code::io, "store: a part of the blocks was lost to a fault of the disk"};
  return {};
}

Result<void> Store::drop(std::span<const Id128> ids, Level level) {
  const uint64_t lost_before = parts_->lost_groups;
  for (size_t at = 0; at < ids.size(); at += wire::kStoreGroupEntriesMax) {
    std::vector<Item> items;
    const size_t end = std::min(ids.size(), at + wire::kStoreGroupEntriesMax);
    for (size_t i = at; i < end; ++i) items.push_back({.entry = {.id = ids[i], .kind = wire::StoreKind::drop}});
    MC_CHECK(commit(std::move(items), level == Level::durable && end == ids.size()));
  }
  if (level == Level::durable && parts_->lost_groups != lost_before)
    return Error{Code::io, "store: a part of the drops was lost to a fault of the disk"};
  return {};
}

Result<void> Store::exchange(const Put& put, std::span<const Id128> drops) {
  MC_ASSERT_LT(drops.size(), wire::kStoreGroupEntriesMax);
  MC_CHECK(check_sizes({&put, 1}));
  const Pending pending(parts_->pending_bytes, put.bytes.size() + 2 * kPageBytes);
  MC_CHECK(check_room());
  std::vector<Item> items;
  const uint32_t crc = put.crc ? *put.crc : crc32c(put.bytes);
  items.push_back({.entry = {.id = put.id, .bytes = static_cast<uint32_t>(put.bytes.size()), .crc = crc},
                   .value = put.bytes.data()});
  for (const Id128& id : drops) items.push_back({.entry = {.id = id, .kind = wire::StoreKind::drop}});
  return commit(std::move(items), true, true);
}

Result<void> Store::commit(std::vector<Item> items, bool durable, bool is_apart) {
  MC_ASSERT(parts_->access == Access::read_write);
  Commit mine;
  mine.items = std::move(items);
  mine.durable = durable;
  mine.is_apart = is_apart;
  for (const Item& item : mine.items) mine.pages += wire::store_pages(item.entry.bytes);
  parts_->queue.run(mine, [parts = parts_.get()](std::span<Commit* const> round) {
    try {
      parts->write_round(round);
    } catch (const std::bad_alloc&) {  // others wait for the end of this round
      for (Commit* commit : round) commit->result = Error{Code::no_space, "store: no memory for a group of blocks"};
    }
  });
  return std::move(mine.result);
}

void Store::get(std::span<Get> gets) {
  read(gets, true);
}

void Store::peek(std::span<Get> gets) {
  read(gets, false);
}

std::vector<Id128> Store::take_evicted() {
  return parts_->index.take_forgotten();
}

void Store::read(std::span<Get> gets, bool whole) {
  std::vector<Id128> ids;
  ids.reserve(gets.size());
  for (const Get& get : gets) ids.push_back(get.id);
  std::vector<std::optional<Place>> places(gets.size());
  std::vector<PageBuffer> copies(gets.size());  // for room that is not aligned
  std::vector<iovec> memory(gets.size());
  std::vector<Io> reads;
  reads.reserve(gets.size());
  // Released also when memory runs out: a file that stays held is never reused.
  struct Held {
    Index& index;
    std::span<const std::optional<Place>> places;
    ~Held() { index.release(places); }
  } const held{parts_->index, places};
  parts_->index.hold(ids, places, whole);

  for (size_t i = 0; i < gets.size(); ++i) {
    Get& get = gets[i];
    get.bytes = places[i] ? places[i]->bytes : 0;
    get.code = !places[i] ? Code::not_found : whole && get.room.size() < get.bytes ? Code::no_space : Code::ok;
    if (get.code != Code::ok) continue;
    const size_t all = whole_pages(get.bytes);
    const size_t bytes = whole ? all : std::min(all, get.room.size() / kPageBytes * kPageBytes);
    MC_ASSERT_LT(size_t{0}, bytes);
    const bool direct = is_page_aligned(get.room.data()) && get.room.size() >= bytes;
    memory[i] = {direct ? get.room.data() : copies[i].room(bytes).data(), bytes};
    reads.push_back({.op = Io::Op::read,
                     .file = places[i]->file,
                     .offset = uint64_t{places[i]->page} * kPageBytes,
                     .parts = {&memory[i], 1},
                     .tag = static_cast<uint32_t>(i)});
  }
  // Nothing may be thrown here: the kernel still writes to the memory of the other reads.
  parts_->disk->run(reads, [&](Io& io) noexcept {
    Get& get = gets[io.tag];
    const Place& place = *places[io.tag];
    const auto* read = static_cast<const std::byte*>(memory[io.tag].iov_base);
    if (io.error != 0) {
      get.code = Code::io;
      return;
    }
    if (!whole) {
      if (read != get.room.data()) std::memcpy(get.room.data(), read, memory[io.tag].iov_len);
      return;
    }
    const uint32_t crc =
        read == get.room.data() ? crc32c({read, get.bytes}) : copy_crc32c(get.room.data(), read, get.bytes);
    if (crc != place.crc) get.code = Code::corrupt;
  });
  for (size_t i = 0; i < gets.size(); ++i)
    if (gets[i].code == Code::corrupt && parts_->index.forget(gets[i].id, *places[i])) ++parts_->corrupt_blocks;
}

std::optional<uint32_t> Store::find(const Id128& id) const {
  const auto place = parts_->index.find(id);
  return place ? std::optional(place->bytes) : std::nullopt;
}

void Store::for_each(const std::function<void(const Id128&, uint32_t)>& visit) const {
  parts_->index.for_each(visit);
}

Result<void> Store::flush() {
  MC_ASSERT(parts_->access == Access::read_write);
  const std::lock_guard lock(parts_->writing);
  return parts_->writer.flush();
}

Result<bool> Store::maintain() {
  MC_ASSERT(parts_->access == Access::read_write);
  if (grow_again()) return true;
  {
    const std::lock_guard lock(parts_->writing);
    if (!parts_->writer.wants_segment()) return false;
    if (!parts_->writer.may_grow()) {
      MC_CHECK(parts_->writer.take_back());
      return true;
    }
  }
  MC_CHECK(grow());
  return true;
}

Result<bool> Store::prepare() {
  {
    const std::lock_guard lock(parts_->writing);
    if (!parts_->writer.may_grow()) return false;
  }
  MC_CHECK(grow());
  return true;
}

Result<void> Store::grow() {
  MC_ASSERT(parts_->access == Access::read_write);
  std::string name;
  {
    const std::lock_guard lock(parts_->writing);
    name = parts_->segments.new_name();
  }
  auto made = parts_->segments.create(name);  // takes as long as writing the segment: puts go on meanwhile
  const std::lock_guard lock(parts_->writing);
  if (made) {
    parts_->segments.add_free(std::move(*made));
    return {};
  }
  parts_->segments.give_up();
  parts_->writer.stop_growing();
  return std::move(made).error();
}

/// The file system was full, or refused a file for another reason, which may have passed by now. True: there is one
/// more segment.
bool Store::grow_again() {
  {
    const std::lock_guard lock(parts_->writing);
    if (!parts_->writer.tries_growing()) return false;
  }
  if (!grow()) return false;
  const std::lock_guard lock(parts_->writing);
  parts_->writer.go_on_growing();
  return true;
}

Stats Store::stats() const {
  Stats out;
  out.blocks = parts_->index.count();
  out.live_bytes = parts_->index.live_bytes();
  out.corrupt_blocks = parts_->corrupt_blocks.load(std::memory_order_relaxed);
  const std::lock_guard lock(parts_->writing);
  const WriterCounters& counters = parts_->writer.counters();
  out.segments = parts_->segments.total();
  out.segments_free = parts_->segments.free_count();
  out.segment_bytes = parts_->segment_bytes;
  out.groups = counters.groups;
  out.flushes = counters.flushes;
  out.evicted_blocks = counters.evicted_blocks;
  out.moved_blocks = counters.moved_blocks;
  out.faults = counters.faults;
  out.last_fault = parts_->writer.last_fault();
  return out;
}

}  // namespace mc::store
