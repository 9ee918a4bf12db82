#include "gpu/devices.h"

#include <optional>
#include <type_traits>

#include "base/assert.h"
#include "base/errors.h"
#include "base/units.h"
#include "gpu/emulated.h"

namespace mc::gpu {
namespace {

constexpr DeviceRow kRows[] = {
    {"auto", DeviceKind::cpu},
    {"cpu", DeviceKind::cpu},
    {"cuda:N", DeviceKind::cuda, DeviceNumber::index},
    {"emu", DeviceKind::emu},
    {"emu:fault=N", DeviceKind::emu, DeviceNumber::fault},
    {"emu:memory=N", DeviceKind::emu, DeviceNumber::memory},
};
constexpr uint64_t kIndexMax = 1023;
constexpr uint64_t kMemoryMibMax = uint64_t{1} << 20;

std::optional<DeviceChoice> choice_of(const DeviceRow& row, std::string_view number) {
  DeviceChoice out{.kind = row.kind};
  const auto put = [&](auto& field, uint64_t least, uint64_t most) -> std::optional<DeviceChoice> {
    const auto value = parse_u64(number, least, most);
    if (!value) return std::nullopt;
    field = static_cast<std::remove_reference_t<decltype(field)>>(*value);
    return out;
  };
  switch (row.number) {
    case DeviceNumber::none: break;
    case DeviceNumber::index: return put(out.index, 0, kIndexMax);
    case DeviceNumber::fault: return put(out.fault_at, 1, UINT32_MAX);
    case DeviceNumber::memory: return put(out.memory_mib, 1, kMemoryMibMax);
  }
  return out;
}

}  // namespace

std::span<const DeviceRow> device_rows() {
  return kRows;
}

Result<DeviceChoice> parse_device(std::string_view text) {
  std::string names;
  for (const DeviceRow& row : kRows) {
    names += (names.empty() ? "" : ", ") + std::string(row.name);
    const bool has_number = row.number != DeviceNumber::none;
    const std::string_view prefix = row.name.substr(0, row.name.size() - (has_number ? 1 : 0));  // "cuda:"
    if (has_number ? !text.starts_with(prefix) : text != prefix) continue;
    if (const auto choice = choice_of(row, text.substr(prefix.size()))) return *choice;
  }
  return user_error(err::kBadValue, "'" + std::string(text) + "' is no device", "--device",
                    "write one of " + names + "; a GPU is 0 to " + std::to_string(kIndexMax));
}

std::string to_string(const DeviceChoice& choice) {
  MC_ASSERT(choice.index == 0 || choice.kind == DeviceKind::cuda);
  switch (choice.kind) {
    case DeviceKind::cpu: return "cpu";
    case DeviceKind::cuda: return "cuda:" + std::to_string(choice.index);
    case DeviceKind::emu: break;
  }
  if (choice.fault_at > 0) return "emu:fault=" + std::to_string(choice.fault_at);
  if (choice.memory_mib > 0) return "emu:memory=" + std::to_string(choice.memory_mib);
  return "emu";
}

Result<std::unique_ptr<Device>> open_device(const DeviceChoice& choice, uint64_t seed) {
  MC_ASSERT(choice.kind != DeviceKind::cpu);
  if (choice.kind == DeviceKind::cuda) return Device::open(host_driver(), choice.index);
  EmulatedHost host;
  if (choice.fault_at > 0) host.fault = Status::ecc_uncorrectable, host.fault_after = choice.fault_at - 1;
  if (choice.memory_mib > 0) host.memory_bytes = choice.memory_mib * kMiB;
  const auto emulator = std::make_shared<EmulatedDriver>(host);
  emulator->gpu().set_options({.seed = seed});
  return Device::open(emulator, 0);
}

}  // namespace mc::gpu
