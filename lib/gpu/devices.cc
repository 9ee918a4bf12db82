#include "gpu/devices.h"

#include "base/assert.h"
#include "base/errors.h"
#include "base/units.h"
#include "gpu/emulated.h"

namespace mc::gpu {
namespace {

constexpr DeviceRow kRows[] = {
    {"auto", DeviceKind::cpu}, {"cpu", DeviceKind::cpu},         {"cuda:N", DeviceKind::cuda},
    {"emu", DeviceKind::emu},  {"emu:fault=N", DeviceKind::emu},
};
constexpr uint64_t kIndexMax = 1023;

constexpr bool has_number(const DeviceRow& row) {
  return row.name.ends_with('N');
}

DeviceChoice choice_of(const DeviceRow& row, uint64_t number) {
  if (row.kind == DeviceKind::cuda) return {.kind = row.kind, .index = static_cast<int>(number)};
  return {.kind = row.kind, .fault_at = number};
}

}  // namespace

std::span<const DeviceRow> device_rows() {
  return kRows;
}

Result<DeviceChoice> parse_device(std::string_view text) {
  std::string names;
  for (const DeviceRow& row : kRows) {
    names += (names.empty() ? "" : ", ") + std::string(row.name);
    if (text == row.name && !has_number(row)) return choice_of(row, 0);
    const std::string_view prefix = row.name.substr(0, row.name.size() - 1);  // "cuda:"
    if (!has_number(row) || !text.starts_with(prefix)) continue;
    const bool is_index = row.kind == DeviceKind::cuda;
    if (const auto number = parse_u64(text.substr(prefix.size()), is_index ? 0 : 1, is_index ? kIndexMax : UINT32_MAX))
      return choice_of(row, *number);
  }
  return user_error(err::kBadValue, "'" + std::string(text) + "' is no device", "--device",
                    "write one of " + names + "; a GPU is 0 to " + std::to_string(kIndexMax));
}

std::string to_string(const DeviceChoice& choice) {
  MC_ASSERT(choice.index == 0 || choice.kind == DeviceKind::cuda);
  switch (choice.kind) {
    case DeviceKind::cpu: return "cpu";
    case DeviceKind::emu: return choice.fault_at == 0 ? "emu" : "emu:fault=" + std::to_string(choice.fault_at);
    case DeviceKind::cuda: break;
  }
  return "cuda:" + std::to_string(choice.index);
}

Result<std::unique_ptr<Device>> open_device(const DeviceChoice& choice, uint64_t seed) {
  MC_ASSERT(choice.kind != DeviceKind::cpu);
  if (choice.kind == DeviceKind::cuda) return Device::open(host_driver(), choice.index);
  EmulatedHost host;
  if (choice.fault_at > 0) host.fault = Status::ecc_uncorrectable, host.fault_after = choice.fault_at - 1;
  const auto emulator = std::make_shared<EmulatedDriver>(host);
  emulator->gpu().set_options({.seed = seed});
  return Device::open(emulator, 0);
}

}  // namespace mc::gpu
