#include "xfer_shm/arenas.h"

#include "base/assert.h"
#include "base/copy_crc.h"
#include "xfer/access.h"

namespace mc::xfer {

ShmFailure ShmArenas::add(const wire::FrameHeader& share, const Fd& arena) {
  if (arenas_.size() >= wire::kXferBuffersMax || arenas_.contains(share.buffer) || share.length == 0)
    return {Code::corrupt, "bad share", "share of buffer " + std::to_string(share.buffer)};
  const bool writable = share.snapshot == static_cast<uint32_t>(AccessClass::landing);
  auto mapped = mem::SharedBuffer::map(arena.get(), share.length, writable);
  if (!mapped)
    return {mapped.error().code == Code::invalid ? Code::corrupt : Code::io, "arena cannot be mapped",
            mapped.error().what};
  auto shared = std::make_shared<mem::SharedBuffer>(std::move(*mapped));
  MC_ASSERT_LE(share.length, shared->size());
  const bool fresh = arenas_.emplace(share.buffer, shared).second;
  MC_ASSERT(fresh);
  fresh_.push_back({share.buffer, shared});
  return {};
}

void ShmArenas::keep(const Descriptor& descriptor) {
  std::erase_if(arenas_, [&](const auto& arena) { return descriptor.find(arena.first) == nullptr; });
}

SliceDone ShmArenas::copy(const Slice& slice) const {
  const auto at = arenas_.find(slice.buffer);
  if (at == arenas_.end())
    return {slice.id, Code::not_found, 0, "shm: buffer " + std::to_string(slice.buffer) + " is not shared (any more)"};
  mem::SharedBuffer& arena = *at->second;
  const size_t bytes = slice.local.size();
  if (!inside(slice.offset, bytes, arena.size()))
    return {slice.id, Code::invalid, 0, "shm: range beyond the end of the arena"};
  SliceDone done{slice.id};
  if (slice.op == Op::read) {
    const std::byte* from = std::as_const(arena).data() + slice.offset;
    if (slice.checksum)
      done.crc32c = copy_crc32c(slice.local.data(), from, bytes);
    else
      copy_bytes(slice.local.data(), from, bytes);
    return done;
  }
  if (!arena.writable()) return {slice.id, Code::invalid, 0, "shm: write to a buffer that peers may only read"};
  copy_bytes(arena.data() + slice.offset, slice.local.data(), bytes);
  return done;
}

}  // namespace mc::xfer
