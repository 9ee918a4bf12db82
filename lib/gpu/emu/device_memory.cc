// Global memory of the emulated device: allocations, and the checks of an access to them.
#include <algorithm>
#include <bit>

#include "base/assert.h"
#include "gpu/emu/machine.h"

namespace mc::gpu::emu {
namespace {

constexpr uint64_t kGap = 4096;  // unmapped bytes between allocations
constexpr size_t kBits = 64;     // of a word of Block::defined

/// Calls f(word, bits) for the words of Block::defined that the bytes lie in, with their bits in it.
template <class F>
void for_defined(size_t at, size_t bytes, F&& f) {
  for (size_t end = at + bytes; at < end;) {
    const size_t first = at % kBits, count = std::min(kBits - first, end - at);
    f(at / kBits, (count == kBits ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << first);
    at += count;
  }
}

/// Whether the running lane comes after the write of a word in its own grid.
bool sees(const DeviceMemory::Writer& writer, Access access) {
  const Cta& cta = running_cta();
  const Event event{writer.agent, writer.clock, writer.lanes};
  const uint32_t cluster = cta.number / cta.grid.launch.cluster;
  // Words that lanes of one cluster write side by side hold elements of 2 bytes, so only reads are compared.
  if (writer.cta / cta.grid.launch.cluster == cluster)
    return (access != Access::read && writer.cta == cta.number) ||
           cta.order.ordered(running_warp().agent, running().bit(), event);
  for (const Cluster::Acquired& acquired : cta.cluster.acquired) {
    if (!cta.order.ordered(running_warp().agent, running().bit(), acquired.at)) continue;
    const auto known = acquired.known.find(writer.cta / cta.grid.launch.cluster);
    if (known != acquired.known.end() && known->second[writer.agent].covers(writer.clock, writer.lanes)) return true;
  }
  return false;
}

bool knows(uint32_t other_cta) {
  const Cta& cta = running_cta();
  return std::any_of(cta.cluster.acquired.begin(), cta.cluster.acquired.end(), [&](const Cluster::Acquired& acquired) {
    return acquired.known.contains(other_cta / cta.grid.launch.cluster);
  });
}

/// Two CTAs of a grid share a word that one of them writes only by atomics, or behind a release and an acquire.
void check_word(const DeviceMemory::Block& block, size_t word, Access access) {
  const Cta& cta = running_cta();
  const DeviceMemory& memory = cta.grid.memory;
  const DeviceMemory::Reader& reader = block.reader[word];
  const uint32_t written = block.last_write[word];
  const auto refuse = [&](Rule rule, const std::string& text) {
    fail(rule, "global memory of '" + block.name + "' at byte " + std::to_string(word * 4) + ": " + text);
  };
  if (written == memory.grid() && written > 0) {
    const DeviceMemory::Writer& writer = block.writer[word];
    if (writer.in_flight) refuse(Rule::in_flight, "an unfinished bulk store owns it");
    if (!(access == Access::atomic && writer.atomic) && !sees(writer, access))
      refuse(Rule::race, writer.cta == cta.number ? "a lane reads it without order after a write"
                                                  : "another CTA wrote it in this grid");
  } else if (written >= memory.unfinished() && written > 0 && !has_waited_for_grids()) {
    refuse(Rule::dependency, "an earlier grid wrote it, and no griddepcontrol.wait came before");
  }
  if (access != Access::read && memory.is_read_beside(block, word) && !has_waited_for_grids())
    refuse(Rule::dependency, "an earlier grid reads it, and no griddepcontrol.wait came before");
  if (const uint32_t other = memory.unordered(block, word, memory.grid(), access != Access::read); other != 0)
    refuse(Rule::stream_order, memory.order()->describe(other) + " touches it too, and no event orders the two");
  if (access == Access::write && reader.grid == memory.grid() && reader.cta != cta.number &&
      (reader.cta == DeviceMemory::kManyReaders || !knows(reader.cta)))
    refuse(Rule::race, "another CTA read it in this grid");
}

/// True when another lane of the CTA may read the same bytes without a check.
bool check_read(DeviceMemory::Block& block, size_t at, uint32_t bytes) {
  bool is_sound = true;
  const Cta& cta = running_cta();
  const DeviceMemory& memory = cta.grid.memory;
  const uint32_t grid = memory.grid(), before = std::min(memory.unfinished(), grid), self = cta.number;
  // The grids of the last word that was checked: its neighbours have mostly the same ones.
  uint32_t checked_write = UINT32_MAX, checked_read = UINT32_MAX;
  for (size_t word = at / 4, end = (at + bytes + 3) / 4; word < end; ++word) {
    DeviceMemory::Reader& reader = block.reader[word];
    const bool read_here = reader.grid == grid;
    // The first read of this grid has checked the order after an earlier write for all its reads.
    const bool is_checked = read_here && block.last_write[word] < before;
    is_sound = is_sound && block.last_write[word] < before;
    if (is_checked && (reader.cta == self || reader.cta == DeviceMemory::kManyReaders)) continue;
    if (!is_checked && (block.last_write[word] != checked_write || reader.grid != checked_read)) {
      check_word(block, word, Access::read);
      if (!memory.note_read(block, word, grid) && block.last_write[word] < before)
        checked_write = block.last_write[word], checked_read = reader.grid;
    }
    reader = {grid, read_here && reader.cta != self ? DeviceMemory::kManyReaders : self};
  }
  return is_sound;
}

void check_write(DeviceMemory::Block& block, size_t at, uint32_t bytes, Access access) {
  const Cta& cta = running_cta();
  const Event now = cta.order.now(running_warp().agent, running().bit());
  cta.grid.memory.note_write();
  for (size_t word = at / 4; word * 4 < at + bytes; ++word) {
    check_word(block, word, access);
    block.last_write[word] = cta.grid.memory.grid();
    block.writer[word] = {cta.number, now.agent, now.clock, now.lanes, access == Access::atomic, false};
  }
}

}  // namespace

std::byte* global_bytes(uint64_t address, uint32_t bytes, Access access) {
  const Cta& cta = running_cta();
  const Grid& grid = cta.grid;
  SoundReads& sound = cta.cluster.reads[cta.rank];
  SoundReads::Read& last = sound.last[address / 16 % std::size(sound.last)];
  if (access == Access::read && last.address == address && last.bytes == bytes && last.writes == grid.memory.writes())
    return last.at;
  DeviceMemory::Block* block = grid.memory.find(address, bytes);
  if (block == nullptr)
    fail(Rule::bounds, std::to_string(bytes) + " bytes at global " + hex(address) + " lie in no allocation");
  const size_t at = address - block->address;
  MC_ASSERT_LE(at + bytes, block->last_write.size() * 4);
  const bool is_checked = grid.options.checks || grid.options.global_checks;
  const bool is_sound = is_checked && access == Access::read && check_read(*block, at, bytes);
  if (is_checked && access != Access::read) check_write(*block, at, bytes, access);
  if (block->undefined > 0) {
    if (access == Access::write)
      DeviceMemory::define(*block, at, bytes);
    else if (const size_t first = DeviceMemory::first_undefined(*block, at, bytes); first < at + bytes)
      fail(Rule::uninitialised, "byte " + std::to_string(first) + " of '" + block->name + "' was never written");
  }
  std::byte* out = block->bytes.at(at, bytes);
  if (is_sound) last = {address, grid.memory.writes(), bytes, out};
  return out;
}

uint64_t DeviceMemory::allocate(size_t bytes, std::string name) {
  auto block = std::make_unique<Block>();
  block->address = next_;
  next_ = (next_ + bytes + kGap + 255) / 256 * 256;  // never used again: a stale address stays unmapped
  block->name = std::move(name);
  block->bytes = PoisonedBytes(bytes);
  block->defined = ZeroedArray<uint64_t>((bytes + kBits - 1) / kBits);
  block->undefined = bytes;
  block->last_write = ZeroedArray<uint32_t>((bytes + 3) / 4);
  block->writer = ZeroedArray<Writer>((bytes + 3) / 4);
  block->reader = ZeroedArray<Reader>((bytes + 3) / 4);
  blocks_.push_back(std::move(block));
  return blocks_.back()->address;
}

void DeviceMemory::release(uint64_t address) {
  std::erase_if(blocks_, [&](const auto& block) { return block->address == address; });
}

const DeviceMemory::Block* DeviceMemory::find(uint64_t address, size_t bytes) const {
  const auto holds = [&](const Block& block) {
    return address >= block.address && bytes <= block.bytes.size() &&
           address - block.address <= block.bytes.size() - bytes;
  };
  // Blocks lie a gap apart, so that no two share a unit of it.
  uint32_t& found = found_[address / kGap % std::size(found_)];
  if (found < blocks_.size() && holds(*blocks_[found])) return blocks_[found].get();
  for (size_t i = 0; i < blocks_.size(); ++i)
    if (holds(*blocks_[i])) {
      found = static_cast<uint32_t>(i);
      return blocks_[i].get();
    }
  return nullptr;
}

DeviceMemory::Block* DeviceMemory::find(uint64_t address, size_t bytes) {
  return const_cast<Block*>(std::as_const(*this).find(address, bytes));
}

void DeviceMemory::write(uint64_t address, std::span<const std::byte> from) {
  Block* block = find(address, from.size());
  MC_ASSERT(block != nullptr);
  const size_t at = address - block->address;
  std::copy(from.begin(), from.end(), block->bytes.at(at, from.size()));
  define(*block, at, from.size());
}

void DeviceMemory::define(Block& block, size_t at, size_t bytes) {
  MC_ASSERT_LE(at + bytes, block.bytes.size());
  if (block.undefined == 0) return;
  for_defined(at, bytes, [&](size_t word, uint64_t bits) {
    const uint64_t fresh = bits & ~block.defined[word];
    if (fresh == 0) return;
    block.undefined -= static_cast<size_t>(std::popcount(fresh));
    block.defined[word] |= bits;
  });
}

size_t DeviceMemory::first_undefined(const Block& block, size_t at, size_t bytes) {
  size_t out = at + bytes;
  for_defined(at, bytes, [&](size_t word, uint64_t bits) {
    const uint64_t missing = bits & ~block.defined[word];
    if (missing != 0) out = std::min(out, word * kBits + static_cast<size_t>(std::countr_zero(missing)));
  });
  return out;
}

void DeviceMemory::read(uint64_t address, std::span<std::byte> to) const {
  const Block* block = find(address, to.size());
  MC_ASSERT(block != nullptr);
  std::copy_n(block->bytes.at(address - block->address, to.size()), to.size(), to.begin());
}

bool DeviceMemory::ends_before(uint32_t earlier, uint32_t self) const {
  if (order_ == nullptr) return true;
  auto& known = ordered_[earlier % std::size(ordered_)];
  const std::pair pair(earlier, self);
  if (pair == known) return true;
  if (!order_->ends_before(earlier)) return false;
  known = pair;
  return true;
}

uint32_t DeviceMemory::unordered(const Block& block, size_t word, uint32_t self, bool writes) const {
  if (order_ == nullptr) return 0;
  const uint32_t writer = block.last_write[word];
  if (writer != 0 && writer != self && !ends_before(writer, self)) return writer;
  if (!writes) return 0;
  const uint32_t reader = block.reader[word].grid;
  if (reader != 0 && reader != self && !ends_before(reader, self)) return reader;
  if (block.beside.empty()) return 0;
  if (const auto beside = block.beside.find(word); beside != block.beside.end())
    for (const uint32_t grid : beside->second)
      if (grid != self && !ends_before(grid, self)) return grid;
  return 0;
}

/// A read that is ordered behind the last one takes its place: what comes behind the new one comes behind both.
bool DeviceMemory::note_read(Block& block, size_t word, uint32_t self) const {
  const uint32_t last = block.reader[word].grid;
  const auto is_over = [&](uint32_t grid) { return grid < unfinished_ && ends_before(grid, self); };
  if (last == 0 || last == self || is_over(last)) return false;
  std::vector<uint32_t>& grids = block.beside[word];
  std::erase_if(grids, is_over);
  grids.push_back(last);
  return true;
}

bool DeviceMemory::is_read_beside(const Block& block, size_t word) const {
  if (unfinished_ == grid_) return false;
  const auto is_beside = [&](uint32_t grid) { return grid != 0 && grid >= unfinished_ && grid < grid_; };
  if (is_beside(block.reader[word].grid)) return true;
  const auto beside = block.beside.find(word);
  return beside != block.beside.end() && std::any_of(beside->second.begin(), beside->second.end(), is_beside);
}

void DeviceMemory::start_grid(bool programmatic) {
  // A grid that did not wait may end before those before it have.
  const uint32_t first = waited_ ? grid_ : unfinished_;
  ++grid_;
  unfinished_ = programmatic ? std::max(first, 1u) : grid_;
  waited_ = !programmatic;
}

}  // namespace mc::gpu::emu
