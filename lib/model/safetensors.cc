#include "model/safetensors.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/errors.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/model_file.h"
#include "model/config_gguf.h"
#include "model/weights_gguf.h"

namespace mc::model {
namespace {

constexpr uint64_t kHeaderBytesMax = 100'000'000;  // the limit of the format's own library
constexpr size_t kTensorsMax = 200'000;
constexpr size_t kDimsMax = 8;
constexpr uint64_t kFullDigestBytes = uint64_t{64} << 20;
constexpr uint64_t kDigestPieceBytes = 4096;
constexpr uint64_t kDigestPieces = 4096;

struct Format {
  std::string_view name;
  uint64_t bytes;
  std::optional<Dtype> dtype;
};
constexpr Format kFormats[] = {
    {"F32", 4, Dtype::f32}, {"F16", 2, Dtype::f16}, {"BF16", 2, Dtype::bf16}, {"F8_E4M3", 1, Dtype::f8_e4m3},
    {"F8_E5M2", 1, {}},     {"F64", 8, {}},         {"I64", 8, {}},           {"I32", 4, {}},
    {"I16", 2, {}},         {"I8", 1, {}},          {"U64", 8, {}},           {"U32", 4, {}},
    {"U16", 2, {}},         {"U8", 1, {}},          {"BOOL", 1, {}},
};

Error damaged(std::string_view file, std::string what) {
  return user_error(err::kModelCorrupt, std::string(file) + ": " + std::move(what));
}

Error damaged(std::string_view file, std::string_view tensor, std::string what) {
  return damaged(file, "tensor '" + std::string(tensor.substr(0, 200)) + "' " + std::move(what));
}

/// The value as a whole number that fits 63 bits; none otherwise.
std::optional<uint64_t> unsigned_of(const Json& value) {
  if (!value.is_int() || value.as_int() < 0) return std::nullopt;
  return static_cast<uint64_t>(value.as_int());
}

Result<TensorEntry> parse_tensor(const std::string& name, const Json& json, uint64_t data_bytes,
                                 std::string_view file) {
  TensorEntry entry;
  entry.name = name;
  if (!json.is_object()) return damaged(file, name, "is described by a " + std::string(json.kind_name()));
  entry.dtype_name = json["dtype"].as_string();
  const auto* format = std::find_if(std::begin(kFormats), std::end(kFormats),
                                    [&](const Format& f) { return f.name == entry.dtype_name; });
  if (!json["dtype"].is_string()) return damaged(file, name, "has no dtype");
  if (format == std::end(kFormats))
    return user_error(err::kDtypeUnsupported, std::string(file) + ": tensor '" + name.substr(0, 200) + "' has dtype '" +
                                                  entry.dtype_name.substr(0, 40) + "'");
  entry.dtype = format->dtype;
  const Json& shape = json["shape"];
  if (!shape.is_array() || shape.size() > kDimsMax)
    return damaged(file, name, "has no shape of at most " + std::to_string(kDimsMax) + " sizes");
  uint64_t bytes = format->bytes;
  for (const Json& item : shape.items()) {
    const auto size = unsigned_of(item);
    if (!size) return damaged(file, name, "has a size that is no whole number: " + item.dump().substr(0, 40));
    if (__builtin_mul_overflow(bytes, *size, &bytes)) return damaged(file, name, "is larger than 2^64 bytes");
    entry.shape.push_back(*size);
  }
  const Json& offsets = json["data_offsets"];
  const auto begin = unsigned_of(offsets[size_t{0}]), end = unsigned_of(offsets[size_t{1}]);
  if (offsets.size() != 2 || !begin || !end) return damaged(file, name, "has no data_offsets [begin, end]");
  entry.begin = *begin;
  entry.end = *end;
  if (*begin > *end || *end > data_bytes)
    return damaged(file, name,
                   "lies at bytes " + std::to_string(*begin) + " to " + std::to_string(*end) + ", but the file holds " +
                       std::to_string(data_bytes) + " bytes of data; is it truncated?");
  if (*end - *begin != bytes)
    return damaged(file, name,
                   "of shape " + entry.shape_text() + " and dtype " + entry.dtype_name + " needs " +
                       std::to_string(bytes) + " bytes, its data_offsets give " + std::to_string(*end - *begin));
  return entry;
}

/// Checks that every byte of the data belongs to exactly one tensor.
Result<void> check_cover(const std::vector<TensorEntry>& tensors, uint64_t data_bytes, std::string_view file) {
  std::vector<const TensorEntry*> order;
  for (const TensorEntry& entry : tensors)
    if (entry.begin != entry.end) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->name < b->name;
  });
  uint64_t covered = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i]->begin < covered)
      return damaged(file, order[i]->name,
                     "at byte " + std::to_string(order[i]->begin) + " overlaps '" + order[i - 1]->name.substr(0, 200) +
                         "', which ends at " + std::to_string(covered));
    if (order[i]->begin > covered)
      return damaged(file, "bytes " + std::to_string(covered) + " to " + std::to_string(order[i]->begin) +
                               " of the data belong to no tensor");
    covered = order[i]->end;
  }
  if (covered != data_bytes)
    return damaged(file, "the last " + std::to_string(data_bytes - covered) + " bytes of the data belong to no tensor");
  return {};
}

}  // namespace

