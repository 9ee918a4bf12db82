// Why blocks of a prompt were computed (wire/miss.h), as records and answers tell it.
#pragma once

#include <span>

#include "base/json.h"
#include "wire/miss.h"

namespace mc::door {

/// Which kinds a reader is told of.
enum class MissReader : uint8_t {
  operators,
  client,  // not `salt`: it would tell that somebody else had the prompt
};
/// [{"reason", "first_block", "blocks", "node", "age_ms"}, ...], the latter two where they have a meaning.
Json misses_json(std::span<const wire::Miss> misses, MissReader reader);
/// The reason of the first run, "" without one.
std::string_view first_miss(std::span<const wire::Miss> misses, MissReader reader);

}  // namespace mc::door
