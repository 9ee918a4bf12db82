// `mc-bench mkmodel`: a random model in Hugging Face form, for tests and benches. Every weight is a pure
// function of (seed, tensor name, index), made without libm, so a seed gives the same bytes everywhere.
// The tokenizer is mc-tiny's when the vocabulary has room for it, else its 256 bytes and special tokens.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/choice.h"
#include "base/dtype.h"
#include "base/errors.h"
#include "base/fd.h"
#include "base/rng.h"
#include "model/config.h"
#include "model/find.h"
#include "print.h"
#include "product/flags.h"
#include "verbs.h"

namespace mc::bench {
namespace {

enum class Arch : uint8_t { llama, qwen2, qwen3, qwen2_moe, qwen3_moe };
constexpr FlagWord<Arch> kArchs[] = {{"llama", Arch::llama},
                                     {"qwen2", Arch::qwen2},
                                     {"qwen3", Arch::qwen3},
                                     {"qwen2_moe", Arch::qwen2_moe},
                                     {"qwen3_moe", Arch::qwen3_moe}};
constexpr ChoiceFlag kArch = with_choices<kArchs>(
    {.name = "arch", .kind = FlagKind::choice, .value = "A", .fallback = "llama", .help = "architecture"});
constexpr Flag count_flag(std::string_view name, std::string_view fallback, std::string_view help,
                          std::string_view choices = "") {
  return {.name = name, .kind = FlagKind::count, .value = "N", .fallback = fallback, .help = help, .choices = choices};
}
constexpr Flag kLayers = count_flag("layers", "2", "transformer layers");
constexpr Flag kHidden = count_flag("hidden", "64", "width of the residual stream");
constexpr Flag kIntermediate = count_flag("intermediate", "auto", "width of the MLP; auto is 3 times --hidden", "auto");
constexpr Flag kExperts =
    count_flag("experts", "8", "qwen2_moe, qwen3_moe: experts of a layer, each of width --intermediate");
constexpr Flag kExpertsPerToken = count_flag("experts-per-token", "2", "qwen2_moe, qwen3_moe: experts of a token");
constexpr Flag kModelHeads = count_flag("heads", "4", "query heads");
constexpr Flag kKvHeads = count_flag("kv-heads", "2", "key and value heads; divides --heads");
constexpr Flag kHeadDim =
    count_flag("head-dim", "auto", "width of a head; auto is --hidden / --heads, at least 32", "auto");
constexpr Flag kModelVocab =
    count_flag("vocab", "2048", "tokens; below 2048 the tokenizer knows bytes only (at least 264)");
constexpr Flag kContext = count_flag("context", "8192", "max_position_embeddings");
constexpr FlagWord<Dtype> kWeightDtypes[] = {
    {"f32", Dtype::f32}, {"bf16", Dtype::bf16}, {"f16", Dtype::f16}, {"fp8", Dtype::f8_e4m3}};
constexpr ChoiceFlag kWeightDtype =
    with_choices<kWeightDtypes>({.name = "dtype",
                                 .kind = FlagKind::choice,
                                 .value = "T",
                                 .fallback = "bf16",
                                 .help = "type of the weights; fp8: of the layers' matrices, the rest is bf16"});
constexpr Flag kTied{.name = "tied", .kind = FlagKind::boolean, .help = "the head shares the embedding's weights"};
constexpr Flag kShardSize{.name = "shard-size",
                          .kind = FlagKind::bytes,
                          .value = "SIZE",
                          .fallback = "2GiB",
                          .help = "a larger model is written as shards of about this size with an index"};
constexpr Flag kDirectory{
    .name = "output", .letter = 'o', .value = "DIR", .help = "directory to write; made if missing"};

constexpr auto kMkmodelFlagTable = flags::join(
    flags::list(&kArch, &kLayers, &kHidden, &kIntermediate, &kExperts, &kExpertsPerToken, &kModelHeads, &kKvHeads,
                &kHeadDim, &kModelVocab, &kContext, &kWeightDtype, &kTied, &kShardSize, &kDirectory, &flags::kSeed),
    flags::kEveryRun);

constexpr uint32_t kByteVocab = 264;  // mc-tiny's special tokens, then the 256 bytes
constexpr uint32_t kTinyVocab = 2048;
constexpr uint64_t kFp8Block = 128;
constexpr double kBellMax = 2 * 1.7320508075688772, kFp8Max = 448;

struct Shape {
  Arch arch;
  uint64_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, context, experts, per_token, seed;
  Dtype dtype;
  bool fp8, tied;
  bool is_mixture() const { return arch == Arch::qwen2_moe || arch == Arch::qwen3_moe; }
  bool is_qwen2() const { return arch == Arch::qwen2 || arch == Arch::qwen2_moe; }
  bool is_qwen3() const { return arch == Arch::qwen3 || arch == Arch::qwen3_moe; }
};

struct TensorPlan {
  std::string name;
  std::vector<uint64_t> shape;
  enum class Fill { normal, ones, bias, scales } fill = Fill::normal;
  Dtype dtype = Dtype::bf16;
  uint64_t inputs = 0;  // of scales: the columns of what they scale
  uint64_t elements() const {
    uint64_t n = 1;
    for (uint64_t d : shape) n *= d;
    return n;
  }
};

Result<Shape> read_shape(const cli::Args& args) {
  Shape s{.arch = choice_of(args, kArch), .seed = args.count(flags::kSeed), .tied = args.on(kTied)};
  struct Field {
    const Flag& flag;
    uint64_t Shape::*value;
    uint64_t low, high;
  };
  for (const Field& f :
       {Field{kLayers, &Shape::layers, 1, 512}, Field{kHidden, &Shape::hidden, 16, 65536},
        Field{kModelHeads, &Shape::heads, 1, 512}, Field{kKvHeads, &Shape::kv_heads, 1, 512},
        Field{kExperts, &Shape::experts, 1, 4096}, Field{kExpertsPerToken, &Shape::per_token, 1, 4096},
        Field{kModelVocab, &Shape::vocab, kByteVocab, 1 << 20}, Field{kContext, &Shape::context, 16, 1 << 20}}) {
    s.*f.value = args.count(f.flag);
    if (s.*f.value < f.low || s.*f.value > f.high) return out_of_range(f.flag, s.*f.value, f.low, f.high);
  }
  s.head_dim = args.present(kHeadDim) ? args.count(kHeadDim) : std::max<uint64_t>(32, s.hidden / s.heads / 2 * 2);
  s.intermediate = args.present(kIntermediate) ? args.count(kIntermediate) : 3 * s.hidden;
  if (s.heads % s.kv_heads != 0)
    return user_error(
        err::kBadValue,
        "--kv-heads " + std::to_string(s.kv_heads) + " does not divide --heads " + std::to_string(s.heads),
        "--kv-heads");
  if (s.is_mixture() && s.per_token > s.experts) return out_of_range(kExpertsPerToken, s.per_token, 1, s.experts);
  if (s.head_dim < 2 || s.head_dim % 2 != 0 || s.head_dim > 1024)
    return out_of_range(kHeadDim, std::to_string(s.head_dim), "even, 2 to 1024");
  if (s.intermediate < 1 || s.intermediate > 1 << 20) return out_of_range(kIntermediate, s.intermediate, 1, 1 << 20);
  s.dtype = choice_of(args, kWeightDtype);
  s.fp8 = s.dtype == Dtype::f8_e4m3;
  if (s.fp8) s.dtype = Dtype::bf16;
  return s;
}

std::vector<TensorPlan> plan_tensors(const Shape& s) {
  std::vector<TensorPlan> out;
  using Fill = TensorPlan::Fill;
  const uint64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const auto matrix = [&](const std::string& name, uint64_t rows, uint64_t columns) {
    out.push_back({name, {rows, columns}, Fill::normal, s.fp8 ? Dtype::f8_e4m3 : s.dtype});
    const auto blocks = [](uint64_t n) { return (n + kFp8Block - 1) / kFp8Block; };
    if (s.fp8) out.push_back({name + "_scale_inv", {blocks(rows), blocks(columns)}, Fill::scales, Dtype::f32, columns});
  };
  out.push_back({"model.embed_tokens.weight", {s.vocab, s.hidden}});
  for (uint64_t i = 0; i < s.layers; ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    out.push_back({at + "input_layernorm.weight", {s.hidden}, Fill::ones});
    for (const auto& [name, rows] : {std::pair{"q", q}, std::pair{"k", kv}, std::pair{"v", kv}}) {
      matrix(at + "self_attn." + name + "_proj.weight", rows, s.hidden);
      if (s.is_qwen2()) out.push_back({at + "self_attn." + name + "_proj.bias", {rows}, Fill::bias});
    }
    matrix(at + "self_attn.o_proj.weight", s.hidden, q);
    if (s.is_qwen3())
      for (const char* name : {"q_norm", "k_norm"})
        out.push_back({at + "self_attn." + name + ".weight", {s.head_dim}, Fill::ones});
    out.push_back({at + "post_attention_layernorm.weight", {s.hidden}, Fill::ones});
    const auto mlp = [&](const std::string& prefix) {
      for (const char* name : {"gate", "up"}) matrix(prefix + name + "_proj.weight", s.intermediate, s.hidden);
      matrix(prefix + "down_proj.weight", s.hidden, s.intermediate);
    };
    if (!s.is_mixture()) {
      mlp(at + "mlp.");
      continue;
    }
    out.push_back({at + "mlp.gate.weight", {s.experts, s.hidden}});  // checkpoints have no router in fp8
    for (uint64_t expert = 0; expert < s.experts; ++expert) mlp(at + "mlp.experts." + std::to_string(expert) + ".");
    if (!s.is_qwen2()) continue;
    mlp(at + "mlp.shared_expert.");
    out.push_back({at + "mlp.shared_expert_gate.weight", {1, s.hidden}});
  }
  out.push_back({"model.norm.weight", {s.hidden}, Fill::ones});
  if (!s.tied) out.push_back({"lm_head.weight", {s.vocab, s.hidden}});
  for (TensorPlan& tensor : out)
    if (tensor.dtype == Dtype::bf16) tensor.dtype = s.dtype;
  return out;
}

/// Close to a standard normal (four uniforms added: variance 1, range +-2 sqrt 3), exact in arithmetic.
double bell(uint64_t seed, uint64_t stream, uint64_t index) {
  const auto word = philox4x32(seed, index, stream);
  double sum = 0;
  for (uint32_t w : word) sum += static_cast<double>(w) * 0x1p-32;
  return (sum - 2) * 1.7320508075688772;
}

uint16_t to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const int32_t exponent = static_cast<int32_t>(bits >> 23 & 255) - 112;
  // Weights lie well inside the range; what is smaller than the least normal number becomes zero.
  if (exponent <= 0) return static_cast<uint16_t>(sign);
  const uint32_t rounded = (bits & 0x7FFFFF) + 0xFFF + (bits >> 13 & 1);
  return static_cast<uint16_t>(sign + (static_cast<uint32_t>(exponent) << 10) + (rounded >> 13));
}

/// E4M3, to nearest even; |value| <= 448.
uint8_t to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 24 & 0x80;
  const int32_t exponent = static_cast<int32_t>(bits >> 23 & 255) - 120;
  if (exponent <= 0) return static_cast<uint8_t>(sign + static_cast<uint32_t>(std::lrintf(std::abs(value) * 512)));
  const uint32_t rounded = (bits & 0x7FFFFF) + 0x7FFFF + (bits >> 20 & 1);
  return static_cast<uint8_t>(sign + (static_cast<uint32_t>(exponent) << 3) + (rounded >> 20));
}

