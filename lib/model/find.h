// Where the model that ships with the toolkit lies.
#pragma once

#include <string>

#include "base/result.h"

namespace mc::model {

/// The directory that -m names. "" and "mc-tiny" name the model that ships with the toolkit, which is searched in this
/// order: the environment's MCT_MODEL (for "" only), share/mooncake/mc-tiny beside the folder of the running program,
/// and lib/model/mc-tiny of a source tree above it. not_found (MC3001) lists the places tried.
Result<std::string> find_model(const std::string& asked);

}  // namespace mc::model
