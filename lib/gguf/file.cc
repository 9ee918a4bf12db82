#include "gguf/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "base/fd.h"

namespace mc::gguf {
namespace {

constexpr uint64_t kPartsMax = 1000;
constexpr uint64_t kEachMax = 1024;  // values of a list with one for every layer
constexpr const char* kPartNumber = "split.no";
constexpr const char* kPartCount = "split.count";
constexpr const char* kPartTensors = "split.tensors.count";

/// "-00002-of-00003.gguf"; `index` counts from 0.
std::string part_suffix(uint64_t index, uint64_t count) {
  char text[64];
  std::snprintf(text, sizeof text, "-%05llu-of-%05llu.gguf", static_cast<unsigned long long>(index + 1),
                static_cast<unsigned long long>(count));
  return text;
}

}  // namespace

Result<Header> File::map(const std::string& path) {
  MC_TRY(file, MappedFile::open(path));
  if (file.bytes().empty()) return user_error(err::kModelCorrupt, path + ": is empty");
  mappings_.push_back(std::move(file));
  paths_.push_back(path);
  return parse(mappings_.back().bytes(), path);
}

void File::add_tensors(const Header& header) {
  const std::span<const std::byte> bytes = mappings_.back().bytes();
  for (const TensorInfo& info : header.tensors) {
    MC_ASSERT(info.bytes == 0 || header.data_offset + info.offset + info.bytes <= bytes.size());
    tensors_.push_back({info, bytes.data() + header.data_offset + info.offset, paths_.size() - 1});
  }
}

Result<uint64_t> File::part_number(const Header& header, const char* key, const std::string& path) const {
  const Value* value = header.find(key);
  const auto number = value ? value->whole() : std::nullopt;
  if (!number)
    return user_error(err::kModelCorrupt, path + ": " + key + " is " + (value ? value->shown() : "missing") +
                                              "; it must be a whole number");
  return *number;
}

Result<void> File::open_parts(const std::string& first, uint64_t count) {
  const std::string suffix = part_suffix(0, count);
  if (!first.ends_with(suffix))
    return user_error(err::kModelIncomplete,
                      first + ": " + kPartCount + " is " + std::to_string(count) +
                          ", but the name of the first part does not end in " + suffix,
                      {}, "give the first part under its original name, with the other parts beside it");
  const std::string stem = first.substr(0, first.size() - suffix.size());
  const Value* total = header_.find(kPartTensors);
  for (uint64_t i = 1; i < count; ++i) {
    const std::string path = stem + part_suffix(i, count);
    MC_TRY(header, map(path));
    MC_TRY(number, part_number(header, kPartNumber, path));
    MC_TRY(parts, part_number(header, kPartCount, path));
    if (number != i || parts != count)
      return user_error(err::kModelCorrupt, path + ": says that it is part " + std::to_string(number) + " of " +
                                                std::to_string(parts) + ", counted from 0; its name and " + first +
                                                " say part " + std::to_string(i) + " of " + std::to_string(count));
    add_tensors(header);
  }
  if (total && total->whole() != tensors_.size())
    return user_error(err::kModelCorrupt, first + ": " + kPartTensors + " is " + total->shown() + ", but the " +
                                              std::to_string(count) + " parts have " + std::to_string(tensors_.size()) +
                                              " tensors");
  return {};
}

Result<File> File::open(const std::string& path) {
  File file;
  MC_TRY(header, file.map(path));
  file.header_ = std::move(header);
  file.add_tensors(file.header_);
  if (file.header_.find(kPartCount)) {
    MC_TRY(count, file.part_number(file.header_, kPartCount, path));
    MC_TRY(number, file.part_number(file.header_, kPartNumber, path));
    if (count > kPartsMax)
      return user_error(err::kModelCorrupt, path + ": " + kPartCount + " is " + std::to_string(count) + "; at most " +
                                                std::to_string(kPartsMax) + " parts are allowed");
    if (number != 0)
      return user_error(err::kModelIncomplete,
                        path + ": " + kPartNumber + " is " + std::to_string(number) + "; this is not the first part",
                        "-m", "give the first part, whose name ends in " + part_suffix(0, count));
    if (count > 1) MC_CHECK(file.open_parts(path, count));
  }
  std::sort(file.tensors_.begin(), file.tensors_.end(),
            [](const Tensor& a, const Tensor& b) { return a.info.name < b.info.name; });
  const auto same = [](const Tensor& a, const Tensor& b) { return a.info.name == b.info.name; };
  const auto twice = std::adjacent_find(file.tensors_.begin(), file.tensors_.end(), same);
  if (twice != file.tensors_.end())
    return user_error(err::kModelCorrupt, file.paths_[twice->part] + " and " + file.paths_[(twice + 1)->part] +
                                              " both have tensor '" + twice->info.name.substr(0, 200) + "'");
  return file;
}

const Tensor* File::find_tensor(std::string_view name) const {
  const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const Tensor& t, std::string_view n) { return t.info.name < n; });
  return at != tensors_.end() && at->info.name == name ? &*at : nullptr;
}

