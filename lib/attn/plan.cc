// Parsing and resolving the attention switch from the table of modes. See plan.h.
#include "attn/plan.h"

#include "base/errors.h"
#include "base/units.h"

namespace mc::attn {
namespace {

constexpr std::string_view kFullLast = "full_last";
constexpr int32_t kFullLastHigh = 1 << 16;
constexpr size_t kTextBytesMax = 256;  // also bounds the quotation in an error message

Error bad_plan(std::string_view text, const std::string& what) {
  return user_error(err::kBadValue, "attention '" + std::string(text.substr(0, kTextBytesMax)) + "': " + what, {},
                    "write auto, full or moba:block=128,top_k=3,full_last=1");
}

std::string names_of(const ModeRow& row) {
  std::string names;
  for (const ModeParam& param : row.params) names += std::string(param.name) + ", ";
  return names + std::string(kFullLast);
}

Result<void> parse_param(std::string_view text, std::string_view item, const ModeRow& row, PlanText& plan) {
  const size_t equals = item.find('=');
  if (equals == std::string_view::npos) return bad_plan(text, "'" + std::string(item) + "' is not name=value");
  const std::string_view name = item.substr(0, equals);
  int32_t* field = nullptr;
  int32_t low = 0, high = kFullLastHigh, unset = -1;
  if (name == kFullLast) field = &plan.full_last;
  for (const ModeParam& param : row.params) {
    if (param.name != name) continue;
    field = &(plan.mode.*param.field);
    low = param.low;
    high = param.high;
    unset = 0;
  }
  if (field == nullptr)
    return bad_plan(text,
                    std::string(row.name) + " has no parameter '" + std::string(name) + "'; it has " + names_of(row));
  if (*field != unset) return bad_plan(text, std::string(name) + " is given twice");
  const auto value = parse_i64(item.substr(equals + 1), low, high);
  if (!value)
    return bad_plan(text, std::string(name) + " must be a whole number in " + std::to_string(low) + ".." +
                              std::to_string(high) + ", not '" + std::string(item.substr(equals + 1)) + "'");
  *field = static_cast<int32_t>(*value);
  return {};
}

}  // namespace

Result<PlanText> parse_plan(std::string_view text) {
  PlanText plan;
  if (text == "auto") return plan;
  plan.automatic = false;
  if (text.size() > kTextBytesMax) return bad_plan(text, "is " + std::to_string(text.size()) + " bytes long");
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const ModeRow* found = nullptr;
  std::string known = "auto";
  for (const ModeRow* row : modes()) {
    known += ", " + std::string(row->name);
    if (row->name == name) found = row;
  }
  if (found == nullptr) return bad_plan(text, "no mode '" + std::string(name) + "'; there are " + known);
  plan.mode.kind = found->kind;
  if (colon == std::string_view::npos) return plan;
  if (found->params.empty()) return bad_plan(text, std::string(name) + " takes no parameters");
  std::string_view rest = text.substr(colon + 1);
  for (;;) {
    const size_t comma = rest.find(',');
    MC_CHECK(parse_param(text, rest.substr(0, comma), *found, plan));
    if (comma == std::string_view::npos) return plan;
    rest.remove_prefix(comma + 1);
  }
}

std::string to_string(const Plan& plan) {
  const ModeRow& row = mode_row(plan.mode.kind);
  std::string text(row.name);
  char separator = ':';
  for (const ModeParam& param : row.params) {
    text += separator + std::string(param.name) + "=" + std::to_string(plan.mode.*param.field);
    separator = ',';
  }
  if (!row.params.empty()) text += separator + std::string(kFullLast) + "=" + std::to_string(plan.full_last);
  return text;
}

Result<Plan> resolve(const PlanText& asked, const std::optional<PlanText>& declared, int32_t layers,
                     int32_t block_tokens) {
  if (declared && declared->automatic)
    return user_error(err::kAttentionUnsupported, "the model declares attention 'auto', which names no mode");
  const PlanText chosen = asked.automatic ? declared.value_or(PlanText{.automatic = false}) : asked;
  Plan plan{chosen.mode, chosen.full_last, layers};
  const ModeRow& row = mode_row(plan.mode.kind);
  const bool same = declared && declared->mode.kind == plan.mode.kind;
  for (const ModeParam& param : row.params) {
    int32_t& value = plan.mode.*param.field;
    if (value == 0 && same) value = declared->mode.*param.field;
    if (value == 0) value = param.fallback;
  }
  if (plan.full_last < 0 && same) plan.full_last = declared->full_last;
  if (plan.full_last < 0) plan.full_last = std::min(row.full_last, layers);
  if (plan.full_last > layers)
    return user_error(err::kAttentionUnsupported, "attention '" + to_string(plan) + "' keeps the last " +
                                                      std::to_string(plan.full_last) +
                                                      " layers full, but the model has " + std::to_string(layers));
  if (plan.mode.block % block_tokens != 0)
    return user_error(err::kAttentionUnsupported,
                      "attention '" + to_string(plan) + "': block " + std::to_string(plan.mode.block) +
                          " is not a multiple of the KV block of " + std::to_string(block_tokens) + " tokens");
  // A plan whose layers are all full is full attention.
  if (plan.full_last == layers) plan = Plan{Mode{}, 0, layers};
  return plan;
}

}  // namespace mc::attn
