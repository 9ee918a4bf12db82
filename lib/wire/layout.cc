#include "wire/layout.h"

#include <algorithm>

#include "base/errors.h"

namespace mc::wire {
namespace {

constexpr std::string_view kAbsent = "(absent)";
// Fields a user sets with a flag of the same name; the others come from the model's files.
constexpr std::string_view kFlagFields[] = {"block_tokens", "dtype", "kv_dtype", "prefill_attention"};

const std::string* find(std::span<const NameValue> fields, std::string_view name) {
  for (const auto& [key, value] : fields)
    if (key == name) return &value;
  return nullptr;
}

}  // namespace

std::optional<LayoutDifference> compare_layout(std::span<const NameValue> ours, std::span<const NameValue> theirs) {
  LayoutDifference out;
  auto differs = [&](const std::string& field, std::string_view mine, std::string_view other) {
    if (!out.field.empty()) return;
    out.field = field;
    out.ours = mine;
    out.theirs = other;
  };
  for (const auto& [field, value] : ours) {
    const std::string* other = find(theirs, field);
    if (other == nullptr)
      differs(field, value, kAbsent);
    else if (*other != value)
      differs(field, value, *other);
    else
      out.equal.push_back(field);
  }
  for (const auto& [field, value] : theirs)
    if (find(ours, field) == nullptr) differs(field, kAbsent, value);
  if (out.field.empty()) return std::nullopt;
  return out;
}

Error layout_error(const LayoutDifference& difference, std::string_view our_role, const LayoutParty& them) {
  std::string setting = difference.field;
  const bool flag = std::find(std::begin(kFlagFields), std::end(kFlagFields), setting) != std::end(kFlagFields);
  if (flag) {
    std::replace(setting.begin(), setting.end(), '_', '-');
    setting.insert(0, "--");
  }
  const std::string who = them.role + (them.name.empty() ? "" : " " + them.name);
  std::string where = "handshake with " + (them.name.empty() ? them.role : them.name);
  if (!them.address.empty()) where += " (" + them.address + ")";
  where += ", field " + difference.field;
  if (!difference.equal.empty()) {
    where += "; also compared and equal:";
    for (const std::string& field : difference.equal) where += " " + field;
  }
  const std::string next =
      flag ? "restart one side with the same " + setting : "give both sides the same model directory and release";
  return user_error(err::kKvLayoutMismatch,
                    who + " uses " + setting + " " + difference.theirs + ", this " + std::string(our_role) + " uses " +
                        difference.ours,
                    where, next);
}

}  // namespace mc::wire
