// The store's faults, by name: a disk that refuses, files that are damaged or missing, a folder of another build.
#include "store/store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>

#include "base/errors.h"
#include "base/hash.h"
#include "store/disk_memory.h"
#include "store/pages.h"
#include "test.h"
#include "unit/store/faults.h"
#include "wire/store_format.h"

namespace store_faults {

TEST_CASE("store: a write that fails goes to another segment, and the caller sees no error") {
  Faults faults;
  auto store = open_image({}, &faults);
  REQUIRE_OK(store);
  REQUIRE_OK(put_one(**store, 1));
  int left = 1;
  faults.fail = [&](const Io& io, const std::string& name) {
    return io.op == Io::Op::write && name.starts_with("seg.") && left-- > 0 ? EIO : 0;
  };
  REQUIRE_OK(put_one(**store, 2));
  CHECK((*store)->stats().faults == 1);
  CHECK((*store)->stats().last_fault.find("write of 12288 bytes at 12288: Input/output error") != std::string::npos);
  CHECK(get_one(**store, 1) == Code::ok);
  CHECK(get_one(**store, 2) == Code::ok);
  store->reset();
  auto again = open_image(faults.image);
  REQUIRE_OK(again);
  CHECK(get_one(**again, 1) == Code::ok);
  CHECK(get_one(**again, 2) == Code::ok);
  CHECK((*again)->restart().damaged.empty());
}

TEST_CASE("store: a page that cannot be read costs at most the blocks of its segment when the store is opened") {
  constexpr uint64_t kBlocks = 30, kBlocksOfSegment = 8;
  DiskImage image;
  {
    Faults faults;
    auto store = open_image({}, &faults);
    REQUIRE_OK(store);
    for (uint64_t n = 1; n <= kBlocks; ++n) REQUIRE_OK(put_one(**store, n));
    store->reset();
    image = faults.image;
  }
  uint64_t given_up = 0;
  for (const auto& [bad, bytes] : image)
    for (uint64_t page = 0; bad.starts_with("seg.") && page < bytes.size() / kPageBytes; ++page) {
      CAPTURE(bad);
      CAPTURE(page);
      Faults faults;
      faults.fail = [&, bad = bad](const Io& io, const std::string& name) {
        const uint64_t at = page * kPageBytes;
        const bool hit = io.offset <= at && at < io.offset + bytes_of(io.parts);
        return io.op == Io::Op::read && name == bad && hit ? EIO : 0;
      };
      auto store = open_image(image, &faults);
      REQUIRE_OK(store);
      const auto& damaged = (*store)->restart().damaged;
      given_up += !damaged.empty() && damaged[0].find(bad + " is given up") == 0;
      uint64_t here = 0;
      for (uint64_t n = 1; n <= kBlocks; ++n) here += get_one(**store, n) == Code::ok;
      CHECK(here >= kBlocks - kBlocksOfSegment);
      faults.fail = nullptr;
      REQUIRE_OK(put_one(**store, 100));
      CHECK(get_one(**store, 100) == Code::ok);
    }
  CHECK(given_up > 4);
}

TEST_CASE("store: a flush that fails is not tried again on that file") {
  std::vector<std::string> flushed;
  Faults faults;
  auto store = open_image({}, &faults);
  REQUIRE_OK(store);
  REQUIRE_OK(put_one(**store, 1));
  faults.fail = [&](const Io& io, const std::string& name) {
    if (io.op != Io::Op::flush) return 0;
    flushed.push_back(name);
    return flushed.size() == 1 ? EIO : 0;
  };
  REQUIRE_OK(put_one(**store, 2));
  REQUIRE(flushed.size() == 2);
  CHECK(flushed[0] != flushed[1]);
  CHECK(get_one(**store, 2) == Code::ok);
}

TEST_CASE("store: after a flush that failed nothing more is written to that file") {
  Faults faults;
  auto store = open_image({}, &faults);
  REQUIRE_OK(store);
  REQUIRE_OK(put_one(**store, 1, Level::written));
  std::string refused;
  bool wrote = false;
  faults.fail = [&](const Io& io, const std::string& name) {
    if (io.op == Io::Op::write && name == refused) wrote = true;
    if (io.op != Io::Op::flush || !refused.empty()) return 0;
    refused = name;
    return EIO;
  };
  CHECK_FALSE((*store)->flush().has_value());
  const auto told = put_one(**store, 2);  // its group goes to another file, but that of block 1 was lost
  REQUIRE_FALSE(told.has_value());
  CHECK(told.error().what == "store: groups were lost: " + refused + ": flush: Input/output error");
  REQUIRE_OK(put_one(**store, 3));
  CHECK(refused.starts_with("seg."));
  CHECK_FALSE(wrote);
}

TEST_CASE("store: when every write fails the put fails, and so does what a flush would have saved") {
  Faults faults;
  auto store = open_image({}, &faults);
  REQUIRE_OK(store);
  REQUIRE_OK(put_one(**store, 1));
  REQUIRE_OK(put_one(**store, 2, Level::written));
  faults.fail = [](const Io& io, const std::string&) { return io.op == Io::Op::read ? 0 : EIO; };
  const auto put = put_one(**store, 3);
  REQUIRE_FALSE(put.has_value());
  CHECK(put.error().code == Code::io);
  CHECK(get_one(**store, 3) == Code::not_found);
  CHECK(get_one(**store, 1) == Code::ok);
  faults.fail = nullptr;
  const auto flush = (*store)->flush();  // block 2 was written and never flushed
  REQUIRE_FALSE(flush.has_value());
  CHECK(flush.error().code == Code::io);
  REQUIRE_OK((*store)->flush());  // it is told once
  REQUIRE_OK(put_one(**store, 4));
  CHECK(get_one(**store, 4) == Code::ok);
}

TEST_CASE("store: a long drop reports the part in its middle that a fault lost") {
  Faults faults;
  auto store = open_image({}, &faults, 64 * kSegment);
  REQUIRE_OK(store);
  constexpr uint64_t kBlocks = 2 * wire::kStoreGroupEntriesMax + 40;  // three groups, of which the last is flushed
  std::vector<Id128> ids;
  for (uint64_t n = 0; n < kBlocks; ++n) {
    REQUIRE_OK(put_one(**store, n, Level::written, 100));
    ids.push_back(id_of(n));
  }
  REQUIRE_OK((*store)->flush());
  int writes = 0;
  faults.fail = [&](const Io& io, const std::string& name) {
    return io.op == Io::Op::write && name.starts_with("seg.") && ++writes == 2 ? EIO : 0;
  };
  // The second group's write fails, and the first group was not flushed: it may be gone after a power cut.
  const auto dropped = (*store)->drop(ids, Level::durable);
  REQUIRE_FALSE(dropped.has_value());
  CHECK(dropped.error().code == Code::io);
  CHECK((*store)->stats().faults == 1);
  faults.fail = {};
  REQUIRE_OK((*store)->drop(ids, Level::durable));
}

TEST_CASE("store: blocks that are given up for space are reported once, and those put again are not") {
  auto store = Store::open(std::make_unique<MemoryDisk>(),
                           {.capacity_bytes = 6 * kSegment, .segment_bytes = kSegment, .report_evictions = true});
  REQUIRE_OK(store);
  for (uint64_t n = 0; n < 60; ++n) REQUIRE_OK(put_one(**store, n, Level::written));
  const auto evicted = (*store)->take_evicted();
  CHECK(evicted.size() == (*store)->stats().evicted_blocks);
  CHECK(evicted.size() > 20);
  CHECK(std::is_sorted(evicted.begin(), evicted.end()));  // whatever the order of a hash table
  for (const Id128& id : evicted) CHECK_FALSE((*store)->find(id).has_value());
  CHECK((*store)->take_evicted().empty());
  CHECK((*store)->stats().blocks + evicted.size() == 60);
}

TEST_CASE("store: a peek gives the front of a block without a check and without keeping the block longer") {
  auto store = open_image({}, nullptr, 6 * kSegment);
  REQUIRE_OK(store);
  REQUIRE_OK(put_one(**store, 1, Level::written, 9000));
  PageBuffer pages;
  const auto room = pages.room(kPageBytes);
  Get get{.id = id_of(1), .room = {room.data(), kPageBytes}};
  (*store)->peek({&get, 1});
  CHECK(get.code == Code::ok);
  CHECK(get.bytes == 9000);
  const auto value = value_of(1, 9000);
  CHECK(std::equal(get.room.begin(), get.room.end(), value.begin()));
  Get absent{.id = id_of(2), .room = get.room};
  (*store)->peek({&absent, 1});
  CHECK(absent.code == Code::not_found);
  for (uint64_t n = 10; n < 80; ++n) {
    (*store)->peek({&get, 1});
    REQUIRE_OK(put_one(**store, n, Level::written));
  }
  CHECK(get_one(**store, 1, 9000) == Code::not_found);
}

TEST_CASE("store: a read that fails is an error of that block alone, and it stays") {
  Faults faults;
  auto store = open_image({}, &faults);
  REQUIRE_OK(store);
  REQUIRE_OK(put_one(**store, 1));
  faults.fail = [](const Io& io, const std::string&) { return io.op == Io::Op::read ? EIO : 0; };
  CHECK(get_one(**store, 1) == Code::io);
  faults.fail = nullptr;
  CHECK(get_one(**store, 1) == Code::ok);
}

TEST_CASE("store: a full disk shrinks the store, which then reuses what it has") {
  Faults faults;
  int files = 0;
  faults.fail_create = [&](const std::string& name) { return name.starts_with("seg.") && ++files > 3 ? ENOSPC : 0; };
  auto store = open_image({}, &faults);
  REQUIRE_OK(store);
  for (uint64_t n = 0; n < 60; ++n) REQUIRE_OK(put_one(**store, n));
  const Stats stats = (*store)->stats();
  CHECK(stats.segments == 3);
  CHECK(stats.evicted_blocks > 0);
  CHECK(stats.last_fault.find("No space left on device") != std::string::npos);
  CHECK(get_one(**store, 59) == Code::ok);
  CHECK(get_one(**store, 0) == Code::not_found);
}

TEST_CASE("store: a store that could not grow grows again once files can be made") {
  for (const bool keeps_all : {false, true}) {
    Faults faults;
    bool is_full = false;
    faults.fail_create = [&](const std::string& name) { return name.starts_with("seg.") && is_full ? ENOSPC : 0; };
    auto opened = Store::open(std::make_unique<MemoryDisk>(DiskImage{}, &faults),
                              {.capacity_bytes = 16 << 16, .segment_bytes = 1 << 16, .keeps_all = keeps_all});
    REQUIRE_OK(opened);
    Store& store = **opened;
    const uint64_t room = store.room_bytes();
    is_full = true;
    for (uint64_t n = 0; n < 100; ++n) (void)put_one(store, n), (void)store.maintain();
    CHECK(store.room_bytes() < room);
    is_full = false;
    for (int turn = 0; turn < 64; ++turn) (void)store.maintain();
    CHECK(store.room_bytes() == room);
    for (uint64_t n = 100; n < 130; ++n) REQUIRE_OK(put_one(store, n));
    CHECK(store.stats().segments > 4);
  }
}

TEST_CASE("store: a disk without room for a single segment is refused when the store opens") {
  Faults faults;
  faults.fail_create = [](const std::string& name) { return name.starts_with("seg.") ? ENOSPC : 0; };
  const auto store = open_image({}, &faults);
  REQUIRE_FALSE(store.has_value());
  CHECK(store.error().code == Code::no_space);
}

TEST_CASE("store: a damaged value is an error and is forgotten, and its neighbours are not") {
  Faults faults;
  auto store = open_image({}, &faults);
  REQUIRE_OK(store);
  for (uint64_t n = 0; n < 3; ++n) REQUIRE_OK(put_one(**store, n));
  store->reset();
  DiskImage image = faults.image;
  for (auto& [name, bytes] : image) {  // one byte of block 1, wherever it lies
    const auto value = value_of(1);
    const auto at = std::search(bytes.begin(), bytes.end(), value.begin(), value.end());
    if (at != bytes.end()) *(at + 4999) ^= std::byte{1};
  }
  auto again = open_image(image);
  REQUIRE_OK(again);
  CHECK(get_one(**again, 1) == Code::corrupt);
  CHECK(get_one(**again, 1) == Code::not_found);
  CHECK(get_one(**again, 0) == Code::ok);
  CHECK(get_one(**again, 2) == Code::ok);
  CHECK((*again)->stats().corrupt_blocks == 1);
}

TEST_CASE("store: damaged values are forgotten after the last read of a call has ended") {
  Faults faults;
  auto store = open_image({}, &faults);
  REQUIRE_OK(store);
  for (uint64_t n = 0; n < 2; ++n) REQUIRE_OK(put_one(**store, n));
  store->reset();
  DiskImage image = faults.image;
  for (auto& [name, bytes] : image)
    for (uint64_t n = 0; n < 2; ++n) {
      const auto value = value_of(n);
      const auto at = std::search(bytes.begin(), bytes.end(), value.begin(), value.end());
      if (at != bytes.end()) *(at + 4999) ^= std::byte{1};
    }
  auto again = open_image(image, &faults);
  REQUIRE_OK(again);
  int found = 0;
  faults.fail = [&](const Io& io, const std::string&) {
    for (uint64_t n = 0; n < 2 && io.op == Io::Op::read; ++n) found += (*again)->find(id_of(n)).has_value();
    return 0;
  };
  std::vector<std::byte> room(2 * 5000);
  std::vector<Get> gets;
  for (uint64_t n = 0; n < 2; ++n) gets.push_back({.id = id_of(n), .room = std::span(room).subspan(n * 5000, 5000)});
  (*again)->get(gets);
  CHECK(found == 4);  // both at each of the two reads
  for (uint64_t n = 0; n < 2; ++n) {
    CHECK(gets[n].code == Code::corrupt);
    CHECK(!(*again)->find(id_of(n)));
  }
  CHECK((*again)->stats().corrupt_blocks == 2);
}

TEST_CASE("store: groups that were promised and are gone are reported") {
  Faults faults;
  auto store = open_image({}, &faults);
  REQUIRE_OK(store);
  for (uint64_t n = 0; n < 20; ++n) REQUIRE_OK(put_one(**store, n));
  store->reset();
  DiskImage image = faults.image;
  std::vector<std::byte>& first = image.at("seg.000000");
  first[3 * kPageBytes + 8] ^= std::byte{1};  // header of the second group
  first[first.size() - 1] ^= std::byte{1};    // and the tail of the table
  auto again = open_image(image);
  REQUIRE_OK(again);
  REQUIRE((*again)->restart().damaged.size() == 1);
  CHECK((*again)->restart().damaged[0] == "seg.000000: groups 2 to 4 are lost");
  CHECK(get_one(**again, 0) == Code::ok);
  CHECK(get_one(**again, 1) == Code::not_found);
  CHECK(get_one(**again, 19) == Code::ok);
}

TEST_CASE("store: without its table a segment is read from group to group") {
  Faults faults;
  auto store = open_image({}, &faults);
  REQUIRE_OK(store);
  for (uint64_t n = 0; n < 20; ++n) REQUIRE_OK(put_one(**store, n));
  store->reset();
  DiskImage image = faults.image;
  for (auto& [name, bytes] : image)
    if (name.starts_with("seg.")) bytes[bytes.size() - 1] ^= std::byte{1};
  auto again = open_image(image);
  REQUIRE_OK(again);
  CHECK((*again)->restart().segments_sealed == 0);
  CHECK((*again)->restart().segments_walked == 5);
  for (uint64_t n = 0; n < 20; ++n) CHECK(get_one(**again, n) == Code::ok);
}

TEST_CASE("store: a segment that was cut short is made anew and named") {
  Faults faults;
  auto store = open_image({}, &faults);
  REQUIRE_OK(store);
  for (uint64_t n = 0; n < 20; ++n) REQUIRE_OK(put_one(**store, n));
  store->reset();
  DiskImage image = faults.image;
  image.at("seg.000001").resize(kSegment - 4096);
  auto again = open_image(image);
  REQUIRE_OK(again);
  REQUIRE_FALSE((*again)->restart().damaged.empty());
  CHECK((*again)->restart().damaged[0] == "seg.000001: 61440 bytes, not 65536");
  CHECK(get_one(**again, 0) == Code::ok);
  REQUIRE_OK(put_one(**again, 100));
}

TEST_CASE("store: one superblock is enough, and without both the folder is refused") {
  Faults first, second;
  REQUIRE_OK(open_image({}, &first));
  auto store = open_image(first.image, &second);  // now both are in use
  REQUIRE_OK(store);
  CHECK((*store)->restart().epoch == 2);
  REQUIRE_OK(put_one(**store, 1));
  store->reset();
  for (const char* lost : {"super.a", "super.b"}) {
    CAPTURE(lost);
    DiskImage image = second.image;
    image.at(lost)[20] ^= std::byte{1};
    auto again = open_image(image);
    REQUIRE_OK(again);
    CHECK(get_one(**again, 1) == Code::ok);
    image = second.image;
    image.at(lost).resize(100);
    again = open_image(image);
    REQUIRE_OK(again);
    CHECK(get_one(**again, 1) == Code::ok);
  }
  DiskImage image = second.image;
  image.at("super.a")[20] ^= std::byte{1};
  image.at("super.b")[20] ^= std::byte{1};
  const auto refused = open_image(image);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().mc == err::kStoreCorrupt);
}

