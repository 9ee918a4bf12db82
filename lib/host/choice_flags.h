// Flags whose values are the rows of a table, so that a new row is at once a value of its flag: policies and admissions
// (sched), transports, devices, and the kernels of attention and of the other operators.
#pragma once

#include <string_view>
#include <vector>

#include "base/cli.h"

namespace mc::flags {

std::vector<std::string_view> policy_names();
std::vector<std::string_view> admission_names();
std::vector<std::string_view> transport_names();
/// Variants of the attention and of the matrix kernels of a CPU, and what multiplies on a GPU, each name once.
std::vector<std::string_view> kernel_names();

inline constexpr Flag kTransport{.name = "transport",
                                 .kind = FlagKind::choice,
                                 .value = "T",
                                 .fallback = "auto",
                                 .help = "how KV moves: shm on one host, else rdma where a device is usable, else tcp",
                                 .choices = "auto",
                                 .table = transport_names};
/// MC1002 for a text that gpu::parse_devices() does not read.
Result<void> check_device(std::string_view value);
inline constexpr Flag kDevice{
    .name = "device",
    .value = "D",
    .fallback = "auto",
    .help = "cpu (auto), a GPU as cuda:N, GPUs as cuda:0-3, or emu",
    .check = check_device};
inline constexpr Flag kKernels{.name = "kernels",
                               .kind = FlagKind::choice,
                               .value = "V",
                               .fallback = "auto",
                               .help = "force one variant; on a GPU: what multiplies matrices",
                               .choices = "auto",
                               .table = kernel_names};

}  // namespace mc::flags
