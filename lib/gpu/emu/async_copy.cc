// cp.async: copies that the issuing lane waits for by groups (PTX ISA 9.0, section 9.7.9.25.3). Bytes are in flight
// from the issue to the wait of the lane that issued the copy, whenever the copy itself ran.
#include <algorithm>

#include "gpu/emu/machine.h"

namespace mc::gpu::emu {
namespace {

/// The copy runs here, the earliest legal moment; the rules keep everybody away from its bytes until the wait.
void copy_now(Warp& w, uint32_t to, const std::byte* from, uint32_t bytes, uint32_t size) {
  std::byte* at = w.cta.shared.data() + to;
  if (bytes > 0) std::memcpy(at, from, bytes);
  std::memset(at + bytes, 0, size - bytes);
}

/// cp.async [to], [from], size{, bytes}. `base` is the shared address; the global one is the last operand.
Flow start_cp_async(Warp& w, const Op& op, uint32_t mask) {
  Cta& cta = w.cta;
  AsyncCopy copy{.mask = mask, .bytes = op.width, .tag = cta.tag()};
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    const uint64_t to = w.word(op.base, lane) + static_cast<uint64_t>(op.offset);
    const uint64_t from = w.wide(op.a[0], lane) + static_cast<uint64_t>(op.second);
    const uint32_t bytes = op.count == 3 ? w.word(op.a[2], lane) : op.width;
    if (to % op.width != 0 || from % op.width != 0)
      return w.fail("alignment", "cp.async of " + std::to_string(op.width) + " bytes to or from an unaligned address",
                    1u << lane);
    if (to > cta.shared.size() || op.width > cta.shared.size() - to)
      return w.fail("bounds", "cp.async to shared " + std::to_string(to) + " of " + std::to_string(cta.shared.size()),
                    1u << lane);
    if (bytes > op.width) return w.fail("bounds", "cp.async with more source bytes than it copies", 1u << lane);
    const std::byte* source = nullptr;
    if (bytes > 0) {
      source = read_global(w, from, bytes, lane);
      if (source == nullptr) return Flow::block;
    }
    if (cta.grid.options.checks)
      if (const Conflict found = cta.shadow.start_copy(w.number, 1u << lane, static_cast<uint32_t>(to), op.width,
                                                       copy.tag, Proxy::generic))
        return w.fail(found, 1u << lane);
    copy.to[lane] = static_cast<uint32_t>(to);
    copy.group[lane] = w.open_group[lane];
    copy_now(w, static_cast<uint32_t>(to), source, bytes, op.width);
    cta.grid.report.counters.async_bytes += bytes;
  }
  w.copies.push_back(copy);
  return Flow::next;
}

Flow commit_copies(Warp& w, const Op&, uint32_t mask) {
  for_lanes(mask, [&](uint32_t lane) { ++w.open_group[lane]; });
  return Flow::next;
}

/// Ends the lanes' copies of all but the newest `left` groups.
void finish_copies(Warp& w, uint32_t mask, uint32_t left, bool open_too) {
  for (AsyncCopy& copy : w.copies)
    for (uint32_t rest = copy.mask & mask; rest != 0; rest &= rest - 1) {
      const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
      if (!open_too && copy.group[lane] + left >= w.open_group[lane]) continue;
      if (w.cta.grid.options.checks) w.cta.shadow.end_copy(w.number, 1u << lane, copy.to[lane], copy.bytes);
      copy.mask &= ~(1u << lane);
    }
  std::erase_if(w.copies, [](const AsyncCopy& copy) { return copy.mask == 0; });
}
Flow wait_group(Warp& w, const Op& op, uint32_t mask) {
  finish_copies(w, mask, op.a[0], false);
  return Flow::next;
}
Flow wait_all(Warp& w, const Op&, uint32_t mask) {
  finish_copies(w, mask, 0, true);
  return Flow::next;
}

template <uint32_t kBytes>
bool decode_copy(Op& op, std::string_view, std::string&) {
  op.width = kBytes;
  return true;
}

constexpr Row kCopyRows[] = {
    {"cp.async.cg.shared.global", "mgi", start_cp_async, decode_copy<16>},
    {"cp.async.cg.shared.global", "mgir", start_cp_async, decode_copy<16>},
    {"cp.async.commit_group", "", commit_copies},
    {"cp.async.wait_group", "i", wait_group},
    {"cp.async.wait_all", "", wait_all},
};

}  // namespace

std::span<const Row> async_rows() {
  return kCopyRows;
}

}  // namespace mc::gpu::emu
