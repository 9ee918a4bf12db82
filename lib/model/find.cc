#include "model/find.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/errors.h"

namespace mc::model {
namespace {

namespace fs = std::filesystem;

constexpr int kLevelsUp = 4;  // levels from build/tests/unit-model to the source tree, and some more

bool is_model(const fs::path& directory) {
  std::error_code error;
  return fs::is_regular_file(directory / "config.json", error);
}

/// Explains why `wanted` is no model directory: the error names the file found there and how to get a directory.
Error diagnosis(const std::string& wanted) {
  const fs::path path(wanted);
  std::error_code error;
  const auto gguf = [&](const fs::path& file) {
    return user_error(err::kModelUnsupported, file.string() + " is a GGUF file, which this build does not read", "-m",
                      "give the safetensors checkpoint: a directory with config.json and *.safetensors");
  };
  const std::string whole = "give a directory in Hugging Face format, or leave -m out for mc-tiny";
  if (fs::is_directory(path, error)) {
    for (const auto& entry : fs::directory_iterator(path, fs::directory_options::skip_permission_denied, error))
      if (entry.path().extension() == ".gguf") return gguf(entry.path());
    return user_error(err::kModelIncomplete, wanted + " is no model directory: it has no config.json", "-m", whole);
  }
  if (fs::exists(path, error)) {
    if (path.extension() == ".gguf") return gguf(path);
    const fs::path directory = path.has_parent_path() ? path.parent_path() : fs::path(".");
    return user_error(err::kModelIncomplete, wanted + " is a file, not a model directory", "-m",
                      is_model(directory) ? "give the directory that it is in: -m " + directory.string() : whole);
  }
  const size_t slash = wanted.find('/');
  if (slash != 0 && slash != std::string::npos && wanted[0] != '.' && wanted.find('/', slash + 1) == std::string::npos)
    return user_error(err::kModelIncomplete,
                      "there is no directory " + wanted + "; models of the Hugging Face hub are not downloaded", "-m",
                      "download it first: huggingface-cli download " + wanted + " --local-dir DIR, then -m DIR");
  return user_error(err::kModelIncomplete, "there is no directory " + wanted, "-m", whole);
}

}  // namespace

Result<std::string> find_model(const std::string& asked) {
  const char* environment = std::getenv("MCT_MODEL");
  const std::string wanted = asked.empty() && environment ? environment : asked;
  if (!wanted.empty() && is_model(wanted)) return wanted;
  if (!wanted.empty() && wanted != "mc-tiny") return diagnosis(wanted);
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
