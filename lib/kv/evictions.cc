// The table of eviction policies: --help, --eviction, the pool's tests and the simulator iterate it.
#include "kv/eviction.h"

namespace mc::kv {

static constexpr const Eviction* kEvictions[] = {&kLruTail, &kLru, &kFifo, &kLfu, &kLengthAware};

std::span<const Eviction* const> evictions() {
  return kEvictions;
}

const Eviction* find_eviction(std::string_view name) {
  for (const Eviction* eviction : kEvictions)
    if (eviction->name == name) return eviction;
  return nullptr;
}

}  // namespace mc::kv
