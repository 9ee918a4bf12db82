#include "model/weights_gguf.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "base/assert.h"
#include "base/errors.h"

namespace mc::model {
namespace {

enum class Form : uint8_t {
  plain,
  paired_q,  // rows in the order of interleaved pairs where the architecture is llama
  paired_k,  // likewise
  experts,   // [experts, rows, columns]: one tensor for each expert
  one_row,   // [columns] becomes [1, columns]
  ignored,   // read elsewhere, or derived from the configuration
};

struct NameRow {
  std::string_view gguf, ours;
  Form form = Form::plain;
};
constexpr NameRow kWhole[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output.weight", "lm_head.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"rope_freqs.weight", "", Form::ignored},
};
/// Behind "blk.N." here and "model.layers.N." there.
constexpr NameRow kOfLayer[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight", Form::paired_q},
    {"attn_q.bias", "self_attn.q_proj.bias", Form::paired_q},
    {"attn_k.weight", "self_attn.k_proj.weight", Form::paired_k},
    {"attn_k.bias", "self_attn.k_proj.bias", Form::paired_k},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_output.bias", "self_attn.o_proj.bias"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"attn_rot_embd", "", Form::ignored},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_gate.bias", "mlp.gate_proj.bias"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_up.bias", "mlp.up_proj.bias"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"ffn_down.bias", "mlp.down_proj.bias"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"ffn_gate_exps.weight", "gate_proj.weight", Form::experts},
    {"ffn_up_exps.weight", "up_proj.weight", Form::experts},
    {"ffn_down_exps.weight", "down_proj.weight", Form::experts},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", Form::one_row},
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"},
};

struct Place {
  const NameRow* row = nullptr;
  std::string prefix;  // "model.layers.3."
  uint32_t layer = 0;
};

/// Finds where the tensor belongs; `row` stays null for a name without a place.
Place place_of(std::string_view name) {
  Place place;
  std::span<const NameRow> rows = kWhole;
  if (name.starts_with("blk.")) {
    uint32_t layer = 0;
    const char* end = name.data() + name.size();
    const auto [after, error] = std::from_chars(name.data() + 4, end, layer);
    if (error != std::errc() || after == end || *after != '.') return place;
    name = {after + 1, static_cast<size_t>(end - after - 1)};
    place.layer = layer;
    place.prefix = "model.layers." + std::to_string(layer) + ".";
    rows = kOfLayer;
  }
  for (const NameRow& row : rows)
    if (row.gguf == name) place.row = &row;
  return place;
}

class TensorList {
 public:
  TensorList(const gguf::File& file, const ModelConfig& config) : file_(file), config_(config) {}

  Result<std::vector<Tensor>> read() {
    for (const gguf::Tensor& tensor : file_.tensors()) MC_CHECK(add(tensor));
    std::sort(out_.begin(), out_.end(), [](const Tensor& a, const Tensor& b) { return a.entry.name < b.entry.name; });
    const auto same = [](const Tensor& a, const Tensor& b) { return a.entry.name == b.entry.name; };
    const auto twice = std::adjacent_find(out_.begin(), out_.end(), same);
    if (twice != out_.end())  // "blk.07.x" and "blk.7.x"
      return user_error(err::kModelCorrupt,
                        file_.paths()[twice->file] + ": two tensors are " + twice->entry.name.substr(0, 200));
    return std::move(out_);
  }

 private:
  Result<void> add(const gguf::Tensor& tensor) {
    const Place place = place_of(tensor.info.name);
    if (!place.row)
      return user_error(err::kModelUnsupported,
                        file_.paths()[tensor.part] + ": tensor '" + tensor.info.name.substr(0, 200) +
                            "' has no place in the architecture " + std::string(to_string(config_.architecture)));
    if (place.row->form == Form::ignored) return {};
    if (place.layer >= config_.layers)
      return user_error(err::kModelCorrupt,
                        file_.paths()[tensor.part] + ": tensor '" + tensor.info.name.substr(0, 200) + "' is of layer " +
                            std::to_string(place.layer) + ", but block_count is " + std::to_string(config_.layers));
    if (place.row->form == Form::experts) return add_experts(tensor, place);
    Tensor one = converted(tensor, place.prefix + std::string(place.row->ours), tensor.info.shape);
    if (place.row->form == Form::one_row && one.entry.shape.size() == 1)
      one.entry.shape.insert(one.entry.shape.begin(), 1);
    const bool pairs = place.row->form == Form::paired_q || place.row->form == Form::paired_k;
    if (pairs && config_.architecture == Architecture::llama) {
      const uint64_t heads = place.row->form == Form::paired_q ? config_.heads : config_.kv_heads;
      // A tensor of another size is refused by the loader, which knows what it needs.
      if (!one.entry.shape.empty() && one.entry.shape[0] == heads * config_.head_dim)
        one.paired_head = config_.head_dim;
    }
    out_.push_back(std::move(one));
    return {};
  }

  Result<void> add_experts(const gguf::Tensor& tensor, const Place& place) {
    const std::vector<uint64_t>& shape = tensor.info.shape;
    const uint64_t experts = config_.mixture.experts;
    if (shape.size() != 3 || experts == 0 || shape[0] != experts || tensor.info.bytes == 0)
      return user_error(err::kModelCorrupt, file_.paths()[tensor.part] + ": tensor '" +
                                                tensor.info.name.substr(0, 200) + "' has shape " +
                                                TensorEntry{.shape = shape}.shape_text() + "; it must be [" +
                                                std::to_string(experts) + " experts, rows, columns]");
    MC_ASSERT_EQ(tensor.info.bytes % experts, 0u);
    const uint64_t bytes = tensor.info.bytes / experts;
    for (uint64_t i = 0; i < experts; ++i) {
      const std::string name = place.prefix + "mlp.experts." + std::to_string(i) + "." + std::string(place.row->ours);
      Tensor one = converted(tensor, name, {shape[1], shape[2]});
      one.data += i * bytes;
      one.entry.begin += i * bytes;
      one.entry.end = one.entry.begin + bytes;
      out_.push_back(std::move(one));
    }
    return {};
  }

  static Tensor converted(const gguf::Tensor& tensor, std::string name, std::vector<uint64_t> shape) {
    const gguf::TypeInfo& type = gguf::info(tensor.info.type);
    Tensor out{.data = tensor.data, .file = tensor.part};
    out.entry = {.name = std::move(name),
                 .dtype_name = std::string(type.name),
                 .dtype = type.plain,
                 .shape = std::move(shape),
                 .begin = tensor.info.offset,
                 .end = tensor.info.offset + tensor.info.bytes};
    if (!type.plain) out.blocks = tensor.info.type;
    return out;
  }

  const gguf::File& file_;
  const ModelConfig& config_;
  std::vector<Tensor> out_;
};

}  // namespace

Result<std::vector<Tensor>> gguf_tensors(const gguf::File& file, const ModelConfig& config) {
  return TensorList(file, config).read();
}

}  // namespace mc::model
