// An error that another process reported by its MC number.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/errors.h"

namespace mc {

/// The error with that number. Where this release has no such number, because the peer is newer or no program of this
/// project, the error is kPeerGarbage and its text names the number.
inline Error peer_error(uint32_t number, std::string what, std::string where) {
  if (number <= INT16_MAX && find_error(static_cast<int>(number)) != nullptr)
    return user_error(static_cast<err::Number>(number), std::move(what), std::move(where));
  return user_error(err::kPeerGarbage,
                    std::move(what) + " (MC" + std::to_string(number) + ", which this release does not have)",
                    std::move(where));
}

}  // namespace mc