TEST_CASE("store: a block that is moved while the store has no free segment is there after a restart") {
  // The power fails when a segment is sealed and the oldest one is not yet erased: four segments, and none is free.
  Faults first, second;
  DiskImage full;
  auto store = open_image({}, &first, 4 * kSegment);
  REQUIRE_OK(store);
  for (uint64_t n = 0; n < 12; ++n) REQUIRE_OK(put_one(**store, n));  // four to a segment
  first.fail = [&](const Io& io, const std::string& name) {
    if (full.empty() && io.op == Io::Op::write && name == "seg.000000") full = first.image;
    return 0;
  };
  REQUIRE_OK(put_one(**store, 12));
  REQUIRE_FALSE(full.empty());
  auto again = open_image(full, &second, 4 * kSegment);
  REQUIRE_OK(again);
  CHECK((*again)->stats().segments_free == 0);
  REQUIRE(get_one(**again, 0) == Code::ok);  // it gets another round
  for (uint64_t n = 20; n < 23; ++n) REQUIRE_OK(put_one(**again, n));
  REQUIRE_OK(put_one(**again, 23, Level::durable, 5 * kPageBytes));  // too long for the segment, and block 0 is not
  CHECK((*again)->stats().moved_blocks == 1);
  auto last = open_image(second.image, nullptr, 4 * kSegment);
  REQUIRE_OK(last);
  CHECK((*last)->restart().damaged.empty());
  CHECK(get_one(**last, 0) == Code::ok);
  CHECK(get_one(**last, 23, 5 * kPageBytes) == Code::ok);
}

