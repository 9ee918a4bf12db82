// Writes small models in Hugging Face form for tests: random weights in bf16, and the configuration that the test has.
#pragma once

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/json.h"
#include "base/rng.h"
#include "test.h"

namespace mc::test {

/// A directory for a model; it is removed at the end.
class ModelWriter {
 public:
  explicit ModelWriter(const std::string& name) {
    static int made = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("mct-" + name + "-" + std::to_string(::getpid()) + "-" + std::to_string(made++));
    std::filesystem::create_directories(path_);
  }
  ~ModelWriter() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ModelWriter(const ModelWriter&) = delete;
  ModelWriter& operator=(const ModelWriter&) = delete;
  std::string directory() const { return path_.string(); }

  /// Numbers around `middle` with a deviation of `size`. Weights give activations of about one.
  void add(const std::string& name, std::vector<int> shape, double size, double middle = 0) {
    size_t count = 1;
    for (const int dim : shape) count *= static_cast<size_t>(dim);
    std::string data;
    for (size_t i = 0; i < count; ++i) {
      const uint16_t half = f32_to_bf16(static_cast<float>(middle + size * rng_.normal()));
      data.append(reinterpret_cast<const char*>(&half), 2);
    }
    put(name, "BF16", shape, data);
  }
  /// Bytes of a tensor.
  void put(const std::string& name, const char* dtype, const std::vector<int>& shape, const std::string& data) {
    Json dims = Json::array();
    for (const int dim : shape) dims.push(dim);
    const size_t begin = data_.size();
    data_ += data;
    const Json offsets = Json::array({begin, data_.size()});
    header_.set(name, Json::object({{"dtype", dtype}, {"shape", dims}, {"data_offsets", offsets}}));
  }
  Rng& rng() { return rng_; }
  void add_matrix(const std::string& name, int rows, int columns, double gain = 1) {
    add(name + ".weight", {rows, columns}, gain / std::sqrt(static_cast<double>(columns)));
  }
  void add_mlp(const std::string& prefix, int hidden, int inner) {
    add_matrix(prefix + "gate_proj", inner, hidden);
    add_matrix(prefix + "up_proj", inner, hidden);
    add_matrix(prefix + "down_proj", hidden, inner);
  }
  /// Writes both files.
  void finish(const Json& config) const {
    std::ofstream(path_ / "config.json") << config.dump();
    std::string text = header_.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    const uint64_t length = text.size();
    std::ofstream file(path_ / "model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), 8);
    file << text << data_;
  }

 private:
  std::filesystem::path path_;
  Rng rng_{11};
  Json header_ = Json::object({{"__metadata__", Json::object({{"format", "pt"}})}});
  std::string data_;
};

}  // namespace mc::test
