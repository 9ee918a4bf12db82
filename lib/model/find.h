// Finds the model that -m names: a directory in Hugging Face format, or a GGUF file.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace mc::model {

/// How the user has named the model, for the next step in errors: by -m, or as the argument FILE of a verb.
enum class NamedBy : uint8_t { flag, argument };

/// The directory or GGUF file that -m names. A directory without config.json stands for the only GGUF model in it. ""
/// and "mc-tiny" name the model that ships with the toolkit. The places are searched in
/// this order: the environment's MCT_MODEL (for "" only), share/mooncake/mc-tiny beside the folder of the running
/// program, and lib/model/mc-tiny of a source tree above that folder. not_found (MC3001) lists the places.
Result<std::string> find_model(const std::string& asked, NamedBy by = NamedBy::flag);

}  // namespace mc::model
