// The tiers of a node's memory, from the fastest to the slowest. Block events and the snapshot of a node name the
// fastest tier that holds a block.
#pragma once

#include <cstdint>
#include <string_view>

namespace mc::wire {

enum class Tier : uint8_t { device = 0, host = 1, disk = 2 };
std::string_view to_string(Tier tier);
/// The tier of that name; disk for an unknown name, because an unknown tier may be as slow as any.
Tier tier_from(std::string_view name);

}  // namespace mc::wire