uint64_t TensorEntry::elements() const {
  uint64_t count = 1;
  for (uint64_t size : shape) count *= size;  // parse_safetensors() checked the product
  return count;
}

std::string TensorEntry::shape_text() const {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file, uint64_t file_bytes,
                                            std::string_view name) {
  if (file.size() < 8 || file_bytes < 8)
    return damaged(name, "is " + std::to_string(file_bytes) + " bytes long: no safetensors header");
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint8_t>(file[static_cast<size_t>(i)]);
  if (length > kHeaderBytesMax || length > file_bytes - 8 || length > file.size() - 8)
    return damaged(name, "gives a header of " + std::to_string(length) + " bytes, but the file has " +
                             std::to_string(file_bytes) + " (at most " + std::to_string(kHeaderBytesMax) +
                             " are allowed); is it truncated, or not safetensors?");
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, length);
  const auto json = Json::parse(text, {.bytes = kHeaderBytesMax, .depth = 4, .values = kTensorsMax * 16});
  if (!json) return damaged(name, "header: " + json.error().what);
  if (!json->is_object()) return damaged(name, "header is a " + std::string(json->kind_name()) + ", not an object");
  if (json->size() > kTensorsMax) return damaged(name, "has " + std::to_string(json->size()) + " tensors");
  SafetensorsHeader header;
  header.data_offset = 8 + length;
  const uint64_t data_bytes = file_bytes - header.data_offset;
  for (const JsonMember& member : json->members()) {
    if (member.key == "__metadata__") continue;
    MC_TRY(entry, parse_tensor(member.key, member.value, data_bytes, name));
    header.tensors.push_back(std::move(entry));
  }
  MC_CHECK(check_cover(header.tensors, data_bytes, name));
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  return header;
}

Result<void> WeightFiles::add_file(const std::string& directory, const std::string& file) {
  const std::string path = directory + "/" + file;
  MC_TRY(mapped, MappedFile::open(path));
  const std::span<const std::byte> bytes = mapped.bytes();
  MC_TRY(header, parse_safetensors(bytes, bytes.size(), path));
  mappings_.push_back(std::move(mapped));
  for (TensorEntry& entry : header.tensors) {
    const std::byte* start = bytes.data() + header.data_offset + entry.begin;
    tensors_.push_back({.entry = std::move(entry), .data = start, .file = paths_.size()});
  }
  paths_.push_back(path);
  return {};
}

Result<void> WeightFiles::open_shards(const std::string& directory, const std::string& index_path) {
  MC_TRY(text, read_model_file(index_path, kHeaderBytesMax));
  const auto json = Json::parse(text, {.bytes = kHeaderBytesMax, .depth = 8, .values = kTensorsMax * 4});
  if (!json) return damaged(index_path, json.error().what);
  const Json& map = (*json)["weight_map"];
  if (!map.is_object() || map.size() == 0) return damaged(index_path, "has no weight_map");
  std::map<std::string, std::vector<std::string>> by_file;  // ordered, so that files come in one order every time
  for (const JsonMember& member : map.members()) {
    const std::string file(member.value.as_string());
    if (file.empty() || file.find('/') != std::string::npos || file[0] == '.')
      return damaged(index_path, member.key, "is in '" + file.substr(0, 200) + "', which is no plain file name");
    by_file[file].push_back(member.key);
  }
  std::vector<Tensor> listed;
  for (auto& [file, names] : by_file) {
    tensors_.clear();
    MC_CHECK(add_file(directory, file));
    for (const std::string& name : names) {
      const Tensor* tensor = find(name);
      if (!tensor) return damaged(index_path, name, "is not in " + file + ", where weight_map says it is");
      listed.push_back(*tensor);
    }
  }
  std::sort(listed.begin(), listed.end(), [](const Tensor& a, const Tensor& b) { return a.entry.name < b.entry.name; });
  tensors_ = std::move(listed);
  return {};
}

Result<void> WeightFiles::open_gguf(const std::string& path) {
  MC_TRY(file, gguf::File::open(path));
  MC_TRY(config, read_gguf_config(file));
  MC_TRY(tensors, gguf_tensors(file, config));
  paths_.assign(file.paths().begin(), file.paths().end());
  tensors_ = std::move(tensors);
  gguf_ = std::move(file);
  return {};
}

Result<WeightFiles> WeightFiles::open(const std::string& directory) {
  WeightFiles files;
  MC_CHECK(files.open_place(directory));
  files.ends_.assign(files.paths_.size(), nullptr);
  for (const Tensor& tensor : files.tensors_)
    files.ends_[tensor.file] = std::max(files.ends_[tensor.file], tensor.data + tensor.bytes());
  return files;
}

