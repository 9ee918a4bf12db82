// links: store
// rounds: 10000
// A store whose segment holds hostile bytes: it opens or says why not, and what it gives out has the CRC that it
// claims. Each input is tried as it is and once more with the checksums of its pages put right, to get behind that
// door.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/hash.h"
#include "fuzz_target.h"
#include "store/disk_memory.h"
#include "store/pages.h"
#include "store/store.h"
#include "wire/store_format.h"

namespace mc::store_fuzz {
namespace {

using namespace mc::store;

constexpr uint64_t kSegment = wire::kStoreSegmentBytesMin;

/// The files of an empty store of one id, made once.
const DiskImage& good_image() {
  static const DiskImage kImage = [] {
    DiskImage image;
    wire::StoreSuper super{.segment_bytes = kSegment, .epoch = 5};
    super.store.bytes.fill(0x5a);
    std::vector<std::byte> page(kPageBytes);
    encode(super, wire::StorePage(page.data(), kPageBytes));
    image["super.a"] = page;
    image["super.b"] = std::vector<std::byte>(kPageBytes);
    return image;
  }();
  return kImage;
}

void try_image(DiskImage image) {
  auto opened = Store::open(std::make_unique<MemoryDisk>(std::move(image)), {.capacity_bytes = 4 * kSegment});
  if (!opened) {
    if (opened.error().what.empty()) std::abort();
    return;
  }
  Store& store = **opened;
  std::vector<Id128> ids;
  store.for_each([&](const Id128& id, uint32_t) { ids.push_back(id); });
  std::vector<std::byte> room(kSegment);
  for (const Id128& id : ids) {
    Get get{.id = id, .room = room};
    store.get({&get, 1});
    if (get.code != Code::ok && get.code != Code::corrupt) std::abort();
  }
  const std::vector<std::byte> value(5000, std::byte{7});
  const Put put{.id = ids.empty() ? Id128{{1}} : ids.front(), .bytes = value};
  if (!store.put({&put, 1}, Level::durable)) std::abort();  // the log goes on behind whatever was there
  Get get{.id = put.id, .room = room};
  store.get({&get, 1});
  if (get.code != Code::ok || get.bytes != value.size() || room[4999] != std::byte{7}) std::abort();
}

/// The page's checksum, as lib/wire/store_format.h says.
void seal(std::span<std::byte> page) {
  uint32_t crc = 0;
  std::memcpy(page.data() + 60, &crc, sizeof crc);
  crc = crc32c(page);
  std::memcpy(page.data() + 60, &crc, sizeof crc);
}

}  // namespace

FUZZ_TARGET(store) {
  // The input is pages of 128 bytes: the head of each page of the segment. The rest of a page is zeros.
  DiskImage image = good_image();
  std::vector<std::byte> segment(kSegment);
  for (size_t page = 0; page < kSegment / kPageBytes && page * 128 < size; ++page)
    std::memcpy(segment.data() + page * kPageBytes, data + page * 128, std::min<size_t>(128, size - page * 128));
  image["seg.000000"] = segment;
  try_image(image);
  for (size_t page = 0; page < kSegment / kPageBytes; ++page)
    seal(std::span(segment).subspan(page * kPageBytes, kPageBytes));
  image["seg.000000"] = segment;
  try_image(image);
  // A superblock made of the input.
  std::vector<std::byte> super(kPageBytes);
  if (size > 0) std::memcpy(super.data(), data, std::min(size, super.size()));
  seal(super);
  image = good_image();
  image["super.b"] = super;
  try_image(std::move(image));
  return 0;
}

}  // namespace mc::store_fuzz