void append_element(std::string& out, float value, Dtype dtype) {
  if (dtype == Dtype::f8_e4m3) {
    out.push_back(static_cast<char>(to_e4m3(value)));
  } else if (dtype == Dtype::f32) {
    out.append(reinterpret_cast<const char*>(&value), 4);
  } else {
    const uint16_t half = dtype == Dtype::f16 ? to_f16(value) : f32_to_bf16(value);
    out.append(reinterpret_cast<const char*>(&half), 2);
  }
}

Result<void> write_tensor(int fd, const TensorPlan& tensor, const Shape& s) {
  const uint64_t stream = fnv1a(tensor.name);
  // Rows with unit gain: activations neither vanish nor explode, so the argmax is a real choice. Of fp8 the codes
  // use the whole range, and the scales bring the gain back.
  const auto gain = [](uint64_t inputs) { return 1 / std::sqrt(static_cast<double>(inputs)); };
  const double scale = tensor.dtype == Dtype::f8_e4m3            ? kFp8Max / kBellMax
                       : tensor.fill == TensorPlan::Fill::bias   ? 0.1
                       : tensor.fill == TensorPlan::Fill::scales ? 0
                       : tensor.shape.size() == 2                ? gain(tensor.shape[1])
                                                                 : 0.1;
  const double middle = tensor.fill == TensorPlan::Fill::ones     ? 1
                        : tensor.fill == TensorPlan::Fill::scales ? gain(tensor.inputs) * kBellMax / kFp8Max
                                                                  : 0;
  std::string piece;
  for (uint64_t i = 0; i < tensor.elements(); ++i) {
    const double value = bell(s.seed, stream, i) * scale + middle;
    append_element(piece, static_cast<float>(value), tensor.dtype);
    if (piece.size() < 1 << 20) continue;
    MC_CHECK(write_all(fd, piece));
    piece.clear();
  }
  return write_all(fd, piece);
}

