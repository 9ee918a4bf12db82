#include "host/choice_flags.h"

#include <algorithm>

#include "attn/attn.h"
#include "gpu/devices.h"
#include "gpu/matmul.h"
#include "ops/ops.h"
#include "sched/policy.h"
#include "transports/transports.h"

namespace mc::flags {

std::vector<std::string_view> policy_names() {
  return names_of<sched::policies>();
}

std::vector<std::string_view> admission_names() {
  return names_of<sched::admissions>();
}

std::vector<std::string_view> transport_names() {
  std::vector<std::string_view> names;
  for (const xfer::TransportEntry* entry : xfer::transports()) names.emplace_back(entry->scheme);
  return names;
}

Result<void> check_device(std::string_view value) {
  MC_CHECK(gpu::parse_devices(value));
  return {};
}

std::vector<std::string_view> kernel_names() {
  std::vector<std::string_view> names = names_of<ops::variants>();
  for (const attn::Variant* variant : attn::variants())
    if (std::ranges::find(names, attn::name_of(*variant)) == names.end()) names.push_back(attn::name_of(*variant));
  for (const gpu::MatmulRow& row : gpu::matmul_rows())
    if (row.choice != gpu::MatmulChoice::automatic) names.push_back(row.name);
  return names;
}

}  // namespace mc::flags
