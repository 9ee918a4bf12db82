// The files of a block store (lib/store), little-endian and fixed width. Everything lies in pages of 4 KiB. Golden
// bytes: tests/golden/wire/store_format.txt.
//
//   super.a, super.b   one page each, written by turns; the valid one with the higher epoch counts
//   seg.NNNNNN         a segment: groups from the front, and the table of a sealed segment at the back
//
//      page 0         1 ..           p          p+1 ..                 n-1-t ..      n-1
//     | group header | values ...   | header   | values ...  | unused | table       | tail  |
//
// A group is what one write puts down: the header page names up to 126 values, whose pages follow in its order. Groups
// are numbered through the whole store. A group belongs to the log when its header has a right CRC, the segment's
// sequence, the number after its predecessor's and its predecessor's CRC: bytes of an earlier use of the file fail one
// of them. The table repeats the entries of all groups of a sealed segment, so that a restart reads a segment in two
// reads.
//
//   super    | magic | ver | 0 | segment bytes | store id 16 | epoch     | 0 (20)                         | crc |
//            0       4     6   8               16            32          40                               60    64
//   group    | magic | ver | n | store | sequence | number | durable | epoch | pages | prev crc | 0       | crc |
//   entries
//            0       4     6   8       16         24       32        40      48      52         56        60    64
//   tail     | magic | ver | 0 | store | sequence | first  | last    | entries | pages | table crc | 0    | crc |
//            0       4     6   8       16         24       32        40        44      48          52     60    64
//   entry    | id 16 | bytes | crc of the value | page in the segment | kind | 0 (3) |
//            0       16      20                 24                    28     29      32
//
// The crc of a page covers its 4096 bytes with that field as zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace mc::wire {

inline constexpr size_t kStorePageBytes = 4096;
inline constexpr uint16_t kStoreVersion = 1;
inline constexpr uint32_t kStoreSuperMagic = 0x5553434d;  // "MCSU"
inline constexpr uint32_t kStoreGroupMagic = 0x4753434d;  // "MCSG"
inline constexpr uint32_t kStoreTailMagic = 0x5453434d;   // "MCST"
inline constexpr uint64_t kStoreSegmentBytesMin = uint64_t{64} << 10;
inline constexpr uint64_t kStoreSegmentBytesMax = uint64_t{1} << 30;
inline constexpr uint64_t kStoreCountMax = uint64_t{1} << 62;  // of epochs, sequences and numbers: they never wrap

enum class StoreKind : uint8_t {
  put = 1,   // `bytes` > 0 of value at `page`
  drop = 2,  // the id has no value from here on; bytes, crc and page are 0
};

struct StoreSuper {
  uint32_t magic = kStoreSuperMagic;
  uint16_t version = kStoreVersion;
  uint16_t reserved16 = 0;
  uint64_t segment_bytes = 0;  // multiple of a page, within the bounds above
  Id128 store;                 // random, drawn when the store is made
  uint64_t epoch = 0;          // grows with every opening
  uint32_t reserved[5] = {};
  uint32_t crc = 0;  // filled by encode
};

struct StoreGroup {
  uint32_t magic = kStoreGroupMagic;
  uint16_t version = kStoreVersion;
  uint16_t entry_count = 0;
  uint64_t store = 0;     // first 8 bytes of the store's id
  uint64_t sequence = 0;  // of the segment: grows with every segment that is begun
  uint64_t number = 0;
  uint64_t durable = 0;  // highest number that was flushed when this group was written
  uint64_t epoch = 0;
  uint32_t pages = 0;         // header and values
  uint32_t previous_crc = 0;  // of the header before this one in the segment; 0 for the first
  uint32_t reserved = 0;
  uint32_t crc = 0;
};

struct StoreTail {
  uint32_t magic = kStoreTailMagic;
  uint16_t version = kStoreVersion;
  uint16_t reserved16 = 0;
  uint64_t store = 0;
  uint64_t sequence = 0;
  uint64_t first = 0;  // number of the segment's first group
  uint64_t last = 0;   // and of its last; all were flushed before the tail was written
  uint32_t entry_count = 0;
  uint32_t pages = 0;  // of the table, which ends before the tail
  uint32_t table_crc = 0;
  uint32_t reserved[2] = {};
  uint32_t crc = 0;
};

struct StoreEntry {
  Id128 id;
  uint32_t bytes = 0;
  uint32_t crc = 0;
  uint32_t page = 0;  // counted from the start of the segment
  StoreKind kind = StoreKind::put;
  uint8_t reserved[3] = {};
  bool operator==(const StoreEntry&) const = default;
};
static_assert(sizeof(StoreSuper) == 64 && sizeof(StoreGroup) == 64 && sizeof(StoreTail) == 64);
static_assert(offsetof(StoreSuper, epoch) == 32 && offsetof(StoreSuper, crc) == 60);
static_assert(offsetof(StoreGroup, pages) == 48 && offsetof(StoreGroup, crc) == 60);
static_assert(offsetof(StoreTail, table_crc) == 48 && offsetof(StoreTail, crc) == 60);
static_assert(sizeof(StoreEntry) == 32 && offsetof(StoreEntry, kind) == 28);
static_assert(std::is_trivially_copyable_v<StoreEntry>);

inline constexpr size_t kStoreGroupEntriesMax = (kStorePageBytes - sizeof(StoreGroup)) / sizeof(StoreEntry);

/// Pages that a value of so many bytes takes.
constexpr uint32_t store_pages(uint64_t bytes) {
  return static_cast<uint32_t>((bytes + kStorePageBytes - 1) / kStorePageBytes);
}
/// Pages of the table of so many entries, without the tail.
constexpr uint32_t store_table_pages(size_t entries) {
  return store_pages(entries * sizeof(StoreEntry));
}

using StorePage = std::span<std::byte, kStorePageBytes>;
using ConstStorePage = std::span<const std::byte, kStorePageBytes>;

// Each encode fills the whole page and sets the crc; it returns that crc. Each parse checks every field. corrupt: the
// bytes are not such a page, or damaged. unsupported: another version of the format.
uint32_t encode(StoreSuper super, StorePage out);
Result<StoreSuper> parse_store_super(ConstStorePage page);

/// At most kStoreGroupEntriesMax entries, whose pages follow the header at page `at` without gaps.
uint32_t encode(StoreGroup group, std::span<const StoreEntry> entries, StorePage out);
/// A group that begins at page `at` of a segment of `segment_pages`. Its entries are appended to `entries`.
Result<StoreGroup> parse_store_group(ConstStorePage page, uint32_t at, uint32_t segment_pages,
                                     std::vector<StoreEntry>& entries);

/// Table and tail: store_table_pages(entries.size()) + 1 pages, the last of the segment.
void encode(StoreTail tail, std::span<const StoreEntry> entries, std::span<std::byte> out);
Result<StoreTail> parse_store_tail(ConstStorePage page, uint32_t segment_pages);
/// The pages before the tail, tail.pages of them.
Result<void> parse_store_table(const StoreTail& tail, std::span<const std::byte> table, uint32_t segment_pages,
                               std::vector<StoreEntry>& entries);

}  // namespace mc::wire
