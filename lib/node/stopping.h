// The end of an answer, which the node that draws a token decides.
#pragma once

#include <algorithm>
#include <cstdint>

#include "node/reason.h"
#include "wire/messages.h"

namespace mc::node {

/// How an answer ends with `token`, its token number `index` from 0; none: it goes on. `before`: tokens of the sequence
/// before the token.
inline Finish finish_with(const wire::Stopping& stopping, uint32_t token, uint32_t index, uint32_t before,
                          uint32_t context_tokens) {
  if (index >= stopping.min_tokens && std::ranges::count(stopping.stop_ids, token) > 0) return Finish::stop;
  if (index + 1 >= stopping.max_tokens || before + 1 >= context_tokens) return Finish::length;
  return Finish::none;
}

}  // namespace mc::node