uint64_t tensor_bytes(const TensorPlan& tensor) {
  return tensor.elements() * dtype_bytes(tensor.dtype);
}

std::string_view stored_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32: return "F32";
    case Dtype::f16: return "F16";
    case Dtype::f8_e4m3: return "F8_E4M3";
    default: return "BF16";
  }
}

/// A safetensors file with those tensors.
Result<void> write_file(int fd, std::span<const TensorPlan> tensors, const Shape& s) {
  Json header = Json::object({{"__metadata__", Json::object({{"format", "pt"}})}});
  uint64_t at = 0;
  for (const TensorPlan& tensor : tensors) {
    Json shape = Json::array();
    for (uint64_t d : tensor.shape) shape.push(d);
    const uint64_t end = at + tensor_bytes(tensor);
    header.set(tensor.name,
               Json::object(
                   {{"dtype", stored_name(tensor.dtype)}, {"shape", shape}, {"data_offsets", Json::array({at, end})}}));
    at = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();  // x86: little-endian as the format wants
  MC_CHECK(write_all(fd, std::string_view(reinterpret_cast<const char*>(&length), 8)));
  MC_CHECK(write_all(fd, text));
  for (const TensorPlan& tensor : tensors) MC_CHECK(write_tensor(fd, tensor, s));
  return {};
}

/// A file that cannot be written leaves nothing behind.
Result<void> write_shard(const std::string& path, std::span<const TensorPlan> tensors, const Shape& s) {
  const std::string temporary = path + ".part";
  Fd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd) return as_user_error(err::kFileAccess, errno_error("open " + temporary));
  if (auto written = write_file(fd.get(), tensors, s); !written) {
    (void)::unlink(temporary.c_str());
    Error error = within(path, std::move(written).error());
    return as_user_error(error.code == Code::no_space ? err::kDiskFull : err::kFileAccess, std::move(error));
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0)
    return as_user_error(err::kFileAccess, errno_error("rename " + path));
  return {};
}

