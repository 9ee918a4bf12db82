// Global memory of the emulated device: allocations, and the checks of an access to them.
#include <algorithm>

#include "base/assert.h"
#include "gpu/emu/machine.h"

namespace mc::gpu::emu {
namespace {

constexpr uint64_t kGap = 4096;  // unmapped bytes between allocations

/// Two CTAs of a grid do not share a word that one of them writes.
void check_sharing(DeviceMemory::Block& block, size_t at, uint32_t bytes, Access access) {
  const uint32_t self = running_cta().number + 1;
  for (size_t word = at / 4; word * 4 < at + bytes; ++word) {
    const uint32_t writer = block.writer[word];
    uint32_t& reader = block.reader[word];
    const bool other_wrote = writer != 0 && writer != self;
    const bool other_read = access != Access::read && reader != 0 && reader != self;
    if (other_wrote || other_read)
      fail("race", "global memory of '" + block.name + "' at byte " + std::to_string(word * 4) + ": another CTA " +
                       (other_wrote ? "wrote" : "read") + " it in this grid");
    if (access == Access::read)
      reader = reader == 0 || reader == self ? self : DeviceMemory::kManyReaders;
    else
      block.writer[word] = self;
  }
}

}  // namespace

std::byte* global_bytes(uint64_t address, uint32_t bytes, Access access) {
  const Grid& grid = running_cta().grid;
  DeviceMemory::Block* block = grid.memory.find(address, bytes);
  if (block == nullptr)
    fail("bounds", std::to_string(bytes) + " bytes at global " + hex(address) + " lie in no allocation");
  const size_t at = address - block->address;
  if (grid.options.checks) check_sharing(*block, at, bytes, access);
  for (size_t i = at; i < at + bytes && block->undefined > 0; ++i) {
    if (access != Access::write && !block->defined[i])
      fail("uninitialised", "byte " + std::to_string(i) + " of '" + block->name + "' was never written");
    block->undefined -= block->defined[i] ? 0 : 1;
    block->defined[i] = true;
  }
  return block->bytes.data() + at;
}

uint64_t DeviceMemory::allocate(size_t bytes, std::string name) {
  auto block = std::make_unique<Block>();
  block->address = next_;
  next_ = (next_ + bytes + kGap + 255) / 256 * 256;  // never used again: a stale address stays unmapped
  block->name = std::move(name);
  block->bytes.resize(bytes, std::byte{0xff});  // NaN in every real type
  block->defined.resize(bytes);
  block->undefined = bytes;
  block->writer.resize((bytes + 3) / 4);
  block->reader.resize((bytes + 3) / 4);
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
  if (last_ < blocks_.size() && holds(*blocks_[last_])) return blocks_[last_].get();
  for (size_t i = 0; i < blocks_.size(); ++i)
    if (holds(*blocks_[i])) {
      last_ = i;
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
  std::copy(from.begin(), from.end(), block->bytes.begin() + static_cast<std::ptrdiff_t>(at));
  for (size_t i = at; i < at + from.size() && block->undefined > 0; ++i) {
    block->undefined -= block->defined[i] ? 0 : 1;
    block->defined[i] = true;
  }
}

void DeviceMemory::read(uint64_t address, std::span<std::byte> to) const {
  const Block* block = find(address, to.size());
  MC_ASSERT(block != nullptr);
  std::copy_n(block->bytes.begin() + static_cast<std::ptrdiff_t>(address - block->address), to.size(), to.begin());
}

void DeviceMemory::start_grid() {
  for (auto& block : blocks_) {
    std::fill(block->writer.begin(), block->writer.end(), 0u);
    std::fill(block->reader.begin(), block->reader.end(), 0u);
  }
}

}  // namespace mc::gpu::emu
