// The spellings of RoPE in config.json: `rope_theta` + `rope_scaling{rope_type|type, ...}`, or the newer
// `rope_parameters{rope_theta, rope_type, ...}`. A reader of one spelling alone would silently use wrong frequencies,
// so absent, duplicate or unknown parameters are refused.
//
// To add a kind: a row of kKinds here and its frequencies in ops/rope.cc.
#include <algorithm>
#include <cmath>
#include <optional>

#include "model/config_reader.h"

namespace mc::model {
namespace {

using Kind = ops::RopeConfig::Kind;

/// One object of RoPE parameters in the file, and its path in the file.
struct Parameters {
  const Reader& reader;
  const Json& object;
  std::string where;

  bool given(const char* field) const { return object.has(field) && !object[field].is_null(); }
  std::string path(const char* field) const { return where + "." + field; }
  Result<double> positive(const char* field) const { return reader.positive(object, path(field)); }
  Result<double> positive_or(const char* field, double fallback) const {
    if (!given(field)) return fallback;
    return positive(field);
  }
  /// The context length of the training, before RoPE was scaled.
  Result<uint32_t> original(uint32_t fallback) const {
    constexpr const char* kField = "original_max_position_embeddings";
    if (fallback > 0 && !given(kField)) return fallback;
    MC_TRY(value, positive(kField));
    if (value > (1 << 24) || value != std::floor(value))
      return reader.invalid(path(kField),
                            "is " + quoted(object[kField]) + "; it must be a whole number up to 16777216");
    return static_cast<uint32_t>(value);
  }
};

Result<void> read_plain(const Parameters&, uint32_t&, ops::RopeConfig&) {
  return {};
}

/// max_position_embeddings remains that of the training (Hugging Face's convention), and the context grows.
Result<void> read_linear(const Parameters& from, uint32_t& positions, ops::RopeConfig& rope) {
  MC_TRY(factor, from.positive("factor"));
  rope.factor = factor;
  if (factor > 1) positions = static_cast<uint32_t>(std::min(positions * factor, 16777216.0));
  return {};
}

/// Up to max_position_embeddings the factor has no effect. Beyond it, every key would depend on the final length of its
/// sequence, so no block could be reused. The context therefore ends there.
Result<void> read_dynamic(const Parameters& from, uint32_t&, ops::RopeConfig& rope) {
  MC_CHECK(from.positive("factor"));
  rope.kind = Kind::plain;  // the factor has no effect, so the namespace stays that of plain RoPE
  return {};
}

Result<void> read_llama3(const Parameters& from, uint32_t&, ops::RopeConfig& rope) {
  MC_TRY(factor, from.positive("factor"));
  MC_TRY(low, from.positive("low_freq_factor"));
  MC_TRY(high, from.positive("high_freq_factor"));
  MC_TRY(original, from.original(0));
  if (!(high > low))
    return from.reader.invalid(from.path("high_freq_factor"), "is " + quoted(from.object["high_freq_factor"]) +
                                                                  "; it must be above low_freq_factor " +
                                                                  quoted(from.object["low_freq_factor"]));
  rope.factor = factor;
  rope.low_freq_factor = low;
  rope.high_freq_factor = high;
  rope.original_positions = original;
  return {};
}

double yarn_scale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

/// YaRN, arXiv:2309.00071. The defaults are those of section 3.
Result<void> read_yarn(const Parameters& from, uint32_t& positions, ops::RopeConfig& rope) {
  MC_TRY(factor, from.positive("factor"));
  MC_TRY(original, from.original(positions));
  MC_TRY(beta_fast, from.positive_or("beta_fast", 32));
  MC_TRY(beta_slow, from.positive_or("beta_slow", 1));
  if (from.given("truncate") && !from.object["truncate"].is_bool())
    return from.reader.invalid(from.path("truncate"), "is " + quoted(from.object["truncate"]));
  if (!(beta_fast > beta_slow))
    return from.reader.invalid(
        from.path("beta_fast"),
        "is " + quoted(from.object["beta_fast"]) + "; it must be above beta_slow " + quoted(from.object["beta_slow"]));
  if (!(rope.theta > 1))
    return from.reader.unsupported(err::kRopeUnsupported, "rope_theta", Json(rope.theta).dump(), "above 1 with yarn");
  double scale = yarn_scale(factor, 1);
  if (from.given("attention_factor")) {
    MC_TRY(given, from.positive("attention_factor"));
    scale = given;
  } else if (from.given("mscale") && from.given("mscale_all_dim")) {
    MC_TRY(mscale, from.positive("mscale"));
    MC_TRY(all, from.positive("mscale_all_dim"));
    scale = yarn_scale(factor, mscale) / yarn_scale(factor, all);
  }
  rope.factor = factor;
  rope.original_positions = original;
  rope.beta_fast = beta_fast;
  rope.beta_slow = beta_slow;
  rope.truncate = from.object["truncate"].as_bool(true);
  rope.attention_factor = scale;
  // Published configurations differ in whether max_position_embeddings is already the longer context.
  positions = std::max(positions, static_cast<uint32_t>(std::min(original * factor, 16777216.0)));
  return {};
}

struct KindRow {
  std::string_view name;
  Kind kind;
  Result<void> (*read)(const Parameters& from, uint32_t& positions, ops::RopeConfig& rope);
};
constexpr KindRow kKinds[] = {
    {"default", Kind::plain, read_plain},   {"linear", Kind::linear, read_linear},
    {"dynamic", Kind::plain, read_dynamic}, {"llama3", Kind::llama3, read_llama3},
    {"yarn", Kind::yarn, read_yarn},
};

/// Reads all parameters except theta, which the caller has read.
Result<void> read_kind(const Parameters& from, uint32_t& positions, ops::RopeConfig& rope) {
  const char* field = from.object.has("rope_type") ? "rope_type" : "type";
  const Json& type = from.object[field];
  if (from.given("partial_rotary_factor") && from.object["partial_rotary_factor"].as_double() != 1)
    return from.reader.unsupported(err::kRopeUnsupported, from.path("partial_rotary_factor"),
                                   quoted(from.object["partial_rotary_factor"]), "absent");
  std::string known;
  for (const KindRow& row : kKinds) {
    known += (known.empty() ? "\"" : ", \"") + std::string(row.name) + "\"";
    if (row.name != type.as_string()) continue;
    rope.kind = row.kind;
    return row.read(from, positions, rope);
  }
  return from.reader.unsupported(err::kRopeUnsupported, from.path("rope_type"), quoted(type), known);
}

/// Reads the newer spelling, with one object for all layers or for "full_attention" alone.
Result<Parameters> newer_parameters(const Reader& reader) {
  const Json& all = reader["rope_parameters"];
  if (!all.is_object()) return reader.invalid("rope_parameters", "is " + quoted(all));
  for (const JsonMember& member : all.members())
    if (member.value.is_object() && (member.key != "full_attention" || all.size() != 1))
      return reader.unsupported(err::kRopeUnsupported, "rope_parameters." + member.key.substr(0, 80),
                                quoted(member.value), "one set of parameters for all layers");
  if (all.has("full_attention")) return Parameters{reader, all["full_attention"], "rope_parameters.full_attention"};
  return Parameters{reader, all, "rope_parameters"};
}

Result<double> read_theta(const Reader& reader, const std::optional<Parameters>& newer) {
  const bool older = reader.given("rope_theta");
  if (newer && newer->object.has("rope_theta")) {
    MC_TRY(theta, newer->positive("rope_theta"));
    if (older && reader["rope_theta"].as_double() != theta)
      return reader.invalid("rope_theta", "is " + quoted(reader["rope_theta"]) + ", but " + newer->path("rope_theta") +
                                              " is " + quoted(newer->object["rope_theta"]));
    return theta;
  }
  if (!older)
    return user_error(err::kRopeUnsupported,
                      reader.path() + ": neither rope_theta nor rope_parameters.rope_theta is given", {},
                      "write the value that the model was trained with (Llama 2: 10000) into config.json");
  const double theta = reader["rope_theta"].as_double(0);
  if (!(theta > 0) || !std::isfinite(theta)) return reader.invalid("rope_theta", "is " + quoted(reader["rope_theta"]));
  return theta;
}

}  // namespace

Result<ops::RopeConfig> read_rope(const Reader& reader, uint32_t& positions) {
  std::optional<Parameters> newer;
  if (reader.given("rope_parameters")) {
    MC_TRY(parameters, newer_parameters(reader));
    newer.emplace(std::move(parameters));
  }
  MC_TRY(theta, read_theta(reader, newer));
  ops::RopeConfig rope{.theta = theta};
  const uint32_t declared = positions;
  if (newer) {
    if (!newer->object.has("rope_type") && !newer->object.has("type"))
      return reader.invalid("rope_parameters", "has no rope_type");
    MC_CHECK(read_kind(*newer, positions, rope));
  }
  if (!reader.given("rope_scaling")) return rope;
  if (!reader["rope_scaling"].is_object())
    return reader.invalid("rope_scaling", "is " + quoted(reader["rope_scaling"]));
  ops::RopeConfig scaled{.theta = theta};
  positions = declared;
  MC_CHECK(read_kind({reader, reader["rope_scaling"], "rope_scaling"}, positions, scaled));
  if (newer && !(scaled == rope)) return reader.invalid("rope_scaling", "and rope_parameters disagree");
  return scaled;
}

}  // namespace mc::model
