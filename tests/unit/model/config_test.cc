#include "model/config.h"

#include "base/errors.h"
#include "base/json.h"
#include "test.h"

using namespace mc;
using namespace mc::model;

namespace {

Json base() {
  return Json::object({{"architectures", Json::array({"LlamaForCausalLM"})},
                       {"model_type", "llama"},
                       {"hidden_size", 64},
                       {"intermediate_size", 96},
                       {"num_hidden_layers", 2},
                       {"num_attention_heads", 4},
                       {"num_key_value_heads", 2},
                       {"vocab_size", 128},
                       {"max_position_embeddings", 256},
                       {"rms_norm_eps", 1e-5},
                       {"rope_theta", 10000.0}});
}

Result<ModelConfig> parse(const Json& json, const std::string& generation = {}) {
  return parse_config(json.dump(), generation, "dir");
}

/// Error text (or "ok") after setting one field, given as JSON.
std::string with(const char* field, const std::string& value) {
  Json json = base();
  auto parsed_value = Json::parse(value);
  REQUIRE_OK(parsed_value);
  json.set(field, *parsed_value);
  const auto config = parse(json);
  return config.has_value() ? "ok" : config.error().what;
}

int number_with(const char* field, const std::string& value) {
  Json json = base();
  json.set(field, *Json::parse(value));
  const auto config = parse(json);
  return config.has_value() ? 0 : config.error().mc;
}

std::string without(const char* field) {
  const Json full = base();
  Json json = Json::object({});
  for (const JsonMember& member : full.members())
    if (member.key != field) json.set(member.key, member.value);
  const auto config = parse(json);
  return config.has_value() ? "ok" : config.error().what;
}

bool contains(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("model/config: both RoPE spellings mean the same") {
  Json older = base(), newer = Json::object({});
  older.set("rope_theta", 500000.0);
  older.set("rope_scaling", *Json::parse(R"({"type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,)"
                                         R"("original_max_position_embeddings":64})"));
  for (const JsonMember& member : older.members())
    if (member.key != "rope_theta" && member.key != "rope_scaling") newer.set(member.key, member.value);
  newer.set("rope_parameters",
            *Json::parse(R"({"rope_theta":500000,"rope_type":"llama3","factor":8,"low_freq_factor":1,)"
                         R"("high_freq_factor":4,"original_max_position_embeddings":64})"));
  const auto a = parse(older), b = parse(newer);
  REQUIRE_OK(a);
  REQUIRE_OK(b);
  CHECK(a->rope == b->rope);
  CHECK(a->rope.kind == ops::RopeConfig::Kind::llama3);
  CHECK(a->rope.theta == 500000);
  CHECK(a->kv_digest() == b->kv_digest());
  const auto plain = parse(base());
  REQUIRE_OK(plain);
  CHECK(plain->kv_digest() != a->kv_digest());
}

TEST_CASE("model/config: RoPE kinds that are not done are refused by field and value") {
  CHECK(with("rope_scaling", "null") == "ok");
  CHECK(with("rope_scaling", R"({"rope_type":"default"})") == "ok");
  for (const char* kind : {"longrope", "su", "proportional"}) {
    const std::string value = std::string(R"({"rope_type":")") + kind + R"(","factor":4})";
    CHECK(with("rope_scaling", value) ==
          std::string("dir/config.json: rope_scaling.rope_type is \"") + kind +
              "\"; supported: \"default\", \"linear\", \"dynamic\", \"llama3\", \"yarn\"");
    CHECK(number_with("rope_scaling", value) == err::kRopeUnsupported);
  }
  CHECK(contains(with("rope_scaling", R"({"factor":4})"), "rope_scaling.rope_type is null"));
  CHECK(
      contains(with("rope_parameters", R"({"rope_theta":10000,"rope_type":"longrope"})"), "rope_parameters.rope_type"));
  CHECK(contains(with("rope_parameters", R"({"full_attention":{"rope_theta":1,"rope_type":"default"},)"
                                         R"("sliding_attention":{"rope_theta":1,"rope_type":"default"}})"),
                 "one set of parameters for all layers"));
  CHECK(with("rope_parameters", R"({"full_attention":{"rope_theta":10000,"rope_type":"default"}})") == "ok");
  CHECK(contains(with("rope_parameters", R"({"rope_theta":500,"rope_type":"default"})"),
                 "rope_theta is 10000.0, but rope_parameters.rope_theta is 500"));
  CHECK(contains(with("rope_parameters", R"({"rope_theta":10000})"), "has no rope_type"));
  CHECK(contains(with("partial_rotary_factor", "0.5"), "partial_rotary_factor is 0.5"));
  CHECK(contains(with("rope_scaling", R"({"rope_type":"llama3","factor":8})"), "low_freq_factor is null"));
  CHECK(contains(with("rope_scaling", R"({"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":1,)"
                                      R"("original_max_position_embeddings":64})"),
                 "it must be above low_freq_factor"));
  // A model without theta would silently be run with 10000.
  CHECK(contains(without("rope_theta"), "neither rope_theta nor rope_parameters.rope_theta is given"));
  CHECK(contains(with("rope_theta", "-1"), "rope_theta is -1"));
}

TEST_CASE("model/config: linear and yarn lengthen the context, dynamic ends where its keys would change") {
  const auto positions = [](const std::string& scaling) {
    Json json = base();
    json.set("rope_scaling", *Json::parse(scaling));
    const auto config = parse(json);
    REQUIRE_OK(config);
    return config->max_positions;
  };
  CHECK(positions(R"({"rope_type":"linear","factor":4})") == 1024);
  CHECK(positions(R"({"rope_type":"linear","factor":0.5})") == 256);
  CHECK(positions(R"({"type":"dynamic","factor":4})") == 256);
  CHECK(positions(R"({"type":"yarn","factor":4})") == 1024);
  CHECK(positions(R"({"type":"yarn","factor":4,"original_max_position_embeddings":64})") == 256);
  CHECK(positions(R"({"type":"yarn","factor":4,"original_max_position_embeddings":128})") == 512);
  CHECK(positions(R"({"type":"yarn","factor":1e9,"original_max_position_embeddings":128})") == 16777216);
}

TEST_CASE("model/config: dynamic RoPE is the default one as far as its context goes, linear is another function") {
  Json json = base();
  const auto plain = parse(json);
  json.set("rope_scaling", *Json::parse(R"({"type":"dynamic","factor":4})"));
  const auto dynamic = parse(json);
  json.set("rope_scaling", *Json::parse(R"({"type":"linear","factor":4})"));
  const auto linear = parse(json);
  REQUIRE_OK(plain);
  REQUIRE_OK(dynamic);
  REQUIRE_OK(linear);
  CHECK(plain->kv_digest() == dynamic->kv_digest());
  CHECK(plain->kv_digest() != linear->kv_digest());
}

TEST_CASE("model/config: Mistral's sliding window is its attention, unless mc_attention says otherwise") {
  Json json = base();
  json.set("architectures", Json::array({"MistralForCausalLM"}));
  json.set("model_type", "mistral");
  auto config = parse(json);
  REQUIRE_OK(config);
  CHECK(!config->attention.has_value());
  json.set("sliding_window", 100);
  config = parse(json);
  REQUIRE_OK(config);
  CHECK(*config->attention == *attn::parse_plan("window:tokens=100,full_last=0"));
  json.set("mc_attention", "full");
  config = parse(json);
  REQUIRE_OK(config);
  CHECK(*config->attention == *attn::parse_plan("full"));
  json.set("sliding_window", 0);
  CHECK(contains(parse(json).error().what, "sliding_window is 0"));
}

TEST_CASE("model/config: a mixture's layers are every so many but the dense ones") {
  Json json = base();
  json.set("architectures", Json::array({"Qwen3MoeForCausalLM"}));
  json.set("model_type", "qwen3_moe");
  CHECK(contains(parse(json).error().what, "num_experts is missing"));
  json.set("num_hidden_layers", 8);
  json.set("num_experts", 16);
  json.set("num_experts_per_tok", 4);
  json.set("moe_intermediate_size", 24);
  json.set("decoder_sparse_step", 2);
  json.set("mlp_only_layers", Json::array({3, 6}));
  const auto config = parse(json);
  REQUIRE_OK(config);
  for (uint32_t layer = 0; layer < 8; ++layer)
    CHECK(config->has_mixture(layer) == (layer == 1 || layer == 5 || layer == 7));
  CHECK(config->active_inner(0) == 96);
  CHECK(config->active_inner(1) == 4 * 24);
  const auto refused = [&](const char* field, Json value) {
    Json changed = json;
    changed.set(field, std::move(value));
    const auto result = parse(changed);
    return result.has_value() ? "ok" : result.error().what;
  };
  CHECK(contains(refused("num_experts_per_tok", 17), "num_experts_per_tok is 17, but num_experts is 16"));
  CHECK(contains(refused("mlp_only_layers", Json::array({8})), "mlp_only_layers names 8"));
  CHECK(contains(refused("decoder_sparse_step", 0), "decoder_sparse_step is 0"));
  CHECK(contains(refused("shared_expert_intermediate_size", 64), "shared_expert_intermediate_size is 64"));
  Json other = json;
  other.set("norm_topk_prob", true);
  CHECK(parse(other)->kv_digest() != config->kv_digest());
}

TEST_CASE("model/config: yarn parameters that cannot be are refused by name") {
  CHECK(contains(with("rope_scaling", R"({"type":"yarn"})"), "rope_scaling.factor is null"));
  CHECK(contains(with("rope_scaling", R"({"type":"yarn","factor":4,"beta_fast":1,"beta_slow":2})"),
                 "rope_scaling.beta_fast is 1; it must be above beta_slow 2"));
  CHECK(contains(with("rope_scaling", R"({"type":"yarn","factor":4,"beta_fast":1})"), "rope_scaling.beta_fast is 1"));
  CHECK(contains(with("rope_scaling", R"({"type":"yarn","factor":4,"truncate":3})"), "rope_scaling.truncate is 3"));
  CHECK(contains(with("rope_scaling", R"({"type":"yarn","factor":4,"attention_factor":-1})"),
                 "rope_scaling.attention_factor is -1"));
  CHECK(contains(with("rope_scaling", R"({"type":"yarn","factor":4,"original_max_position_embeddings":64.5})"),
                 "original_max_position_embeddings is 64.5"));
  Json json = base();
  json.set("rope_theta", 1);
  json.set("rope_scaling", *Json::parse(R"({"type":"yarn","factor":4})"));
  const auto config = parse(json);
  REQUIRE(!config.has_value());
  CHECK(contains(config.error().what, "rope_theta is 1"));
}

TEST_CASE("model/config: architectures and arithmetic that are not done are refused by field and value") {
  CHECK(with("architectures", R"(["GemmaForCausalLM"])") ==
        "dir/config.json: architectures is \"GemmaForCausalLM\"; supported: LlamaForCausalLM, Qwen2ForCausalLM, "
        "Qwen3ForCausalLM, MistralForCausalLM, Qwen2MoeForCausalLM, Qwen3MoeForCausalLM");
  CHECK(contains(with("architectures", "[]"), "architectures is []"));
  CHECK(contains(with("model_type", "\"mistral\""), "model_type is \"mistral\"; supported: \"llama\""));
  CHECK(
      contains(with("quantization_config", R"({"quant_method":"gptq","bits":4})"), "quantization_config is \"gptq\""));
  CHECK(number_with("quantization_config", R"({"quant_method":"gptq"})") == err::kQuantUnsupported);
  CHECK(contains(with("quantization_config", R"({"quant_method":"fp8","fmt":"e5m2"})"),
                 "quantization_config.fmt is \"e5m2\"; supported: \"e4m3\""));
  CHECK(contains(with("quantization_config", R"({"quant_method":"compressed-tensors","format":"pack-quantized"})"),
                 "quantization_config.format is \"pack-quantized\""));
  for (const char* block : {"128", "[128]", "[0,128]", "[128,1.5]", "[-1,1]"})
    CHECK(contains(with("quantization_config",
                        (std::string(R"({"quant_method":"fp8","weight_block_size":)") + block + "}").c_str()),
                   "quantization_config.weight_block_size is"));
  CHECK(contains(with("hidden_act", "\"gelu\""), "hidden_act is \"gelu\"; supported: \"silu\""));
  CHECK(contains(with("sliding_window", "4096"), "sliding_window is 4096"));
  CHECK(contains(with("use_sliding_window", "true"), "use_sliding_window is true"));
  CHECK(contains(with("layer_types", R"(["full_attention","sliding_attention"])"),
                 "layer_types is \"sliding_attention\""));
  CHECK(contains(with("torch_dtype", "\"float8_e4m3fn\""), "torch_dtype is \"float8_e4m3fn\""));
  CHECK(contains(with("head_dim", "33"), "head_dim is 33"));
  Json qwen = base();
  qwen.set("architectures", Json::array({"Qwen2ForCausalLM"}));
  qwen.set("model_type", "qwen2");
  qwen.set("sliding_window", 4096);
  qwen.set("use_sliding_window", false);
  CHECK(parse(qwen).has_value());
}

TEST_CASE("model/config: sizes that cannot be are refused by name") {
  CHECK(without("hidden_size") == "dir/config.json: hidden_size is missing");
  CHECK(with("num_hidden_layers", "0") ==
        "dir/config.json: num_hidden_layers is 0; it must be a whole number from 1 to 1024");
  CHECK(contains(with("hidden_size", "\"64\""), "hidden_size is \"64\""));
  CHECK(contains(with("vocab_size", "1e9"), "vocab_size is 1"));
  CHECK(contains(with("num_key_value_heads", "3"), "not a multiple of num_key_value_heads 3"));
  CHECK(contains(with("hidden_size", "65"), "not a multiple of num_attention_heads 4, and there is no head_dim"));
  CHECK(contains(with("rms_norm_eps", "0"), "rms_norm_eps is 0"));
  CHECK(contains(with("tie_word_embeddings", "\"yes\""), "it must be true or false"));
  CHECK(contains(with("eos_token_id", "[1,128]"), "eos_token_id names 128; it must be below 128"));
  CHECK(contains(with("mc_attention", "\"moba:blok=3\""), "mc_attention"));
  CHECK(contains(with("mc_attention", "5"), "it must be a string"));
}

TEST_CASE("model/config: each architecture has its own biases and norms") {
  const auto of = [](const char* name, const char* type, bool bias) {
    Json json = base();
    json.set("architectures", Json::array({name}));
    json.set("model_type", type);
    json.set("attention_bias", bias);
    auto config = parse(json);
    REQUIRE_OK(config);
    return *config;
  };
  CHECK(of("Qwen2ForCausalLM", "qwen2", false).bias.qkv);
  CHECK(!of("Qwen2ForCausalLM", "qwen2", false).bias.output);
  CHECK(!of("LlamaForCausalLM", "llama", false).bias.qkv);
  CHECK(of("LlamaForCausalLM", "llama", true).bias.output);
  CHECK(of("Qwen3ForCausalLM", "qwen3", false).qk_norm);
  CHECK(!of("LlamaForCausalLM", "llama", false).qk_norm);
  CHECK(of("LlamaForCausalLM", "llama", false).head_dim == 16);
}

TEST_CASE("model/config: generation_config.json gives stop ids and sampling defaults") {
  Json json = base();
  json.set("eos_token_id", 5);
  const auto plain = parse(json);
  REQUIRE_OK(plain);
  CHECK(plain->special.eos == std::vector<uint32_t>{5});
  CHECK(!plain->generation.temperature);
  const auto config = parse(json, R"({"eos_token_id":[9,3,9],"temperature":0.7,"top_k":20,"top_p":0.8})");
  REQUIRE_OK(config);
  CHECK(config->special.eos == std::vector<uint32_t>{3, 9});
  CHECK(config->generation.temperature == 0.7);
  CHECK(config->generation.top_k == 20);
  CHECK(!config->generation.min_p);
  CHECK(contains(parse(json, "[1]").error().what, "dir/generation_config.json: is a array"));
  CHECK(contains(parse(json, R"({"eos_token_id":-1})").error().what, "eos_token_id names -1"));
}

TEST_CASE("model/config: text that is no config is refused with the file's name") {
  CHECK(contains(parse_config("", "", "dir").error().what, "dir/config.json: "));
  CHECK(contains(parse_config("{\"a\":1,}", "", "dir").error().what, "dir/config.json: "));
  CHECK(read_config("/nonexistent").error().what == "/nonexistent has no config.json");
  CHECK(read_config("/nonexistent").error().mc == err::kModelIncomplete);
}
