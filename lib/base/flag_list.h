// Groups of flags that several programs have, joined into one program's table at compile time: a flag that joins a
// group is in every program that has the group.
#pragma once

#include <array>

#include "base/cli.h"

namespace mc::flags {

template <size_t N>
using List = std::array<const Flag*, N>;

template <typename... Flags>
constexpr List<sizeof...(Flags)> list(const Flags*... flags) {
  return {flags...};
}

/// All of these groups' flags, in order.
template <size_t... N>
constexpr List<(N + ...)> join(const List<N>&... groups) {
  List<(N + ...)> out{};
  size_t at = 0;
  const auto put = [&](const auto& group) {
    for (const Flag* flag : group) out[at++] = flag;
  };
  (put(groups), ...);
  return out;
}

}  // namespace mc::flags
