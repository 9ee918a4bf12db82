// Global memory, and the instructions that read and write memory one lane at a time (PTX ISA 9.0, sections 9.7.9.8 to
// 9.7.9.12 and 9.7.13.6).
#include <algorithm>

#include "base/assert.h"
#include "gpu/emu/machine.h"

namespace mc::gpu::emu {
namespace {

constexpr uint64_t kGap = 4096;  // unmapped bytes between allocations

enum class Space : uint8_t { generic, global, shared, param };

struct Place {
  Space space = Space::global;
  uint64_t address = 0;
};

Place place_of(const Warp& w, const Op& op, uint32_t lane) {
  Place out{static_cast<Space>(op.variant & 3),
            (op.wide_base ? w.wide(op.base, lane) : w.word(op.base, lane)) + static_cast<uint64_t>(op.offset)};
  if (!op.wide_base) out.address &= 0xffffffffu;
  if (out.space != Space::generic) return out;
  out.space = Space::global;
  if (out.address - kSharedWindow < kWindowBytes) out = {Space::shared, out.address - kSharedWindow};
  if (out.address - kParamWindow < kWindowBytes) out = {Space::param, out.address - kParamWindow};
  return out;
}

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

/// Host bytes of a global access after its checks, or null after a failure.
std::byte* global_bytes(Warp& w, uint64_t address, uint32_t bytes, Access access, uint32_t lane) {
  DeviceMemory::Block* block = w.cta.grid.memory.find(address, bytes);
  if (block == nullptr) {
    w.fail("bounds", std::to_string(bytes) + " bytes at global " + hex(address) + " lie in no allocation", 1u << lane);
    return nullptr;
  }
  const size_t at = address - block->address;
  const uint32_t self = w.cta.number + 1;
  for (size_t word = at / 4; word * 4 < at + bytes && w.cta.grid.options.checks; ++word) {
    const uint32_t writer = block->writer[word];
    uint32_t& reader = block->reader[word];
    const bool other_wrote = writer != 0 && writer != self;
    const bool other_read = access != Access::read && reader != 0 && reader != self;
    if (other_wrote || other_read) {
      w.fail("race",
             "global memory of '" + block->name + "' at byte " + std::to_string(word * 4) + ": another CTA " +
                 (other_wrote ? "wrote" : "read") + " it in this grid",
             1u << lane);
      return nullptr;
    }
    if (access == Access::read)
      reader = reader == 0 || reader == self ? self : DeviceMemory::kManyReaders;
    else
      block->writer[word] = self;
  }
  for (size_t i = at; i < at + bytes && block->undefined > 0; ++i) {
    if (access != Access::write && !block->defined[i]) {
      w.fail("uninitialised", "byte " + std::to_string(i) + " of '" + block->name + "' was never written", 1u << lane);
      return nullptr;
    }
    block->undefined -= block->defined[i] ? 0 : 1;
    block->defined[i] = true;
  }
  return block->bytes.data() + at;
}

/// Host bytes of an access in any space, or null after a failure.
std::byte* bytes_at(Warp& w, const Op& op, uint32_t lane, uint32_t bytes, Access access) {
  const Place place = place_of(w, op, lane);
  if (place.address % bytes != 0) {
    w.fail("alignment", std::to_string(bytes) + " bytes at " + hex(place.address) + " are not aligned", 1u << lane);
    return nullptr;
  }
  if (place.space == Space::global) return global_bytes(w, place.address, bytes, access, lane);
  std::vector<std::byte>& memory = place.space == Space::shared ? w.cta.shared : w.cta.grid.params;
  if (place.address > memory.size() || bytes > memory.size() - place.address) {
    w.fail("bounds",
           std::to_string(bytes) + " bytes at " + hex(place.address) + " lie outside the " +
               std::to_string(memory.size()) + " bytes of " +
               (place.space == Space::shared ? "shared memory" : "parameters"),
           1u << lane);
    return nullptr;
  }
  const auto address = static_cast<uint32_t>(place.address);
  if (place.space == Space::shared && w.cta.grid.options.checks)
    if (const Conflict found = w.cta.shadow.touch(w.number, 1u << lane, address, bytes, access, Proxy::generic)) {
      w.fail(found, 1u << lane);
      return nullptr;
    }
  return memory.data() + address;
}

uint64_t extend(uint64_t value, uint32_t width, bool is_signed) {
  if (!is_signed || width == 8) return value;
  const uint32_t shift = 64 - 8 * width;
  return static_cast<uint64_t>(static_cast<int64_t>(value << shift) >> shift);
}

Flow load(Warp& w, const Op& op, uint32_t mask) {
  const bool is_signed = (op.variant & 4) != 0;
  for (; mask != 0; mask &= mask - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(mask));
    const std::byte* from = bytes_at(w, op, lane, op.width * op.count, Access::read);
    if (from == nullptr) return Flow::block;
    for (uint32_t i = 0; i < op.count; ++i) {
      uint64_t value = 0;
      std::memcpy(&value, from + i * op.width, op.width);
      value = extend(value, op.width, is_signed);
      if (op.wide_value)
        std::memcpy(&w.registers[op.a[i] + 2 * lane], &value, 8);
      else
        w.registers[op.a[i] + lane] = static_cast<uint32_t>(value);
    }
  }
  return Flow::next;
}

Flow store(Warp& w, const Op& op, uint32_t mask) {
  for (; mask != 0; mask &= mask - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(mask));
    std::byte* to = bytes_at(w, op, lane, op.width * op.count, Access::write);
    if (to == nullptr) return Flow::block;
    for (uint32_t i = 0; i < op.count; ++i) {
      const uint64_t value = op.wide_value ? w.wide(op.a[i], lane) : w.word(op.a[i], lane);
      std::memcpy(to + i * op.width, &value, op.width);
    }
  }
  return Flow::next;
}

