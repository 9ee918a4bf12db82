// The layout handshake: before one node may read another's KV bytes, every setting that decides how
// they lie in memory is compared by name, and a difference is refused with both values (MC2104).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "wire/messages.h"

namespace mc::wire {

struct LayoutDifference {
  std::string field;               // the first one that differs, in our order
  std::string ours, theirs;        // "(absent)" when one side does not have the field
  std::vector<std::string> equal;  // fields compared and found equal
};

/// Compares by name; order does not matter, and a field of one side only is a difference.
std::optional<LayoutDifference> compare_layout(std::span<const NameValue> ours, std::span<const NameValue> theirs);

struct LayoutParty {
  std::string role;     // "prefill"
  std::string name;     // "p0"; may be empty
  std::string address;  // "127.0.0.1:41233"; may be empty
};

/// "prefill p0 uses --block-tokens 64, this decode uses 128", with the where and next lines of
/// USERS 5. The field's flag is its name with dashes; fields without a flag are named as fields.
Error layout_error(const LayoutDifference& difference, std::string_view our_role, const LayoutParty& them);

}  // namespace mc::wire