TEST_CASE("store: the folder of another format version is refused with both versions") {
  Faults faults;
  REQUIRE_OK(open_image({}, &faults));
  DiskImage image = faults.image;
  std::vector<std::byte>& page = image.at("super.a");
  const uint16_t version = 9;
  const uint32_t zero = 0;
  std::memcpy(page.data() + 4, &version, sizeof version);
  std::memcpy(page.data() + 60, &zero, sizeof zero);
  const uint32_t crc = crc32c(page);
  std::memcpy(page.data() + 60, &crc, sizeof crc);
  const auto refused = open_image(image);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().mc == err::kStoreVersion);
  CHECK(refused.error().what == "superblock: format version 9, this build has 1");
}

TEST_CASE("store: a block of a size that cannot be stored is refused, and the largest is kept") {
  auto store = open_image({});
  REQUIRE_OK(store);
  CHECK((*store)->value_bytes_max() == 13 * kPageBytes);
  REQUIRE_OK(put_one(**store, 1, Level::durable, 13 * kPageBytes));
  CHECK(get_one(**store, 1, 13 * kPageBytes) == Code::ok);
  CHECK(put_one(**store, 2, Level::durable, 13 * kPageBytes + 1).error().code == Code::invalid);
  CHECK(put_one(**store, 2, Level::durable, 0).error().code == Code::invalid);
  CHECK(get_one(**store, 2) == Code::not_found);
}

