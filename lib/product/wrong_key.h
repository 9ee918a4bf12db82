// MC2103, whose next step names both ways to share keys.
#pragma once

#include <string>
#include <utility>

#include "base/errors.h"

namespace mc {

inline Error wrong_key(std::string what, std::string where = {}) {
  return user_error(
      err::kWrongKey, std::move(what), std::move(where),
      "on one machine share MCT_RUN_DIR; else give both sides the same --auth FILE (made by: mc-conductor keygen)");
}

}  // namespace mc
