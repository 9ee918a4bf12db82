#include "gpu/devices.h"

#include "base/assert.h"
#include "base/errors.h"
#include "base/units.h"
#include "gpu/emulated.h"

namespace mc::gpu {
namespace {

constexpr DeviceRow kRows[] = {
    {"auto", DeviceKind::cpu},
    {"cpu", DeviceKind::cpu},
    {"cuda:N", DeviceKind::cuda},
    {"emu", DeviceKind::emu},
};
constexpr std::string_view kNumber = ":N";
constexpr uint64_t kIndexMax = 1023;

}  // namespace

std::span<const DeviceRow> device_rows() {
  return kRows;
}

Result<DeviceChoice> parse_device(std::string_view text) {
  std::string names;
  for (const DeviceRow& row : kRows) {
    names += (names.empty() ? "" : ", ") + std::string(row.name);
    if (text == row.name && !row.name.ends_with(kNumber)) return DeviceChoice{row.kind, 0};
    const std::string_view prefix = row.name.substr(0, row.name.size() - 1);  // "cuda:"
    if (!row.name.ends_with(kNumber) || !text.starts_with(prefix)) continue;
    if (const auto index = parse_u64(text.substr(prefix.size()), 0, kIndexMax))
      return DeviceChoice{row.kind, static_cast<int>(*index)};
  }
  return user_error(err::kBadValue, "'" + std::string(text) + "' is no device", "--device",
                    "write one of " + names + "; N is 0 to " + std::to_string(kIndexMax));
}

std::string to_string(const DeviceChoice& choice) {
  MC_ASSERT(choice.index == 0 || choice.kind == DeviceKind::cuda);
  switch (choice.kind) {
    case DeviceKind::cpu: return "cpu";
    case DeviceKind::emu: return "emu";
    case DeviceKind::cuda: break;
  }
  return "cuda:" + std::to_string(choice.index);
}

Result<std::unique_ptr<Device>> open_device(const DeviceChoice& choice, uint64_t seed) {
  MC_ASSERT(choice.kind != DeviceKind::cpu);
  if (choice.kind == DeviceKind::cuda) return Device::open(host_driver(), choice.index);
  const auto emulator = std::make_shared<EmulatedDriver>();
  emulator->gpu().set_options({.seed = seed});
  return Device::open(emulator, 0);
}

}  // namespace mc::gpu