TEST_CASE("store: a block that is read outlives blocks that are not") {
  auto store = open_image({}, nullptr, 6 * kSegment);
  REQUIRE_OK(store);
  REQUIRE_OK(put_one(**store, 0));
  for (uint64_t n = 1; n < 200; ++n) {
    REQUIRE_OK(put_one(**store, n));
    REQUIRE(get_one(**store, 0) == Code::ok);
  }
  CHECK(get_one(**store, 100) == Code::not_found);
  CHECK((*store)->stats().moved_blocks > 3);
}

TEST_CASE("store: a smaller capacity gives files back when the store opens") {
  Faults faults;
  auto store = open_image({}, &faults);
  REQUIRE_OK(store);
  for (uint64_t n = 0; n < 50; ++n) REQUIRE_OK(put_one(**store, n));
  const uint64_t before = (*store)->stats().segments;
  CHECK(before > 8);
  store->reset();
  auto again = open_image(faults.image, nullptr, 6 * kSegment);
  REQUIRE_OK(again);
  CHECK((*again)->stats().segments == 6);
  CHECK(get_one(**again, 49) == Code::ok);
}

TEST_CASE("store: a put with a wrong checksum of the caller's is found when it is read") {
  auto store = open_image({});
  REQUIRE_OK(store);
  const auto value = value_of(1);
  const Put good{.id = id_of(1), .bytes = value, .crc = crc32c(value)};
  const Put bad{.id = id_of(2), .bytes = value, .crc = crc32c(value) + 1};
  const Put both[] = {good, bad};
  REQUIRE_OK((*store)->put(both, Level::durable));
  CHECK(get_one(**store, 1) == Code::ok);
  CHECK(get_one(**store, 2) == Code::corrupt);
}