/// One file, or shards and their index. Returns the number of files.
Result<size_t> write_weights(const std::string& directory, std::span<const TensorPlan> tensors, const Shape& s,
                             uint64_t shard_bytes) {
  std::vector<std::span<const TensorPlan>> shards;
  uint64_t total = 0, here = 0;
  for (size_t first = 0, i = 0; i < tensors.size(); ++i) {
    const uint64_t bytes = tensor_bytes(tensors[i]);
    if (i > first && here + bytes > shard_bytes) {
      shards.push_back(tensors.subspan(first, i - first));
      first = i;
      here = 0;
    }
    here += bytes;
    total += bytes;
    if (i + 1 == tensors.size()) shards.push_back(tensors.subspan(first));
  }
  if (shards.size() == 1) {
    MC_CHECK(write_shard(directory + "/model.safetensors", shards[0], s));
    return size_t{1};
  }
  Json map = Json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    MC_CHECK(write_shard(directory + "/" + name, shards[i], s));
    for (const TensorPlan& tensor : shards[i]) map.set(tensor.name, name);
  }
  Json index = Json::object({{"metadata", Json::object({{"total_size", total}})}, {"weight_map", std::move(map)}});
  MC_CHECK(write_file_atomic(directory + "/model.safetensors.index.json", index.dump() + "\n"));
  return shards.size();
}