uint64_t File::bytes() const {
  uint64_t sum = 0;
  for (const MappedFile& file : mappings_) sum += file.bytes().size();
  return sum;
}

Error File::invalid(const std::string& key, const std::string& what) const {
  return user_error(err::kConfigInvalid, paths_.front() + ": " + key + " " + what);
}

Error File::unsupported(err::Number number, const std::string& key, const std::string& allowed) const {
  const Value* value = header_.find(key);
  const std::string shown = value ? value->shown() : "missing";
  return user_error(number, paths_.front() + ": " + key + " is " + shown + "; supported: " + allowed);
}

Result<std::optional<uint64_t>> File::whole(const std::string& key, uint64_t low, uint64_t high) const {
  const Value* value = header_.find(key);
  if (!value) return std::optional<uint64_t>{};
  if (value->is_array() && value->count() > kEachMax)
    return invalid(key, "is " + value->shown() + "; it must be a whole number, or at most " + std::to_string(kEachMax) +
                            " that are equal");
  auto number = value->whole();
  // A list with one value for every layer is a plain number when all are equal.
  if (const auto each = value->numbers(); each && !each->empty()) {
    const bool equal = std::all_of(each->begin(), each->end(), [&](double n) { return n == each->front(); });
    if (!equal)
      return user_error(err::kModelUnsupported,
                        paths_.front() + ": " + key + " is " + value->shown() + " that differ; supported: one number");
    if (each->front() >= 0 && each->front() == std::floor(each->front()) && each->front() < 9e15)
      number = static_cast<uint64_t>(each->front());
  }
  if (!number || *number < low || *number > high)
    return invalid(key, "is " + value->shown() + "; it must be a whole number from " + std::to_string(low) + " to " +
                            std::to_string(high));
  return number;
}

Result<std::optional<double>> File::positive(const std::string& key) const {
  const Value* value = header_.find(key);
  if (!value) return std::optional<double>{};
  const auto number = value->number();
  if (!number || !(*number > 0) || !std::isfinite(*number))
    return invalid(key, "is " + value->shown() + "; it must be a positive number");
  return number;
}

Result<std::optional<bool>> File::flag(const std::string& key) const {
  const Value* value = header_.find(key);
  if (!value) return std::optional<bool>{};
  const auto flag = value->flag();
  if (!flag) return invalid(key, "is " + value->shown() + "; it must be true or false");
  return flag;
}

Result<std::optional<std::string>> File::text(const std::string& key) const {
  const Value* value = header_.find(key);
  if (!value) return std::optional<std::string>{};
  const auto text = value->text();
  if (!text) return invalid(key, "is " + value->shown() + "; it must be a string");
  return std::optional(std::string(*text));
}

bool is_gguf(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  char magic[4];
  return fd && ::pread(fd.get(), magic, sizeof magic, 0) == sizeof magic && std::memcmp(magic, "GGUF", 4) == 0;
}

}  // namespace mc::gguf
