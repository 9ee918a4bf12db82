#include "store/log.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"

namespace mc::store {
namespace {

// Several writes at once are faster than a large one: a device works on some at a time.
constexpr uint64_t kPieceBytes = uint64_t{128} << 10;

uint32_t value_pages(std::span<Item* const> items) {
  uint32_t pages = 0;
  for (const Item* item : items) pages += wire::store_pages(item->entry.bytes);
  return pages;
}

}  // namespace

Log::Log(Disk& disk, uint64_t store, uint64_t epoch, uint32_t segment_pages)
    : disk_(disk), store_(store), epoch_(epoch), segment_pages_(segment_pages) {}

void Log::begin(Segment segment) {
  MC_ASSERT(segment.sequence > 0);
  segment_ = std::move(segment);
  cursor_ = 0;
  last_crc_ = 0;
  first_ = number_ + 1;
  durable_ = number_;
  closed_ = false;
  entries_.clear();
}

void Log::resume(Segment segment, SegmentContent content) {
  MC_ASSERT(!content.sealed);
  segment_ = std::move(segment);
  cursor_ = content.end_page;
  last_crc_ = content.last_crc;
  entries_ = std::move(content.entries);
  first_ = content.first;
  start_after(content.last);
}

bool Log::fits(std::span<Item* const> items) const {
  const uint64_t table = wire::store_table_pages(entries_.size() + items.size());
  return !closed_ && uint64_t{cursor_} + 1 + value_pages(items) + table + 1 <= segment_pages_;
}

void Log::gather(std::span<Item* const> items) {
  // The copies are counted first: room() may move them.
  size_t copied = 0;
  const auto direct = [](const Item& item) {
    return is_page_aligned(item.value) ? item.entry.bytes / kPageBytes * kPageBytes : 0;
  };
  for (const Item* item : items) copied += whole_pages(item->entry.bytes - direct(*item));
  std::byte* copy = copies_.room(copied).data();
  for (const Item* item : items) {
    const size_t whole = direct(*item), rest = item->entry.bytes - whole;
    if (whole > 0) parts_.push_back({const_cast<std::byte*>(item->value), whole});
    if (rest == 0) continue;
    std::memcpy(copy, item->value + whole, rest);
    std::memset(copy + rest, 0, whole_pages(rest) - rest);
    parts_.push_back({copy, whole_pages(rest)});
    copy += whole_pages(rest);
  }
}

Result<void> Log::write_parts(uint64_t offset) {
  const uint64_t bytes = bytes_of(parts_);
  const uint64_t pieces = std::max<uint64_t>(bytes / kPieceBytes, 1);
  const uint64_t most = whole_pages((bytes + pieces - 1) / pieces);
  pieces_.clear();
  pieces_.reserve(parts_.size() + pieces);  // spans of it are kept
  std::vector<Io> writes;
  uint64_t left = 0;  // room of the last write
  for (const iovec& part : parts_)
    for (uint64_t at = 0; at < part.iov_len;) {
      if (left == 0 || writes.back().parts.size() == kPartsMax) {
        writes.push_back({.op = Io::Op::write, .file = segment_.file, .offset = offset});
        writes.back().parts = {pieces_.data() + pieces_.size(), size_t{0}};
        left = most;
      }
      const uint64_t take = std::min<uint64_t>(part.iov_len - at, left);
      pieces_.push_back({static_cast<std::byte*>(part.iov_base) + at, take});
      writes.back().parts = {writes.back().parts.data(), writes.back().parts.size() + 1};
      at += take;
      left -= take;
      offset += take;
    }
  const Io* failed = nullptr;
  disk_.run(writes, [&](const Io& io) {
    if (io.error != 0) failed = &io;
  });
  if (failed != nullptr) return io_error(segment_.name, *failed);
  return {};
}

Result<void> Log::append(std::span<Item* const> items) {
  MC_ASSERT_LE(items.size(), wire::kStoreGroupEntriesMax);
  MC_ASSERT(fits(items));
  uint32_t page = cursor_ + 1;
  group_.clear();
  for (Item* item : items) {
    const bool put = item->entry.kind == wire::StoreKind::put;
    item->file = segment_.file;
    item->entry.page = put ? page : 0;
    page += wire::store_pages(item->entry.bytes);
    group_.push_back(item->entry);
  }
  const wire::StoreGroup head{.store = store_,
                              .sequence = segment_.sequence,
                              .number = number_ + 1,
                              .durable = durable_,
                              .epoch = epoch_,
                              .pages = page - cursor_,
                              .previous_crc = last_crc_};
  std::byte* header = header_.room(kPageBytes).data();
  const uint32_t crc = encode(head, group_, wire::StorePage(header, kPageBytes));
  parts_.assign(1, {header, kPageBytes});
  gather(items);
  MC_ASSERT_EQ(bytes_of(parts_), uint64_t{head.pages} * kPageBytes);
  closed_ = true;
  begin_ = cursor_;
  if (auto done = write_parts(uint64_t{begin_} * kPageBytes); !done) {
    wipe(begin_);
    return done;
  }
  closed_ = false;
  cursor_ = page;
  last_crc_ = crc;
  ++number_;
  entries_.insert(entries_.end(), group_.begin(), group_.end());
  return {};
}

void Log::take_back() {
  MC_ASSERT_LT(durable_, number_);
  closed_ = true;
  --number_;
  wipe(begin_);
}

/// Overwrites the header of a group that failed. The segment takes no more groups after the error, and the disk may
/// well refuse this, too.
void Log::wipe(uint32_t page) {
  const std::span<std::byte> zeros = header_.room(kPageBytes);
  std::memset(zeros.data(), 0, zeros.size());
  (void)write_pages(disk_, segment_.name, segment_.file, uint64_t{page} * kPageBytes, zeros);
}

Result<void> Log::flush() {
  if (unflushed() == 0) return {};
  if (std::exchange(closed_, true)) return Error{Code::io, segment_.name + ": given up after an error"};
  MC_CHECK(flush_file(disk_, segment_.name, segment_.file));
  closed_ = false;
  durable_ = number_;
  return {};
}

Result<void> Log::seal() {
  if (cursor_ == 0 || closed_) return {};
  MC_CHECK(flush());
  const size_t pages = wire::store_table_pages(entries_.size()) + 1;
  if (cursor_ + pages > segment_pages_) return {};  // groups of another writer left no room for it
  const std::span<std::byte> table = table_.room(pages * kPageBytes);
  const wire::StoreTail tail{.store = store_, .sequence = segment_.sequence, .first = first_, .last = number_};
  closed_ = true;  // the table names what the segment has, for good
  encode(tail, entries_, table);
  return write_pages(disk_, segment_.name, segment_.file, uint64_t{segment_pages_ - pages} * kPageBytes, table);
}

}  // namespace mc::store