Result<void> WeightFiles::open_place(const std::string& directory) {
  if (gguf::is_gguf(directory)) return open_gguf(directory);
  const std::string single = directory + "/model.safetensors", index = directory + "/model.safetensors.index.json";
  if (access(single.c_str(), F_OK) == 0) return add_file(directory, "model.safetensors");
  if (access(index.c_str(), F_OK) == 0) return open_shards(directory, index);
  return user_error(err::kModelIncomplete,
                    directory + " has neither model.safetensors nor model.safetensors.index.json");
}

const Tensor* WeightFiles::find(std::string_view name) const {
  const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const Tensor& t, std::string_view n) { return t.entry.name < n; });
  return at != tensors_.end() && at->entry.name == name ? &*at : nullptr;
}

Result<const Tensor*> WeightFiles::require(std::string_view name, std::span<const uint64_t> shape,
                                           Narrow narrow) const {
  const Tensor* tensor = find(name);
  if (!tensor)
    return user_error(err::kModelIncomplete, paths_.front() + (paths_.size() > 1 ? " and its shards have" : " has") +
                                                 " no tensor '" + std::string(name) + "'");
  const std::string& path = paths_[tensor->file];
  if (!std::equal(shape.begin(), shape.end(), tensor->entry.shape.begin(), tensor->entry.shape.end())) {
    const std::string expected = TensorEntry{.shape = {shape.begin(), shape.end()}}.shape_text();
    return damaged(path, name,
                   "has shape " + tensor->entry.shape_text() +
                       (is_gguf() ? "; its metadata ask for " : "; config.json asks for ") + expected);
  }
  if (tensor->entry.elements() == 0)
    return damaged(path, name, "has shape " + tensor->entry.shape_text() + ", which is empty");
  const bool is_narrow = tensor->blocks || tensor->entry.dtype == Dtype::f8_e4m3;
  if ((!tensor->entry.dtype && !tensor->blocks) || (is_narrow && narrow == Narrow::refused))
    return user_error(err::kDtypeUnsupported,
                      path + ": tensor '" + std::string(name) + "' has dtype " + tensor->entry.dtype_name +
                          (narrow == Narrow::allowed && !tensor->blocks ? "; weights must be F32, F16, BF16 or F8_E4M3"
                                                                        : "; weights must be F32, F16 or BF16"));
  return tensor;
}

void WeightFiles::drop(const Tensor& tensor) const {
  static const auto kPage = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data) / kPage * kPage;
  const auto end = reinterpret_cast<uintptr_t>(tensor.data + tensor.bytes());
  // Best effort: when the kernel refuses, memory stays in use, but nothing breaks.
  if (begin < end) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

uint64_t WeightFiles::total_bytes() const {
  uint64_t bytes = 0;
  for (const Tensor& tensor : tensors_) bytes += tensor.bytes();
  return bytes;
}

void read_soon(const std::byte* begin, const std::byte* end) {
  constexpr uintptr_t kAskBytes = 128 * 1024;  // the kernel reads no more than a device's largest request for one call
  static const auto kPage = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto last = reinterpret_cast<uintptr_t>(end);
  for (uintptr_t at = reinterpret_cast<uintptr_t>(begin) / kPage * kPage; at < last; at += kAskBytes)
    (void)madvise(reinterpret_cast<void*>(at), std::min(kAskBytes, last - at), MADV_WILLNEED);
}

namespace {

/// Calls body(bytes) for the parts of a tensor that the digest of `total` bytes covers.
template <class Body>
void for_parts(const Tensor& tensor, uint64_t total, const Body& body) {
  const uint64_t stride = std::max(kDigestPieceBytes, total / kDigestPieces);
  const std::span<const std::byte> data(tensor.data, tensor.bytes());
  if (total <= kFullDigestBytes || data.size() <= 2 * kDigestPieceBytes) return body(data);
  for (uint64_t at = 0; at + kDigestPieceBytes <= data.size(); at += stride) body(data.subspan(at, kDigestPieceBytes));
  body(data.last(kDigestPieceBytes));
}

void digest_part(Sha256& sha, std::span<const std::byte> part) {
  for (size_t at = 0; at < part.size(); at += kDigestPieceBytes)
    sha.update_u32(crc32c(part.subspan(at, std::min<size_t>(kDigestPieceBytes, part.size() - at))));
}

}  // namespace

std::string WeightFiles::digest() const {
  Sha256 sha;
  const uint64_t total = total_bytes();
  sha.update("mc-weights 2\n").update_u64(total);
  // The parts are far apart: read one by one, each would wait for the disk, and the kernel would read its
  // surroundings.
  for (const Tensor& tensor : tensors_)
    for_parts(tensor, total,
              [](std::span<const std::byte> part) { read_soon(part.data(), part.data() + part.size()); });
  for (const Tensor& tensor : tensors_) {
    sha.update_u64(tensor.entry.name.size()).update(tensor.entry.name);
    sha.update_u64(tensor.entry.dtype_name.size()).update(tensor.entry.dtype_name);
    sha.update_u64(tensor.entry.shape.size());
    for (uint64_t size : tensor.entry.shape) sha.update_u64(size);
    for_parts(tensor, total, [&](std::span<const std::byte> part) { digest_part(sha, part); });
    drop(tensor);
  }
  std::string hex;
  for (uint8_t byte : sha.finish()) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

}  // namespace mc::model
