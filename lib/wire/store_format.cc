#include "wire/store_format.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/assert.h"
#include "base/hash.h"

namespace mc::wire {
namespace {

constexpr size_t kStoreCrcAt = 60;

uint32_t page_crc(std::span<const std::byte> page) {
  constexpr std::byte kZero[4] = {};
  const uint32_t head = crc32c(kZero, crc32c(page.first(kStoreCrcAt)));
  return crc32c(page.subspan(kStoreCrcAt + 4), head);
}

/// Puts a 64-byte head into a page that is otherwise filled, and seals the page.
template <class Head>
uint32_t seal_page(Head& head, std::span<std::byte> page) {
  head.crc = 0;
  std::memcpy(page.data(), &head, sizeof head);
  head.crc = page_crc(page);
  std::memcpy(page.data(), &head, sizeof head);
  return head.crc;
}

Error damaged(const char* what, const std::string& why) {
  return {Code::corrupt, std::string(what) + ": " + why};
}

/// Magic, version and checksum, which all three kinds of page have at the same places.
template <class Head>
Result<Head> open_page(ConstStorePage page, uint32_t magic, const char* what) {
  Head head;
  std::memcpy(&head, page.data(), sizeof head);
  if (head.magic != magic) return damaged(what, "wrong magic");
  if (head.crc != page_crc(page)) return damaged(what, "wrong checksum");
  if (head.version != kStoreVersion)
    return Error{Code::unsupported, std::string(what) + ": format version " + std::to_string(head.version) +
                                        ", this build has " + std::to_string(kStoreVersion)};
  return head;
}

bool is_zero(std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes)
    if (byte != std::byte{0}) return false;
  return true;
}

/// The entry alone: kind, and fields that the kind does not use.
bool is_sound(const StoreEntry& entry) {
  if (entry.reserved[0] != 0 || entry.reserved[1] != 0 || entry.reserved[2] != 0) return false;
  if (entry.kind == StoreKind::drop) return entry.bytes == 0 && entry.crc == 0 && entry.page == 0;
  return entry.kind == StoreKind::put && entry.bytes > 0;
}

}  // namespace

uint32_t encode(StoreSuper super, StorePage out) {
  std::memset(out.data(), 0, out.size());
  return seal_page(super, out);
}

Result<StoreSuper> parse_store_super(ConstStorePage page) {
  MC_TRY(super, open_page<StoreSuper>(page, kStoreSuperMagic, "superblock"));
  if (super.segment_bytes < kStoreSegmentBytesMin || super.segment_bytes > kStoreSegmentBytesMax ||
      super.segment_bytes % kStorePageBytes != 0)
    return damaged("superblock", "segments of " + std::to_string(super.segment_bytes) + " bytes");
  if (super.store.is_zero() || super.epoch == 0 || super.epoch > kStoreCountMax)
    return damaged("superblock", "no store id or a wrong epoch");
  return super;
}

uint32_t encode(StoreGroup group, std::span<const StoreEntry> entries, StorePage out) {
  MC_ASSERT_LE(entries.size(), kStoreGroupEntriesMax);
  std::memset(out.data(), 0, out.size());
  if (!entries.empty()) std::memcpy(out.data() + sizeof group, entries.data(), entries.size_bytes());
  group.entry_count = static_cast<uint16_t>(entries.size());
  return seal_page(group, out);
}

Result<StoreGroup> parse_store_group(ConstStorePage page, uint32_t at, uint32_t segment_pages,
                                     std::vector<StoreEntry>& entries) {
  MC_TRY(group, open_page<StoreGroup>(page, kStoreGroupMagic, "group"));
  if (group.entry_count > kStoreGroupEntriesMax)
    return damaged("group", std::to_string(group.entry_count) + " entries");
  const uint64_t end = uint64_t{at} + group.pages;
  if (group.pages == 0 || end >= segment_pages) return damaged("group", "ends behind its segment");
  if (group.number == 0 || group.durable >= group.number || std::max(group.number, group.sequence) > kStoreCountMax)
    return damaged("group", "wrong numbers");
  const size_t used = sizeof group + group.entry_count * sizeof(StoreEntry);
  if (!is_zero(page.subspan(used))) return damaged("group", "bytes behind its entries");
  const size_t before = entries.size();
  entries.resize(before + group.entry_count);
  if (group.entry_count > 0)
    std::memcpy(entries.data() + before, page.data() + sizeof group, group.entry_count * sizeof(StoreEntry));
  uint64_t next = uint64_t{at} + 1;
  for (size_t i = before; i < entries.size(); ++i) {
    const StoreEntry& entry = entries[i];
    const bool fits = is_sound(entry) && (entry.kind != StoreKind::put || entry.page == next);
    if (fits) next += store_pages(entry.bytes);
    if (!fits || next > end) {
      entries.resize(before);
      return damaged("group", "an entry does not lie in it");
    }
  }
  if (next == end) return group;
  entries.resize(before);
  return damaged("group", "its entries do not fill it");
}

void encode(StoreTail tail, std::span<const StoreEntry> entries, std::span<std::byte> out) {
  tail.pages = store_table_pages(entries.size());
  tail.entry_count = static_cast<uint32_t>(entries.size());
  const size_t table = tail.pages * kStorePageBytes;
  MC_ASSERT_EQ(out.size(), table + kStorePageBytes);
  std::memset(out.data(), 0, out.size());
  if (!entries.empty()) std::memcpy(out.data(), entries.data(), entries.size_bytes());
  tail.table_crc = crc32c(out.first(table));
  seal_page(tail, out.subspan(table));
}

Result<StoreTail> parse_store_tail(ConstStorePage page, uint32_t segment_pages) {
  MC_TRY(tail, open_page<StoreTail>(page, kStoreTailMagic, "segment table"));
  if (tail.pages != store_table_pages(tail.entry_count) || uint64_t{tail.pages} + 2 > segment_pages)
    return damaged("segment table", std::to_string(tail.entry_count) + " entries");
  if (tail.first == 0 || tail.last < tail.first || tail.last > kStoreCountMax)
    return damaged("segment table", "wrong numbers");
  return tail;
}

Result<void> parse_store_table(const StoreTail& tail, std::span<const std::byte> table, uint32_t segment_pages,
                               std::vector<StoreEntry>& entries) {
  MC_ASSERT_EQ(table.size(), tail.pages * kStorePageBytes);
  if (crc32c(table) != tail.table_crc) return damaged("segment table", "wrong checksum");
  const size_t before = entries.size();
  entries.resize(before + tail.entry_count);
  if (tail.entry_count > 0) std::memcpy(entries.data() + before, table.data(), tail.entry_count * sizeof(StoreEntry));
  const uint64_t end = uint64_t{segment_pages} - 1 - tail.pages;
  for (size_t i = before; i < entries.size(); ++i) {
    const StoreEntry& entry = entries[i];
    const bool fits = is_sound(entry) && (entry.kind == StoreKind::drop ||
                                          (entry.page > 0 && uint64_t{entry.page} + store_pages(entry.bytes) <= end));
    if (fits) continue;
    entries.resize(before);
    return damaged("segment table", "an entry does not lie in the segment");
  }
  return {};
}

}  // namespace mc::wire
