// The values of --device as one table, which the parser reads.
//
//   auto     the CPU, until the GPU path has been run and measured on a GPU
//   cpu      the CPU
//   cuda:N   GPU number N of the host, through the NVIDIA driver
//   emu      the GPU path in the emulator of lib/gpu/emu: a check of the path, far too slow to serve
//   emu:fault=N    the emulator, whose GPU fails with an ECC error at its N-th copy, fill or kernel
//   emu:memory=N   the emulator, whose GPU has N MiB of memory; both are for rehearsals
//
// Several GPUs of the host share one model: cuda:0,cuda:1 or cuda:0-1. In such a list each emu is a GPU of its own.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gpu/device_group.h"
#include "gpu/gpu.h"

namespace mc::gpu {

/// The meaning of N in the name of a row.
enum class DeviceNumber : uint8_t { none, index, fault, memory };

struct DeviceRow {
  std::string_view name;  // a trailing N stands for the number
  DeviceKind kind = DeviceKind::cpu;
  DeviceNumber number = DeviceNumber::none;
};
/// For tests.
std::span<const DeviceRow> device_rows();

/// A value of --device after `auto` is decided.
struct DeviceChoice {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;            // of cuda:N
  uint64_t fault_at = 0;    // of emu:fault=N; 0: no fault
  uint64_t memory_mib = 0;  // of emu:memory=N; 0: as much as the emulated GPU has
  bool operator==(const DeviceChoice&) const = default;
};
/// MC1002 quotes the text and lists the values.
Result<DeviceChoice> parse_device(std::string_view text);
/// The text that parse_device() reads as this choice: "cpu", "cuda:0", "emu".
std::string to_string(const DeviceChoice& choice);

/// A list of values, which has one element unless it names GPUs. MC1002 as well when a GPU stands twice, when the list
/// mixes kinds, and when it has more than kDevicesMax GPUs.
Result<std::vector<DeviceChoice>> parse_devices(std::string_view text);
/// "cpu", "cuda:0-3", "emu,emu"
std::string to_string(std::span<const DeviceChoice> choices);
constexpr size_t kDevicesMax = 16;

/// Opens a device that is not the CPU. `seed` draws the order of streams on the emulator. Errors: those of
/// Device::open.
Result<std::unique_ptr<Device>> open_device(const DeviceChoice& choice, uint64_t seed = 0);
/// Likewise all devices of a list. Errors: those of DeviceGroup::open as well.
Result<std::unique_ptr<DeviceGroup>> open_devices(std::span<const DeviceChoice> choices, uint64_t seed = 0);

}  // namespace mc::gpu