const char* architecture_name(Arch arch) {
  switch (arch) {
    case Arch::llama: return "LlamaForCausalLM";
    case Arch::qwen2: return "Qwen2ForCausalLM";
    case Arch::qwen3: return "Qwen3ForCausalLM";
    case Arch::qwen2_moe: return "Qwen2MoeForCausalLM";
    case Arch::qwen3_moe: return "Qwen3MoeForCausalLM";
  }
  return "?";
}

Json config_json(const Shape& s) {
  Json out = Json::object(
      {{"architectures", Json::array({architecture_name(s.arch)})}, {"model_type", word_for(kArch, s.arch)}});
  out.set("vocab_size", s.vocab).set("hidden_size", s.hidden).set("intermediate_size", s.intermediate);
  out.set("num_hidden_layers", s.layers).set("num_attention_heads", s.heads).set("num_key_value_heads", s.kv_heads);
  out.set("head_dim", s.head_dim).set("hidden_act", "silu").set("max_position_embeddings", s.context);
  out.set("rms_norm_eps", 1e-6).set("rope_theta", s.arch == Arch::llama ? 500000.0 : 1000000.0);
  out.set("tie_word_embeddings", s.tied);
  // Qwen2 has biases on q, k and v by definition, the others none.
  if (!s.is_qwen2()) out.set("attention_bias", false);
  if (s.arch == Arch::llama) out.set("mlp_bias", false);
  if (s.arch != Arch::llama) out.set("use_sliding_window", false);
  if (s.is_mixture()) {
    out.set("num_experts", s.experts).set("num_experts_per_tok", s.per_token);
    out.set("moe_intermediate_size", s.intermediate).set("norm_topk_prob", s.is_qwen3());
    if (s.is_qwen2()) out.set("shared_expert_intermediate_size", s.intermediate);
  }
  out.set("bos_token_id", 0).set("eos_token_id", Json::array({1, 2})).set("pad_token_id", 7);
  out.set("torch_dtype", s.dtype == Dtype::f32 ? "float32" : s.dtype == Dtype::f16 ? "float16" : "bfloat16");
  if (s.fp8) {
    Json form = Json::object({{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"activation_scheme", "dynamic"}});
    out.set("quantization_config", std::move(form.set("weight_block_size", Json::array({kFp8Block, kFp8Block}))));
  }
  return std::move(out.set("use_cache", true));
}

