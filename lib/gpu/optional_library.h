// A library of the host that is used where it is found: it is loaded at run time, and no build links it.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/result.h"

namespace mc::gpu {

/// "13.1.0" of 130100, as cuBLASLt and NCCL count.
inline std::string library_version_text(size_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

/// Looks functions up by their names, and keeps the first name that the library lacks.
class FunctionFinder {
 public:
  explicit FunctionFinder(void* library) : library_(library) {}
  template <class Function>
  void operator()(Function& function, const char* name) {
    function = reinterpret_cast<std::decay_t<Function>>(dlsym(library_, name));
    if (function == nullptr && missing_ == nullptr) missing_ = name;
  }
  /// Null: none.
  const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

/// Whether the text of dlerror() says that there is no such file. It begins with the file where the file itself is
/// missing, and with "libfoo.so.1: cannot open" where a library is missing that the file needs.
inline bool is_missing(std::string_view why, const std::string& file) {
  return why.starts_with(file + ":") && why.find("No such file or directory") != std::string_view::npos;
}

/// Loads the first of `files` that has all functions and a version of at least `version_min`, and returns its name.
/// `resolve(find, functions)` asks for each function. The library that is returned stays loaded: unloading it would end
/// threads and contexts of its own at an unknown time. Code::unsupported says what is missing of the library `name`, or
/// why a file that is there cannot be loaded.
template <class Functions>
Result<std::string> load_library(const std::string& name, std::span<const std::string> files, size_t version_min,
                                 void (*resolve)(FunctionFinder&, Functions&), size_t (*version_of)(const Functions&),
                                 Functions& out) {
  std::string tried, unfit, broken;
  for (const std::string& file : files) {
    tried += (tried.empty() ? "" : ", ") + file;
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* const why = dlerror();
      if (broken.empty() && why != nullptr && !is_missing(why, file)) broken = std::string("; ") + why;
      continue;
    }
    Functions functions{};
    FunctionFinder find(library);
    resolve(find, functions);
    if (find.missing() == nullptr && version_of(functions) >= version_min) {
      out = functions;
      return file;
    }
    unfit = find.missing() != nullptr ? file + " has no function " + find.missing()
                                      : file + " is " + name + " " + library_version_text(version_of(functions)) +
                                            ", at least " + library_version_text(version_min) + " is needed";
    dlclose(library);
  }
  return Error{Code::unsupported, (unfit.empty() ? "no " + name + " was found: " + tried : unfit) + broken};
}

}  // namespace mc::gpu
