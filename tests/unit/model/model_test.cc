#include "model/model.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/errors.h"
#include "golden.h"
#include "model/find.h"

namespace model_test {

using namespace mc;
using namespace mc::model;

namespace {

namespace fs = std::filesystem;

/// A copy of a golden model whose files a test may damage.
struct Copy {
  fs::path path;
  explicit Copy(const std::string& name)
      : path(fs::path(test::binary_dir()) / "tests" / ("model-" + std::to_string(::getpid()))) {
    fs::remove_all(path);
    fs::copy(test::source_dir() + "/tests/golden/model/" + name, path);
  }
  ~Copy() { fs::remove_all(path); }
  Result<Model> open(const std::string& dtype = "auto") const {
    Parallel parallel(1);
    return Model::open(path.string(), {.dtype = dtype}, parallel);
  }
  Error error() const {
    auto model = open();
    REQUIRE(!model.has_value());
    return model.error();
  }
  void set(const char* field, Json value) const {
    const auto text = read_file(path / "config.json", 1 << 20);
    REQUIRE_OK(text);
    auto json = Json::parse(*text);
    REQUIRE_OK(json);
    json->set(field, std::move(value));
    std::ofstream(path / "config.json") << json->dump();
  }
};

bool contains(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("model/model: auto takes bf16 only when every weight is stored so") {
  CHECK(Copy("llama-gqa-llama3").open()->dtype() == Dtype::bf16);
  CHECK(Copy("llama-gqa-llama3").open("f32")->dtype() == Dtype::f32);
  CHECK(Copy("llama-mqa-bias").open()->dtype() == Dtype::f32);
  CHECK(Copy("llama-mha").open("bf16")->dtype() == Dtype::bf16);
  const auto wrong = Copy("llama-mha").open("int4");
  REQUIRE(!wrong.has_value());
  CHECK(wrong.error().mc == err::kDtypeUnsupported);
}

TEST_CASE("model/model: the namespace holds what KV depends on") {
  Parallel parallel(1);
  const auto model = Model::open(test::read_golden("llama-gqa-llama3").directory, {}, parallel);
  REQUIRE_OK(model);
  const kv::Namespace space = model->kv_namespace(test::full_plan(*model), 64);
  CHECK(space.weights == model->weights_digest());
  CHECK(space.dtype == "bf16");
  CHECK(space.rope.find("llama3:theta=500000,factor=8") == 0);
  CHECK(space.attention == "full");
  CHECK(space.kv_heads == 2);
  CHECK(!(space.id() == model->kv_namespace(test::full_plan(*model), 128).id()));
  CHECK(!(space.id() == model->kv_namespace(test::moba_plan(*model, 64, 2, 0), 64).id()));
  const auto wide = Model::open(test::read_golden("llama-gqa-llama3").directory, {.dtype = "f32"}, parallel);
  CHECK(!(space.id() == wide->kv_namespace(test::full_plan(*wide), 64).id()));
}

TEST_CASE("model/model: missing, truncated and misshapen weights are refused by name") {
  {
    const Copy copy("llama-mha");
    fs::remove(copy.path / "model.safetensors");
    CHECK(copy.error().mc == err::kModelIncomplete);
    CHECK(contains(copy.error().what, "has neither model.safetensors"));
  }
  {
    const Copy copy("llama-mha");
    fs::remove(copy.path / "config.json");
    CHECK(contains(copy.error().what, "has no config.json"));
  }
  {
    const Copy copy("llama-mha");
    fs::resize_file(copy.path / "model.safetensors", fs::file_size(copy.path / "model.safetensors") - 1);
    CHECK(copy.error().mc == err::kModelCorrupt);
    CHECK(contains(copy.error().what, "is it truncated?"));
  }
  {
    const Copy copy("qwen2-untied");
    fs::remove(copy.path / "model-00002-of-00003.safetensors");
    CHECK(contains(copy.error().what, "model-00002-of-00003.safetensors: No such file"));
  }
  {
    const Copy copy("llama-mha");
    copy.set("intermediate_size", 56);
    CHECK(contains(copy.error().what,
                   "tensor 'model.layers.0.mlp.gate_proj.weight' has shape [48, 32]; config.json asks for [56, 32]"));
  }
  {
    const Copy copy("llama-mha");
    copy.set("num_hidden_layers", 3);
    CHECK(contains(copy.error().what, "has no tensor 'model.layers.2.input_layernorm.weight'"));
  }
}

TEST_CASE("model/model: lm_head may be missing only when embeddings are tied") {
  const Copy copy("llama-gqa-llama3");
  CHECK(copy.open().has_value());
  copy.set("tie_word_embeddings", false);
  CHECK(copy.error().mc == err::kModelIncomplete);
  CHECK(contains(copy.error().what, "no tensor 'lm_head.weight'"));
}

TEST_CASE("model/model: a model that cannot fit is refused with needed and free memory before it is read") {
  const Copy copy("llama-mha");
  copy.set("head_dim", 8);
  copy.set("hidden_size", 1 << 17);
  copy.set("intermediate_size", 1 << 20);
  copy.set("num_hidden_layers", 1024);
  const Error error = copy.error();
  CHECK(error.mc == err::kNotEnoughMemory);
  CHECK(contains(error.what, "the weights need "));
  CHECK(contains(error.what, "free are "));
}

TEST_CASE("model/find: what lies in place of a model directory is told") {
  const fs::path place = fs::temp_directory_path() / ("mct-find-" + std::to_string(::getpid()));
  fs::create_directories(place / "empty");
  fs::create_directories(place / "quantised");
  for (const char* file : {"quantised/q4.gguf", "config.json", "model.safetensors", "notes.txt"})
    std::ofstream(place / file) << "x";
  const auto said = [&](const std::string& name) {
    const auto found = find_model(name);
    REQUIRE_FALSE(found);
    return found.error().what + "; " + found.error().next;
  };
  CHECK(contains(said(place / "empty"), "it has no config.json"));
  CHECK(contains(said(place / "quantised/q4.gguf"), "q4.gguf is no GGUF file"));
  CHECK(contains(said(place / "model.safetensors"),
                 "is a file, not a model directory; give the directory that it is "
                 "in: -m " +
                     place.string()));
  CHECK(
      contains(said("Qwen/Qwen3-0.6B"), "not downloaded; download it first: huggingface-cli download Qwen/Qwen3-0.6B"));
  CHECK(contains(said("./Qwen/x"), "there is no directory ./Qwen/x; give a directory"));
  fs::remove_all(place);
}

TEST_CASE("model/find: the built-in model is found from a build tree, and a wrong directory is named") {
  ::unsetenv("MCT_MODEL");
  const auto found = find_model("");
  REQUIRE_OK(found);
  CHECK(fs::equivalent(*found, test::source_dir() + "/lib/model/mc-tiny"));
  CHECK(find_model("mc-tiny").has_value());
  CHECK(contains(find_model("/nonexistent").error().what, "there is no directory /nonexistent"));
  CHECK(contains(find_model("/nonexistent").error().next, "or leave -m out for mc-tiny"));
  for (const std::string wanted : {"/nonexistent", "owner/name", "/proc/self/status"}) {
    const auto named = find_model(wanted, NamedBy::argument);
    REQUIRE_FALSE(named);
    CHECK(named.error().where == "FILE");
    CHECK_FALSE(contains(named.error().next, "-m"));
  }
  const std::string other = test::source_dir() + "/tests/golden/model/llama-mha";
  ::setenv("MCT_MODEL", other.c_str(), 1);
  CHECK(*find_model("") == other);
  CHECK(*find_model("mc-tiny") == *found);
  ::unsetenv("MCT_MODEL");
}

}  // namespace model_test