/// The bytes and special tokens of mc-tiny's tokenizer, no merges: HF's form of a byte tokenizer.
Result<std::string> byte_tokenizer(const std::string& text) {
  MC_TRY(full, Json::parse(text));
  Json out = Json::object();
  for (const JsonMember& member : full.members()) {
    if (member.key != "model") {
      out.set(member.key, member.value);
      continue;
    }
    Json model = Json::object();
    for (const JsonMember& field : member.value.members()) {
      Json vocab = Json::object();
      if (field.key == "vocab") {
        for (const JsonMember& token : field.value.members())
          if (token.value.as_int() < kByteVocab) vocab.set(token.key, token.value);
      }
      model.set(field.key, field.key == "vocab" ? vocab : field.key == "merges" ? Json::array() : field.value);
    }
    out.set("model", std::move(model));
  }
  return out.dump() + "\n";
}

Result<void> write_texts(const std::string& directory, const Shape& s) {
  MC_CHECK(write_file_atomic(directory + "/config.json", config_json(s).dump() + "\n"));
  const Json generation = Json::object(
      {{"bos_token_id", 0}, {"eos_token_id", Json::array({1, 2})}, {"pad_token_id", 7}, {"do_sample", false}});
  MC_CHECK(write_file_atomic(directory + "/generation_config.json", generation.dump() + "\n"));
  MC_TRY(tiny, model::find_model("mc-tiny"));
  for (const char* file : {"/tokenizer.json", "/tokenizer_config.json", "/special_tokens_map.json"}) {
    MC_TRY(text, read_file(tiny + file, size_t{16} << 20));
    if (std::string_view(file) == "/tokenizer.json" && s.vocab < kTinyVocab) {
      MC_TRY(bytes, byte_tokenizer(text));
      text = std::move(bytes);
    }
    if (std::string_view(file) == "/tokenizer_config.json") {
      MC_TRY(config, Json::parse(text));
      text = config.set("model_max_length", s.context).dump() + "\n";
    }
    MC_CHECK(write_file_atomic(directory + file, text));
  }
  return {};
}

}  // namespace

const cli::FlagList kMkmodelFlags = kMkmodelFlagTable;

Result<int> mkmodel(const cli::Args& args) {
  const std::string directory = args.text(kDirectory);
  if (directory.empty()) return user_error(err::kUsage, "mkmodel needs -o DIR", "-o");
  MC_TRY(s, read_shape(args));
  if (::mkdir(directory.c_str(), 0755) != 0 && errno != EEXIST)
    return as_user_error(err::kFileAccess, errno_error("mkdir " + directory));
  if (::access((directory + "/config.json").c_str(), F_OK) == 0)
    return user_error(err::kFileAccess, directory + " holds a model already", "-o",
                      "remove it first, or name another directory");
  const auto tensors = plan_tensors(s);
  MC_CHECK(write_texts(directory, s));
  MC_TRY(files, write_weights(directory, tensors, s, std::max<uint64_t>(1, args.bytes(kShardSize))));
  uint64_t parameters = 0, bytes = 0;
  for (const auto& tensor : tensors) {
    parameters += tensor.fill == TensorPlan::Fill::scales ? 0 : tensor.elements();
    bytes += tensor_bytes(tensor);
  }
  // Read back with the loader's own eyes: what it refuses must not be left behind as a success.
  MC_CHECK(model::read_config(directory));
  if (args.on(flags::kJson)) {
    Json out = Json::object({{"type", "result"}, {"schema", "mc.bench.mkmodel.v1"}, {"directory", directory}});
    out.set("arch", word_for(kArch, s.arch))
        .set("parameters", parameters)
        .set("weight_bytes", bytes)
        .set("weight_files", files);
    out.set("vocab", s.vocab).set("tokenizer", s.vocab < kTinyVocab ? "bytes" : "mc-tiny").set("seed", s.seed);
    MC_CHECK(write_all(1, out.dump() + "\n"));
  } else {
    MC_CHECK(write_all(1, directory + ": " + std::string(word_for(kArch, s.arch)) + ", " + thousands(parameters) +
                              " parameters, " + human_bytes(bytes) + " in " + std::to_string(files) + " file(s)\n"));
  }
  return 0;
}

}  // namespace mc::bench
