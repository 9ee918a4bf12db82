// The order of held requests of one priority (lib/sched/fair.h).
#pragma once

#include <cstdint>

namespace mc::sched {

enum class HoldOrder : uint8_t { arrival, work };

}  // namespace mc::sched
