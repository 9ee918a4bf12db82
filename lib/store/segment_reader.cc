#include "store/segment_reader.h"

#include "base/hash.h"

namespace mc::store {
namespace {

/// No store counts so far. The numbers in a header are not to be trusted, and those behind them must not wrap.
constexpr uint64_t kNumberMax = UINT64_MAX / 2;

constexpr uint64_t offset_of(uint32_t page) {
  return uint64_t{page} * kPageBytes;
}

wire::ConstStorePage page_of(std::span<const std::byte> bytes) {
  return wire::ConstStorePage(bytes.data(), kPageBytes);
}

}  // namespace

Result<wire::StoreGroup> SegmentReader::head(const Segment& segment) const {
  PageBuffer page;
  const auto bytes = page.room(kPageBytes);
  MC_CHECK(read_pages(disk, segment.name, segment.file, 0, bytes));
  std::vector<wire::StoreEntry> entries;
  auto group = parse_store_group(page_of(bytes), 0, segment_pages, entries);
  if (!group || group->store != store || group->sequence == 0 || group->sequence > kNumberMax ||
      group->number > kNumberMax || group->epoch > epoch || group->previous_crc != 0)
    return Error{Code::not_found, segment.name + " is free"};
  return group;
}

Result<SegmentContent> SegmentReader::read(const Segment& segment, uint64_t end, uint64_t durable) const {
  auto table = read_table(segment);
  if (table && table->last < end) return table;
  if (!table && table.error().code == Code::io) return table;
  return walk(segment, end, durable);
}

Result<SegmentContent> SegmentReader::read_table(const Segment& segment) const {
  PageBuffer buffer;
  const auto page = buffer.room(kPageBytes);
  MC_CHECK(read_pages(disk, segment.name, segment.file, offset_of(segment_pages - 1), page));
  MC_TRY(tail, wire::parse_store_tail(page_of(page), segment_pages));
  if (tail.store != store || tail.sequence != segment.sequence) return Error{Code::corrupt, "table of an earlier use"};
  SegmentContent out{.sequence = tail.sequence, .first = tail.first, .last = tail.last, .durable = tail.last};
  out.sealed = true;
  if (tail.pages == 0) return out;
  const auto table = buffer.room(offset_of(tail.pages));
  MC_CHECK(read_pages(disk, segment.name, segment.file, offset_of(segment_pages - 1 - tail.pages), table));
  MC_CHECK(parse_store_table(tail, table, segment_pages, out.entries));
  return out;
}

Result<SegmentContent> SegmentReader::walk(const Segment& segment, uint64_t end, uint64_t durable) const {
  PageBuffer buffer;
  const auto page = buffer.room(kPageBytes);
  SegmentContent out{.sequence = segment.sequence};
  uint64_t last_epoch = 0;
  while (out.end_page + 1 < segment_pages) {
    MC_CHECK(read_pages(disk, segment.name, segment.file, offset_of(out.end_page), page));
    const size_t before = out.entries.size();
    const auto group = parse_store_group(page_of(page), out.end_page, segment_pages, out.entries);
    bool follows = group && group->store == store && group->sequence == segment.sequence && group->number < end &&
                   group->epoch >= last_epoch && group->epoch <= epoch && group->previous_crc == out.last_crc &&
                   (out.first == 0 || group->number == out.last + 1);
    if (follows && group->number > durable) {
      MC_TRY(sound, values_sound(segment, std::span(out.entries).subspan(before)));
      follows = sound;
    }
    if (!follows) {
      out.entries.resize(before);
      break;
    }
    if (out.first == 0) out.first = group->number;
    out.last = group->number;
    out.durable = group->durable;
    out.last_crc = group->crc;
    out.end_page += group->pages;
    last_epoch = group->epoch;
  }
  return out;
}

Result<bool> SegmentReader::values_sound(const Segment& segment, std::span<const wire::StoreEntry> entries) const {
  PageBuffer buffer;
  for (const wire::StoreEntry& entry : entries) {
    if (entry.kind != wire::StoreKind::put) continue;
    const auto value = buffer.room(offset_of(wire::store_pages(entry.bytes)));
    MC_CHECK(read_pages(disk, segment.name, segment.file, offset_of(entry.page), value));
    if (crc32c(value.first(entry.bytes)) != entry.crc) return false;
  }
  return true;
}

}  // namespace mc::store
