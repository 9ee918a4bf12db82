#include "model/find.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/errors.h"
#include "gguf/gguf.h"

namespace mc::model {
namespace {

namespace fs = std::filesystem;

constexpr int kLevelsUp = 4;  // levels from build/tests/unit-model to the source tree, and some more

bool is_model(const fs::path& place) {
  std::error_code error;
  if (fs::is_regular_file(place, error)) return gguf::is_gguf(place.string());
  return fs::is_regular_file(place / "config.json", error);
}

/// The GGUF files of a directory that can be opened: all but the later parts of split models. Ascending.
std::vector<fs::path> gguf_files(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, fs::directory_options::skip_permission_denied, error)) {
    const std::string name = entry.path().filename().string();
    const bool part = name.size() > 20 && name.rfind("-of-") == name.size() - 14;
    const bool later = part && name.rfind("-00001-of-") != name.size() - 20;
    if (entry.path().extension() == ".gguf" && !later) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Explains why `wanted` is no model: the error names the file found there and how to get a model.
Error diagnosis(const std::string& wanted, NamedBy by) {
  const fs::path path(wanted);
  std::error_code error;
  const bool by_flag = by == NamedBy::flag;
  const std::string where = by_flag ? "-m" : "FILE", give = by_flag ? "-m " : "";
  const std::string whole = "give a directory in Hugging Face format or a GGUF file, or " +
                            std::string(by_flag ? "leave -m out for mc-tiny" : "mc-tiny");
  if (fs::is_directory(path, error)) {
    const std::vector<fs::path> files = gguf_files(path);
    if (files.size() > 1)
      return user_error(err::kModelIncomplete,
                        wanted + " has " + std::to_string(files.size()) + " GGUF models, " +
                            files[0].filename().string() + " and " + files[1].filename().string() + " among them",
                        where, "give one of the files: " + give + files[0].string());
    return user_error(err::kModelIncomplete, wanted + " is no model directory: it has no config.json", where, whole);
  }
  if (fs::exists(path, error)) {
    if (path.extension() == ".gguf")
      return user_error(err::kModelCorrupt, wanted + " is no GGUF file: it does not begin with the bytes GGUF", where,
                        "download it again; a text file of some hundred bytes is a Git LFS pointer");
    const fs::path directory = path.has_parent_path() ? path.parent_path() : fs::path(".");
    return user_error(err::kModelIncomplete, wanted + " is a file, not a model directory", where,
                      is_model(directory) ? "give the directory that it is in: " + give + directory.string() : whole);
  }
  const size_t slash = wanted.find('/');
  if (slash != 0 && slash != std::string::npos && wanted[0] != '.' && wanted.find('/', slash + 1) == std::string::npos)
    return user_error(
        err::kModelIncomplete,
        "there is no directory " + wanted + "; models of the Hugging Face hub are not downloaded", where,
        "download it first: huggingface-cli download " + wanted + " --local-dir DIR, then give " + give + "DIR");
  return user_error(err::kModelIncomplete, "there is no directory " + wanted, where, whole);
}

}  // namespace

Result<std::string> find_model(const std::string& asked, NamedBy by) {
  const char* environment = std::getenv("MCT_MODEL");
  const std::string wanted = asked.empty() && environment ? environment : asked;
  if (!wanted.empty() && is_model(wanted)) return wanted;
  std::error_code error;
  if (!wanted.empty() && fs::is_directory(wanted, error))
    if (const std::vector<fs::path> files = gguf_files(wanted); files.size() == 1) return files[0].string();
  if (!wanted.empty() && wanted != "mc-tiny") return diagnosis(wanted, by);
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
