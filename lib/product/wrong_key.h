// MC2103, whose next step names the ways to share keys.
#pragma once

#include <string>

#include "base/errors.h"

namespace mc {

/// `other`: the side that may have the key file already, and `own` the side that needs it.
inline Error wrong_key(const std::string& what, const std::string& where = {},
                       const std::string& other = "the conductor", const std::string& own = "this node") {
  return user_error(err::kWrongKey, what, where,
                    "on one machine share MCT_RUN_DIR; else give both sides the same --auth FILE (made by: "
                    "mc-conductor keygen); if " +
                        other + " has --auth, give " + own + " its file");
}

}  // namespace mc