/// One 32-bit read-modify-write for each lane, in an order that the seed draws.
template <auto kF>
Flow atomic(Warp& w, const Op& op, uint32_t mask) {
  const auto start = static_cast<uint32_t>(w.cta.grid.rng.below(kLanes));
  for (uint32_t i = 0; i < kLanes; ++i) {
    const uint32_t lane = (start + i) % kLanes;
    if ((mask >> lane & 1) == 0) continue;
    std::byte* at = bytes_at(w, op, lane, 4, Access::atomic);
    if (at == nullptr) return Flow::block;
    uint32_t old;
    std::memcpy(&old, at, 4);
    const uint32_t value = kF(old, w.word(op.a[1], lane));
    std::memcpy(at, &value, 4);
    w.registers[op.a[0] + lane] = old;
  }
  return Flow::next;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

/// Modifiers of ld and st: cache hints, space, vector and type.
bool decode_access(Op& op, std::string_view modifiers, std::string& shape, bool is_load) {
  for (std::string_view hint : {".relaxed.gpu", ".weak", ".volatile"}) take(modifiers, hint);
  for (const auto& [name, space] : {std::pair{".global", Space::global},
                                    {".shared::cta", Space::shared},
                                    {".shared", Space::shared},
                                    {".param", Space::param}})
    if (take(modifiers, name)) {
      op.variant = static_cast<uint8_t>(space);
      break;
    }
  for (std::string_view hint : {".nc", ".ca", ".cg", ".cs", ".L1::no_allocate"}) take(modifiers, hint);
  op.count = take(modifiers, ".v2") ? 2 : take(modifiers, ".v4") ? 4 : 1;
  if (modifiers.size() < 3 || modifiers[0] != '.') return false;
  const std::string_view bits = modifiers.substr(2);
  op.width = bits == "8" ? 1 : bits == "16" ? 2 : bits == "32" ? 4 : bits == "64" ? 8 : 0;
  if (op.width == 0 || std::string_view("busf").find(modifiers[1]) == std::string_view::npos) return false;
  if (modifiers[1] == 's') op.variant |= 4;
  // A register may be wider than the type (9.4.1).
  const std::string one = is_load ? "X" : "x";
  const std::string values = op.count == 1   ? one
                             : op.count == 2 ? "{" + one + one + "}"
                                             : "{" + one + one + one + one + "}";
  shape = is_load ? values + "m" : "m" + values;
  return true;
}
bool decode_load(Op& op, std::string_view modifiers, std::string& shape) {
  return decode_access(op, modifiers, shape, true);
}
bool decode_store(Op& op, std::string_view modifiers, std::string& shape) {
  return decode_access(op, modifiers, shape, false) && (op.variant & 3) != static_cast<uint8_t>(Space::param);
}
template <Space kSpace>
bool decode_atomic(Op& op, std::string_view, std::string&) {
  op.variant = static_cast<uint8_t>(kSpace);
  op.count = 1;
  return true;
}

constexpr auto kAtomicOr = [](uint32_t a, uint32_t b) { return a | b; };
constexpr auto kAtomicAdd = [](uint32_t a, uint32_t b) { return a + b; };
constexpr auto kAtomicMax = [](uint32_t a, uint32_t b) { return std::max(a, b); };
constexpr auto kAtomicMin = [](uint32_t a, uint32_t b) { return std::min(a, b); };

constexpr Row kMemoryRows[] = {
    {"ld", "", load, decode_load},
    {"st", "", store, decode_store},
    {"atom.shared.or.b32", "Rmr", atomic<kAtomicOr>, decode_atomic<Space::shared>},
    {"atom.shared.add.u32", "Rmr", atomic<kAtomicAdd>, decode_atomic<Space::shared>},
    {"atom.shared.max.u32", "Rmr", atomic<kAtomicMax>, decode_atomic<Space::shared>},
    {"atom.shared.min.u32", "Rmr", atomic<kAtomicMin>, decode_atomic<Space::shared>},
};

}  // namespace

const std::byte* read_global(Warp& w, uint64_t address, uint32_t bytes, uint32_t lane) {
  return global_bytes(w, address, bytes, Access::read, lane);
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

std::span<const Row> memory_rows() {
  return kMemoryRows;
}

}  // namespace mc::gpu::emu
