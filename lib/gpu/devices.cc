#include "gpu/devices.h"

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "base/units.h"
#include "gpu/emulated.h"
#include "gpu/emulated_nccl.h"
#include "gpu/libnccl.h"

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

/// The GPUs of "cuda:0-3"; none: the text is no such range.
std::vector<DeviceChoice> range_of(std::string_view text) {
  constexpr std::string_view kPrefix = "cuda:";
  const size_t dash = text.find('-');
  if (!text.starts_with(kPrefix) || dash == std::string_view::npos) return {};
  const auto first = parse_u64(text.substr(kPrefix.size(), dash - kPrefix.size()), 0, kIndexMax);
  const auto last = parse_u64(text.substr(dash + 1), 0, kIndexMax);
  if (!first || !last || *last <= *first) return {};
  std::vector<DeviceChoice> out;
  for (uint64_t index = *first; index <= *last; ++index)
    out.push_back({.kind = DeviceKind::cuda, .index = static_cast<int>(index)});
  return out;
}

Result<void> check_list(std::span<const DeviceChoice> choices, std::string_view text) {
  const auto refuse = [&](const std::string& why, const std::string& next) {
    return user_error(err::kBadValue, "'" + std::string(text) + "' " + why, "--device", next);
  };
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].kind == DeviceKind::cpu)
      return refuse("lists the CPU beside other devices", "list GPUs: cuda:0,cuda:1");
    if (choices[i].kind != choices[0].kind)
      return refuse("lists GPUs of the host and of the emulator", "list GPUs of one kind: cuda:0,cuda:1 or emu,emu");
    const auto others = choices.first(i);
    if (choices[i].kind == DeviceKind::cuda && std::ranges::find(others, choices[i]) != others.end())
      return refuse("lists " + to_string(choices[i]) + " twice", "list each GPU once: it computes one part of a model");
  }
  if (choices.size() > kDevicesMax)
    return refuse("lists " + std::to_string(choices.size()) + " GPUs",
                  "list at most " + std::to_string(kDevicesMax) + " GPUs of one host");
  return {};
}

EmulatedHost emulated_host(const DeviceChoice& choice) {
  EmulatedHost host;
  if (choice.fault_at > 0) host.fault = Status::ecc_uncorrectable, host.fault_after = choice.fault_at - 1;
  if (choice.memory_mib > 0) host.memory_bytes = choice.memory_mib * kMiB;
  return host;
}

std::shared_ptr<EmulatedDriver> open_emulator(const EmulatedHost& host, uint64_t seed) {
  auto emulator = std::make_shared<EmulatedDriver>(host);
  emulator->gpu().set_options({.seed = seed});
  return emulator;
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
                    "write one of " + names + "; a GPU is 0 to " + std::to_string(kIndexMax) +
                        "; several GPUs are cuda:0,cuda:1 or cuda:0-3");
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

Result<std::vector<DeviceChoice>> parse_devices(std::string_view text) {
  std::vector<DeviceChoice> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    begin = end + 1;
    if (const auto range = range_of(item); !range.empty()) {
      out.insert(out.end(), range.begin(), range.end());
      continue;
    }
    MC_TRY(choice, parse_device(item));
    out.push_back(choice);
  }
  if (out.size() > 1) MC_CHECK(check_list(out, text));
  return out;
}

std::string to_string(std::span<const DeviceChoice> choices) {
  std::string out;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) out += ',';
    out += to_string(choices[i]);
    size_t last = i;  // of a row of GPUs
    while (last + 1 < choices.size() && choices[i].kind == DeviceKind::cuda &&
           choices[last + 1].index == choices[last].index + 1)
      ++last;
    if (last > i) out.append("-").append(std::to_string(choices[last].index));
    i = last;
  }
  return out;
}

Result<std::unique_ptr<Device>> open_device(const DeviceChoice& choice, uint64_t seed) {
  MC_ASSERT(choice.kind != DeviceKind::cpu);
  if (choice.kind == DeviceKind::cuda) return Device::open(host_driver(), choice.index);
  return Device::open(open_emulator(emulated_host(choice), seed), 0);
}

Result<std::unique_ptr<DeviceGroup>> open_devices(std::span<const DeviceChoice> choices, uint64_t seed) {
  MC_ASSERT(!choices.empty());
  std::vector<std::unique_ptr<Device>> devices;
  if (choices.size() == 1) {
    MC_TRY(device, open_device(choices[0], seed));
    return DeviceGroup::of(std::move(device));
  }
  std::vector<std::shared_ptr<EmulatedDriver>> emulators;
  for (size_t i = 0; i < choices.size(); ++i) {
    MC_ASSERT(choices[i].kind != DeviceKind::cpu);
    if (choices[i].kind == DeviceKind::cuda) {
      MC_TRY(device, Device::open(host_driver(), choices[i].index));
      devices.push_back(std::move(device));
      continue;
    }
    EmulatedHost host = emulated_host(choices[i]);
    host.devices = static_cast<int>(choices.size());
    host.name = "emu[" + std::to_string(i) + "]";
    emulators.push_back(open_emulator(host, seed + i));
    MC_TRY(device, Device::open(emulators.back(), static_cast<int>(i)));
    devices.push_back(std::move(device));
  }
  std::unique_ptr<Nccl> nccl = emulators.empty() ? host_nccl() : std::make_unique<EmulatedNccl>(std::move(emulators));
  return DeviceGroup::open(to_string(choices), std::move(devices), std::move(nccl));
}

}  // namespace mc::gpu
