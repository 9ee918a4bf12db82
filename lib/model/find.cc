#include "model/find.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/errors.h"

namespace mc::model {
namespace {

namespace fs = std::filesystem;

constexpr int kLevelsUp = 4;  // from build/tests/unit-model to the source tree, with room

bool is_model(const fs::path& directory) {
  std::error_code error;
  return fs::is_regular_file(directory / "config.json", error);
}

}  // namespace

Result<std::string> find_model(const std::string& asked) {
  const char* environment = std::getenv("MCT_MODEL");
  const std::string wanted = asked.empty() && environment ? environment : asked;
  if (!wanted.empty() && is_model(wanted)) return wanted;
  if (!wanted.empty() && wanted != "mc-tiny")
    return user_error(err::kModelIncomplete, wanted + " is no model directory: it has no config.json", {},
                      "name a directory in Hugging Face format, or leave it out for mc-tiny");
  std::error_code error;
  fs::path place = fs::read_symlink("/proc/self/exe", error).parent_path();
  std::string tried;
  const auto found = [&](const fs::path& directory) {
    tried += (tried.empty() ? "" : ", ") + directory.lexically_normal().string();
    return is_model(directory);
  };
  const fs::path installed = place / "../share/mooncake/mc-tiny";
  if (found(installed)) return installed.lexically_normal().string();
  for (int level = 0; level < kLevelsUp && place.has_relative_path(); ++level, place = place.parent_path())
    if (found(place / "lib/model/mc-tiny")) return (place / "lib/model/mc-tiny").string();
  return user_error(err::kModelIncomplete, "mc-tiny was not found in " + tried, {},
                    "give -m DIR or set MCT_MODEL to a model directory");
}

}  // namespace mc::model
