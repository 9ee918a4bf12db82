#include "store/superblock.h"

#include <algorithm>
#include <array>

#include "base/errors.h"

namespace mc::store {
namespace {

constexpr std::array<const char*, 2> kSuperNames = {"super.a", "super.b"};

struct SuperSlot {
  FileId file = 0;
  bool good = false;
  wire::StoreSuper super;
};

Result<SuperSlot> open_slot(Disk& disk, const std::vector<std::string>& names, const char* name, Access access) {
  SuperSlot slot;
  if (!std::binary_search(names.begin(), names.end(), name)) {
    if (access == Access::read_only) return slot;
    MC_TRY(made, disk.create(name, kPageBytes));
    slot.file = made;
    return slot;
  }
  MC_TRY(opened, disk.open(name));
  slot.file = opened;
  if (disk.size(opened) < kPageBytes) {  // cut short: it is made again
    if (access == Access::read_only) return slot;
    MC_CHECK(disk.remove(name, opened));
    MC_TRY(made, disk.create(name, kPageBytes));
    slot.file = made;
    return slot;
  }
  PageBuffer buffer;
  const auto page = buffer.room(kPageBytes);
  MC_CHECK(read_pages(disk, name, slot.file, 0, page));
  auto super = wire::parse_store_super(wire::ConstStorePage(page.data(), kPageBytes));
  if (!super && super.error().code == Code::unsupported) return as_user_error(err::kStoreVersion, super.error());
  slot.good = super.has_value();
  if (super) slot.super = *super;
  return slot;
}

}  // namespace

Result<wire::StoreSuper> open_superblocks(Disk& disk, const wire::StoreSuper& fresh, Access access) {
  MC_TRY(names, disk.list());
  const bool used = std::any_of(names.begin(), names.end(), [](const auto& name) { return name.starts_with("seg."); });
  std::array<SuperSlot, 2> slots;
  for (size_t i = 0; i < slots.size(); ++i) {
    MC_TRY(slot, open_slot(disk, names, kSuperNames[i], access));
    slots[i] = slot;
  }
  size_t newest = slots[1].good && (!slots[0].good || slots[1].super.epoch > slots[0].super.epoch) ? 1 : 0;
  wire::StoreSuper super = slots[newest].super;
  if (!slots[newest].good) {
    if (used) return user_error(err::kStoreCorrupt, "neither super.a nor super.b can be read, but segments are there");
    super = fresh;
    newest = 1;  // the first one is written to super.a
  }
  if (access == Access::read_only) return super;
  ++super.epoch;
  const size_t next = 1 - newest;
  PageBuffer buffer;
  const auto page = buffer.room(kPageBytes);
  encode(super, wire::StorePage(page.data(), kPageBytes));
  MC_CHECK(write_pages(disk, kSuperNames[next], slots[next].file, 0, page));
  MC_CHECK(flush_file(disk, kSuperNames[next], slots[next].file));
  return super;
}

}  // namespace mc::store
