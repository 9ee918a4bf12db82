// Writes a GGUF model as a folder in Hugging Face form: config.json, tokenizer.json, tokenizer_config.json and
// model.safetensors, with the weights widened to f32. For Llama models with default RoPE and the tokenizer of SmolLM.
//
//   safetensors-of FILE.gguf FOLDER
//
// The folder is another form of one model: tests compare what programs make of both.
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "base/errors.h"
#include "base/json.h"
#include "gguf/gguf.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "ops/matmul.h"

using namespace mc;

namespace {

namespace fs = std::filesystem;

void write_text(const fs::path& path, const Json& json) {
  std::ofstream(path, std::ios::binary) << json.dump();
}

Json config_json(const model::ModelConfig& c) {
  MC_ASSERT(c.architecture == model::Architecture::llama && c.rope.kind == ops::RopeConfig::Kind::plain);
  Json out = Json::object({{"architectures", Json::array({"LlamaForCausalLM"})}, {"model_type", "llama"}});
  out.set("hidden_size", c.hidden).set("intermediate_size", c.intermediate).set("num_hidden_layers", c.layers);
  out.set("num_attention_heads", c.heads).set("num_key_value_heads", c.kv_heads).set("head_dim", c.head_dim);
  out.set("vocab_size", c.vocab).set("max_position_embeddings", c.max_positions).set("hidden_act", "silu");
  out.set("rms_norm_eps", double{c.norm_epsilon}).set("rope_theta", c.rope.theta);
  out.set("tie_word_embeddings", c.tied_embeddings).set("torch_dtype", "float32");
  if (c.special.bos) out.set("bos_token_id", *c.special.bos);
  Json ends = Json::array();
  for (const uint32_t id : c.special.eos) ends.push(id);
  return std::move(out.set("eos_token_id", std::move(ends)));
}

std::vector<std::string_view> texts_of(const gguf::File& file, const char* key) {
  const gguf::Value* value = file.header().find(key);
  const auto texts = value ? value->texts() : std::nullopt;
  MC_ASSERT(texts.has_value());
  return *texts;
}

/// Byte-level BPE behind single digits, as the released tokenizer.json has it.
Json tokenizer_json(const gguf::File& file) {
  constexpr double kControl = 3;
  const auto tokens = texts_of(file, "tokenizer.ggml.tokens"), merges = texts_of(file, "tokenizer.ggml.merges");
  const auto types = file.header().find("tokenizer.ggml.token_type")->numbers();
  MC_ASSERT(types && types->size() == tokens.size());
  Json::Object vocabulary;
  Json added = Json::array(), pairs = Json::array();
  for (size_t id = 0; id < tokens.size(); ++id) {
    vocabulary.push_back({std::string(tokens[id]), Json(id)});
    if ((*types)[id] != kControl) continue;
    Json token = Json::object({{"id", id}, {"content", tokens[id]}, {"special", true}});
    for (const char* key : {"single_word", "lstrip", "rstrip", "normalized"}) token.set(key, false);
    added.push(std::move(token));
  }
  for (const std::string_view merge : merges) pairs.push(Json(merge));
  Json bpe = Json::object({{"type", "BPE"}, {"fuse_unk", false}, {"byte_fallback", false}});
  for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"})
    bpe.set(key, nullptr);
  bpe.set("vocab", Json(std::move(vocabulary))).set("merges", std::move(pairs));
  const Json bytes =
      Json::object({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}});
  const Json digits = Json::object({{"type", "Digits"}, {"individual_digits", true}});
  Json out = Json::object({{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"normalizer", nullptr}});
  out.set("added_tokens", std::move(added));
  out.set("pre_tokenizer", Json::object({{"type", "Sequence"}, {"pretokenizers", Json::array({digits, bytes})}}));
  return std::move(out.set("post_processor", nullptr).set("decoder", bytes).set("model", std::move(bpe)));
}

Json tokenizer_config_json(const gguf::File& file) {
  const gguf::Value* chat = file.header().find("tokenizer.chat_template");
  MC_ASSERT(chat && chat->text());
  return Json::object({{"tokenizer_class", "GPT2Tokenizer"}, {"chat_template", *chat->text()}});
}

void write_weights(const fs::path& path, const model::WeightFiles& files) {
  Json header = Json::object();
  uint64_t at = 0;
  for (const model::Tensor& tensor : files.tensors()) {
    Json shape = Json::array();
    for (const uint64_t size : tensor.entry.shape) shape.push(size);
    const uint64_t end = at + tensor.entry.elements() * sizeof(float);
    header.set(tensor.entry.name,
               Json::object({{"dtype", "F32"}, {"shape", std::move(shape)}, {"data_offsets", Json::array({at, end})}}));
    at = end;
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), sizeof length);
  out << text;
  for (const model::Tensor& tensor : files.tensors()) {
    const auto& shape = tensor.entry.shape;
    const size_t rows = shape.size() == 1 ? 1 : shape[0], columns = shape.back();
    const ops::WeightRows source{.data = tensor.data,
                                 .dtype = tensor.entry.dtype.value_or(Dtype::f32),
                                 .rows = rows,
                                 .blocks = tensor.blocks,
                                 .paired_head = tensor.paired_head};
    std::vector<std::byte> row(columns * sizeof(float));
    for (size_t i = 0; i < rows; ++i) {
      ops::convert_row(source, i, columns, Dtype::f32, row.data());
      out.write(reinterpret_cast<const char*>(row.data()), static_cast<std::streamsize>(row.size()));
    }
  }
}

Result<void> convert(const std::string& model, const fs::path& folder) {
  MC_TRY(config, model::read_config(model));
  MC_TRY(file, gguf::File::open(model));
  MC_TRY(weights, model::WeightFiles::open(model));
  fs::create_directories(folder);
  write_text(folder / "config.json", config_json(config));
  write_text(folder / "tokenizer.json", tokenizer_json(file));
  write_text(folder / "tokenizer_config.json", tokenizer_config_json(file));
  write_weights(folder / "model.safetensors", weights);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("safetensors-of FILE.gguf FOLDER\n", stderr);
    return 2;
  }
  const auto done = convert(argv[1], argv[2]);
  if (done) return 0;
  std::fputs(format_error("safetensors-of", done.error()).c_str(), stderr);
  return 1;
}