TEST_CASE("store: with keeps_all nothing makes way, a full store refuses, and dropped space is found again") {
  Options options{.capacity_bytes = 16 * kSegment, .segment_bytes = kSegment};
  options.keeps_all = true;
  Faults faults;
  auto store = Store::open(std::make_unique<MemoryDisk>(DiskImage{}, &faults), options);
  REQUIRE_OK(store);
  uint64_t put = 0;
  for (Result<void> done; done && put < 1000; put += done.has_value()) {
    done = put_one(**store, put + 1);
    if (!done) CHECK(done.error().code == Code::no_space);
    if (done) (void)(*store)->maintain();
  }
  REQUIRE(put > 30);
  REQUIRE(put < 1000);
  for (uint64_t turn = 0; turn < 2000; ++turn) {
    const uint64_t n = turn * 7 % put + 1;
    const Id128 id = id_of(n);
    REQUIRE_OK((*store)->drop({&id, 1}, Level::written));
    REQUIRE_OK(put_one(**store, n));
  }
  CHECK((*store)->stats().moved_blocks > 100);
  CHECK((*store)->stats().evicted_blocks == 0);
  store->reset();
  auto again = Store::open(std::make_unique<MemoryDisk>(faults.image), options);
  REQUIRE_OK(again);
  for (uint64_t n = 1; n <= put; ++n) CHECK(get_one(**again, n) == Code::ok);
}

TEST_CASE("store: with keeps_all a segment whose blocks cannot be read stays as it is, and loses nothing") {
  Options options{.capacity_bytes = 16 * kSegment, .segment_bytes = kSegment};
  options.keeps_all = true;
  Faults faults;
  auto store = Store::open(std::make_unique<MemoryDisk>(DiskImage{}, &faults), options);
  REQUIRE_OK(store);
  for (uint64_t n = 1; n <= 30; ++n) REQUIRE_OK(put_one(**store, n));
  faults.fail = [](const Io& io, const std::string&) { return io.op == Io::Op::read ? EIO : 0; };
  // Writes go on until no segment is free. Space that cannot be made is an error, and no block goes for it.
  for (int turn = 0; turn < 500; ++turn)
    if (!put_one(**store, 31)) break;
  faults.fail = nullptr;
  for (uint64_t n = 1; n <= 30; ++n) CHECK(get_one(**store, n) == Code::ok);
  REQUIRE_OK(put_one(**store, 32));
}

}  // namespace store_faults
