// The golden vectors under tests/golden/model (made by scripts/make-model-goldens), and short ways to
// open a model for a test.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/json.h"
#include "base/parallel.h"
#include "model/generate.h"
#include "test.h"

namespace mc::test {

inline constexpr const char* kRandomModels[] = {
    "llama-mha",      "llama-gqa-llama3", "llama-mqa-bias", "qwen2-gqa",       "qwen2-untied",     "qwen3-gqa",
    "qwen3-mqa",      "qwen2-yarn",       "qwen3-yarn",     "llama-linear",    "llama-dynamic",    "mistral-nemo",
    "mistral-window", "qwen3-moe",        "qwen2-moe",      "llama-fp8-block", "qwen3-fp8-tensor", "mistral-fp8-row"};

struct GoldenCase {
  std::vector<uint32_t> prompt;
  std::vector<uint32_t> positions;         // whose logits are kept
  std::vector<std::vector<float>> logits;  // one per position
  std::vector<uint32_t> greedy;
};

struct Golden {
  std::string name, directory, file_sha256;
  std::vector<GoldenCase> cases;
};

inline std::vector<uint32_t> ids_of(const Json& json) {
  std::vector<uint32_t> ids;
  for (const Json& item : json.items()) ids.push_back(static_cast<uint32_t>(item.as_int()));
  return ids;
}

inline Golden read_golden(const std::string& name) {
  Golden golden;
  golden.name = name;
  const std::string folder = source_dir() + "/tests/golden/model/" + name;
  const auto text = read_file(folder + "/golden.json", 1 << 24), raw = read_file(folder + "/logits.f32", 1 << 24);
  REQUIRE_OK(text);
  REQUIRE_OK(raw);
  const auto json = Json::parse(*text);
  REQUIRE_OK(json);
  const std::string model((*json)["model"].as_string());
  golden.directory = model.empty() ? folder : source_dir() + "/" + model;
  golden.file_sha256 = (*json)["file_sha256"].as_string();
  const auto vocab = static_cast<size_t>((*json)["vocab"].as_int());
  const char* at = raw->data();
  for (const Json& item : (*json)["cases"].items()) {
    GoldenCase one{ids_of(item["prompt"]), ids_of(item["positions"]), {}, ids_of(item["greedy"])};
    for (size_t i = 0; i < one.positions.size(); ++i) {
      std::vector<float> row(vocab);
      REQUIRE(at + 4 * vocab <= raw->data() + raw->size());
      std::memcpy(row.data(), at, 4 * vocab);
      at += 4 * vocab;
      one.logits.push_back(std::move(row));
    }
    golden.cases.push_back(std::move(one));
  }
  return golden;
}

inline attn::Plan full_plan(const model::Model& model) {
  return {attn::Mode{}, 0, static_cast<int32_t>(model.config().layers)};
}

/// The attention of transformers: a window where the config has one, else full (it has no MoBA).
inline attn::Plan golden_plan(const model::Model& model) {
  attn::Plan plan = full_plan(model);
  const auto& declared = model.config().attention;
  if (declared && declared->mode.kind == attn::ModeKind::window) plan.mode = declared->mode;
  return plan;
}

inline attn::Plan moba_plan(const model::Model& model, int32_t block, int32_t top_k, int32_t full_last) {
  return {attn::Mode{attn::ModeKind::moba, block, top_k}, full_last, static_cast<int32_t>(model.config().layers)};
}

/// A model with its pool and runner, kept together so that lifetimes are right.
struct Loaded {
  Parallel parallel;
  model::Model model;
  model::Runner runner;

  static std::unique_ptr<Loaded> open(const std::string& directory, const std::string& dtype, int threads = 1,
                                      model::RunnerOptions options = {}, const std::string& weight_dtype = "auto") {
    return open(directory, model::ModelOptions{.dtype = dtype, .weight_dtype = weight_dtype}, threads, options);
  }

  static std::unique_ptr<Loaded> open(const std::string& directory, const model::ModelOptions& load, int threads = 1,
                                      const model::RunnerOptions& options = {}) {
    Parallel loader(1);
    auto model = model::Model::open(directory, load, loader);
    REQUIRE_OK(model);
    return std::unique_ptr<Loaded>(new Loaded(std::move(*model), threads, options));
  }

 private:
  Loaded(model::Model m, int threads, const model::RunnerOptions& options)
      : parallel(threads), model(std::move(m)), runner(open_runner(options)) {}
  model::Runner open_runner(const model::RunnerOptions& options) {
    auto opened = model::Runner::open(model, parallel, options);
    REQUIRE_OK(opened);
    return std::move(*opened);
  }
};

}  // namespace mc::test
