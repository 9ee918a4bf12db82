#include "store/writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/hash.h"

namespace mc::store {
namespace {

constexpr size_t kMoveBytes = size_t{1} << 20;  // read at once when blocks are moved

std::vector<Item*> pointers_to(std::span<Item> items) {
  std::vector<Item*> out;
  for (Item& item : items) out.push_back(&item);
  return out;
}

}  // namespace

Writer::Writer(Log& log, Segments& segments, Index& index, const SegmentReader& reader, Disk& disk,
               const Options& options)
    : log_(log),
      segments_(segments),
      index_(index),
      reader_(reader),
      disk_(disk),
      growth_{options.segments_max, options.segments_max},
      keeps_all_(options.keeps_all) {
  MC_ASSERT_LE(keeps_all_ ? kSegmentsKept : kSegmentsMin, growth_.max.load());
}

void Writer::fault(const Error& error) {
  ++counters_.faults;
  last_fault_ = error.what;
}

Result<void> Writer::start(std::optional<std::pair<Segment, SegmentContent>> active, uint64_t sequence) {
  sequence_ = sequence;
  if (active) {
    log_.resume(std::move(active->first), std::move(active->second));
    // A client may find a recovered block and rely on it, so it must not be lost later.
    MC_CHECK(flush_file(disk_, log_.segment().name, log_.segment().file));
  } else {
    if (segments_.free_count() == 0) MC_CHECK(make_room());
    Segment segment;
    MC_ASSERT(segments_.take_free(segment));
    segment.sequence = ++sequence_;
    log_.begin(std::move(segment));
  }
  if (keeps_all_) growth_.max = std::max(growth_.max.load(), segments_.total());  // a smaller one forgets nothing
  while (segments_.total() > growth_.max && segments_.oldest() != nullptr) MC_CHECK(take_back());
  // A full store takes nothing back before something is put.
  if (segments_.free_count() == 0 && may_grow()) MC_CHECK(make_room());
  return {};
}

Result<void> Writer::write(std::span<Item* const> items, bool durable) {
  for (int attempt = 0;; ++attempt) {
    Result<void> done = place(items);
    const bool placed = done.has_value();
    if (placed) ++counters_.groups;
    if (placed && durable) done = flush_log();
    if (done) break;
    fault(done.error());
    if (placed) log_.take_back();
    if (attempt > 0 || done.error().code == Code::no_space) return done;
    // The segment is given up as it is: groups of it that were flushed are read from group to group.
    counters_.lost_groups += log_.unflushed();
    MC_CHECK(next_segment());
  }
  index_.apply(items);
  return {};
}

Result<void> Writer::place(std::span<Item* const> items) {
  // A round through all segments gains the space of everything that was dropped. A second one would move the same
  // blocks again, and gain nothing.
  const uint64_t round = taken_back_ + segments_.total();
  // Blocks that are moved into the next segment may leave too little room in it; then the one after that takes none.
  for (size_t turn = 0; !log_.fits(items); ++turn) {
    if (turn > segments_.total() || taken_back_ > round)
      return Error{Code::no_space, "store: no segment has room for the group"};
    // Before the segment is sealed: blocks that are moved may go into what is left of it.
    MC_CHECK(keep_reserve());
    if (const auto sealed = log_.seal(); !sealed) fault(sealed.error());  // without a table it is only slower to read
    counters_.lost_groups += log_.unflushed();
    const bool moving = std::exchange(moving_, turn == 0);
    const auto next = next_segment();
    moving_ = moving;
    MC_CHECK(next);
  }
  return log_.append(items);
}

Result<void> Writer::flush_log() {
  if (log_.unflushed() == 0) return {};
  ++counters_.flushes;
  return log_.flush();
}

Result<void> Writer::flush() {
  if (auto done = flush_log(); !done) {
    fault(done.error());
    return done;
  }
  const uint64_t lost = counters_.lost_groups - std::exchange(lost_told_, counters_.lost_groups);
  if (lost > 0) return Error{Code::io, "store: " + std::to_string(lost) + " groups were lost: " + last_fault_};
  return {};
}

Result<void> Writer::finish() {
  MC_CHECK(flush_log());
  if (log_.number() == 0 || !log_.fits({})) return {};
  MC_CHECK(log_.append({}));
  return log_.flush();
}

Result<void> Writer::keep_reserve() {
  const size_t wanted = keeps_all_ ? kSegmentsApart - 1 : 1;
  if (segments_.free_count() >= wanted || taking_back_) return {};
  auto made = make_room();
  // With keeps_all the last free segment is for blocks that are moved: without it no space could be made ever again.
  if (made || segments_.free_count() < wanted) return made;
  fault(made.error());
  return {};
}

Result<void> Writer::next_segment() {
  MC_CHECK(keep_reserve());
  Segment segment;
  if (!segments_.take_free(segment)) return Error{Code::no_space, "store: no free segment"};
  Segment full = log_.segment();
  full.end = log_.number() + 1;
  segments_.add_sealed(std::move(full));
  segment.sequence = ++sequence_;
  log_.begin(std::move(segment));
  // Room is made now, while the new segment is empty: blocks that are moved have a place.
  if (const auto made = keep_reserve(); !made) fault(made.error());
  return {};
}

Result<void> Writer::make_room() {
  if (may_grow()) {
    auto made = segments_.create(segments_.new_name());
    if (made) {
      segments_.add_free(std::move(*made));
      return {};
    }
    segments_.give_up();
    fault(made.error());
    if (segments_.oldest() == nullptr) return std::move(made).error();
    stop_growing();
  }
  return keeps_all_ ? take_back_until_free() : take_back();
}

/// Every segment may be full of blocks that stay, so one turn may gain nothing. A round through all of them gains the
/// space of everything that was dropped.
Result<void> Writer::take_back_until_free() {
  for (size_t turn = 0; turn < segments_.total(); ++turn) {
    MC_CHECK(take_back());
    if (segments_.free_count() >= kSegmentsApart - 1) return {};
  }
  return Error{Code::no_space, "store: all segments are full of blocks that stay"};
}

Result<void> Writer::take_back() {
  const Segment* oldest = segments_.oldest();
  if (oldest == nullptr) return Error{Code::no_space, "store: no segment can be reused"};
  const Segment segment = *oldest;
  ++taken_back_;
  taking_back_ = true;
  const uint64_t lost_before = counters_.lost_groups;
  const auto content = reader_.read(segment, segment.end, UINT64_MAX);
  Result<void> saved;
  if (content) saved = save_read_blocks(segment, *content);
  taking_back_ = false;
  if (!content) fault(content.error());
  if (!saved) fault(saved.error());
  // The segment stays as it is: blocks that were moved may not be durable, and others may be read later.
  if (keeps_all_ && !content) return content.error();
  if (keeps_all_ && !saved) return saved;
  if (keeps_all_ && counters_.lost_groups != lost_before) return Error{Code::io, "store: moved blocks were lost"};
  // A walk that ended early leaves entries that recovery had found: the file is about to hold other blocks.
  if (!content || !saved || !content->sealed) counters_.evicted_blocks += index_.forget_file(segment.file);
  index_.wait_unread(segment.file);
  return segments_.erase_oldest(segments_.total() <= growth_.max);
}

Result<void> Writer::save_read_blocks(const Segment& segment, const SegmentContent& content) {
  uint32_t pages_left = moving_ ? reader_.segment_pages / 2 : 0;
  // Moved groups are no smaller than new ones, or their headers would take more space than before.
  const size_t move_bytes = keeps_all_ ? std::max(kMoveBytes, reader_.segment_pages / 8 * kPageBytes) : kMoveBytes;
  std::vector<Item> items;
  size_t bytes = 0;
  for (const wire::StoreEntry& entry : content.entries) {
    if (entry.kind != wire::StoreKind::put) continue;
    const Place place{segment.file, entry.page, entry.bytes, entry.crc};
    const Index::Use use = index_.take_use(entry.id, place);
    if (use == Index::Use::elsewhere) continue;
    const uint32_t pages = wire::store_pages(entry.bytes);
    if (keeps_all_ || (use == Index::Use::read && pages <= pages_left)) {
      pages_left -= std::min(pages, pages_left);
      if (bytes + whole_pages(entry.bytes) > move_bytes || items.size() == wire::kStoreGroupEntriesMax) {
        MC_CHECK(move_blocks(segment, items));
        bytes = 0;
      }
      items.push_back({.entry = entry});
      bytes += whole_pages(entry.bytes);
      continue;
    }
    if (index_.forget(entry.id, place)) ++counters_.evicted_blocks;
  }
  MC_CHECK(move_blocks(segment, items));
  return flush_log();
}

Result<void> Writer::move_blocks(const Segment& segment, std::vector<Item>& items) {
  if (items.empty()) return {};
  size_t bytes = 0;
  for (const Item& item : items) bytes += whole_pages(item.entry.bytes);
  std::byte* at = values_.room(bytes).data();
  std::vector<iovec> parts;
  for (Item& item : items) {
    item.value = at;
    parts.push_back({at, whole_pages(item.entry.bytes)});
    at += whole_pages(item.entry.bytes);
  }
  std::vector<Io> reads;
  for (size_t i = 0; i < items.size(); ++i)
    reads.push_back({.op = Io::Op::read,
                     .file = segment.file,
                     .offset = uint64_t{items[i].entry.page} * kPageBytes,
                     .parts = {&parts[i], 1},
                     .tag = static_cast<uint32_t>(i)});
  std::vector<bool> sound(items.size());
  int unread = 0;  // errno
  disk_.run(reads, [&](Io& io) {
    const Item& item = items[io.tag];
    if (io.error != 0) unread = io.error;
    sound[io.tag] = io.error == 0 && crc32c({item.value, item.entry.bytes}) == item.entry.crc;
  });
  if (keeps_all_ && unread != 0)
    return Error{Code::io,
                 "store: blocks of " + segment.name + " cannot be read: " + std::string(std::strerror(unread))};
  std::vector<Item> good;
  std::vector<Place> from;
  for (size_t i = 0; i < items.size(); ++i) {
    const Place place{segment.file, items[i].entry.page, items[i].entry.bytes, items[i].entry.crc};
    if (sound[i]) {
      good.push_back(items[i]);
      from.push_back(place);
    } else if (index_.forget(items[i].entry.id, place)) {
      ++counters_.evicted_blocks;
    }
  }
  items.clear();
  if (good.empty()) return {};
  const auto pointers = pointers_to(good);
  // Without a place for them the blocks go, as if they had not been read.
  const bool room = log_.fits(pointers) || segments_.free_count() > 0;
  const Result<void> placed = room ? place(pointers) : Result<void>();
  if (keeps_all_ && (!room || !placed)) return room ? placed : Error{Code::no_space, "store: no room to move blocks"};
  const bool moved = room && placed;
  if (moved) ++counters_.groups;
  for (size_t i = 0; i < good.size(); ++i) {
    if (moved && index_.move(good[i].entry.id, from[i], good[i].place()))
      ++counters_.moved_blocks;
    else if (index_.forget(good[i].entry.id, from[i]))
      ++counters_.evicted_blocks;
  }
  return placed;
}

}  // namespace mc::store
