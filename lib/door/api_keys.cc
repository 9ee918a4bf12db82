#include "door/api_keys.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "base/assert.h"
#include "base/errors.h"
#include "base/secret_file.h"
#include "base/toml.h"

namespace mc::door {
namespace {

constexpr size_t kFileBytesMax = size_t{4} << 20, kNameBytesMax = 64, kSaltBytesMax = 256;
constexpr std::string_view kTable = "tenant.";
constexpr const char* kHint =
    "it is a TOML file with a table [tenant.NAME] and keys = [...] for each tenant, mode 0600; mc-conductor(1), "
    "Tenants";

struct Row {  // one table of the file
  sched::Tenant tenant;
  std::vector<std::string> keys;
  std::string salt;
  bool admin = false;
};

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kNameBytesMax &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_'; });
}

/// "" or what is wrong with the value.
std::string set_field(Row& row, const TomlEntry& e) {
  const auto number = [&](double least, double most, double& target) -> std::string {
    const double value = e.value.is_number() ? e.value.as_double() : -1;
    if (!(value >= least && value <= most))
      return "must be a number from " + std::to_string(static_cast<int64_t>(least)) + " to " +
             std::to_string(static_cast<int64_t>(most));
    target = value;
    return "";
  };
  if (e.key == "weight") {
    if (const double w = e.value.as_double(-1); !(w >= 0.001 && w <= 1e6)) return "must be a number from 0.001 to 1e6";
    row.tenant.weight = e.value.as_double();
    return "";
  }
  if (e.key == "tokens_per_s") return number(1, 1e12, row.tenant.tokens_per_s);
  if (e.key == "burst_tokens") return number(1, 1e15, row.tenant.burst_tokens);
  if (e.key == "requests_max" || e.key == "priority") {
    const bool is_max = e.key == "requests_max";
    const int64_t least = is_max ? 1 : -100, most = is_max ? 1'000'000 : 100, value = e.value.as_int(INT64_MIN);
    if (!e.value.is_int() || value < least || value > most)
      return "must be an integer from " + std::to_string(least) + " to " + std::to_string(most);
    if (is_max)
      row.tenant.requests_max = static_cast<uint32_t>(value);
    else
      row.tenant.priority = static_cast<int>(value);
    return "";
  }
  if (e.key == "salt") {
    if (!e.value.is_string() || e.value.as_string().size() > kSaltBytesMax) return "must be text of at most 256 bytes";
    row.salt = e.value.as_string();
    return "";
  }
  if (e.key == "admin") {
    if (!e.value.is_bool()) return "must be true or false";
    row.admin = e.value.as_bool();
    return "";
  }
  if (e.key != "keys")
    return "is not known; there are keys, weight, priority, tokens_per_s, burst_tokens, requests_max, salt, admin";
  if (!e.value.is_array() || e.value.size() == 0) return "must be a list of keys";
  for (const Json& key : e.value.items()) {
    if (!key.is_string() || !is_bearer_key(key.as_string()))
      return "must hold texts of 8 to 256 visible ASCII characters";
    row.keys.emplace_back(key.as_string());
  }
  return "";
}

}  // namespace

Result<ApiKeys> ApiKeys::parse(std::string_view text, const std::string& source) {
  auto keys = read(text, source);
  if (keys) return keys;
  return user_error(err::kKeyFile, keys.error().what, keys.error().where, kHint);
}

Result<ApiKeys> ApiKeys::read(std::string_view text, const std::string& source) {
  MC_TRY(entries, parse_toml(text, source));
  std::vector<std::pair<Row, int>> rows;  // with the line of the table's head
  std::map<std::string, size_t> by_name;
  for (const TomlEntry& e : entries) {
    const bool is_tenant = e.table.starts_with(kTable) && is_name(e.table.substr(kTable.size()));
    if (!is_tenant && e.table == "tenant" && e.key.empty()) continue;
    if (!is_tenant)
      return toml_error(source, e.line,
                        "'" + (e.table.empty() ? e.key : e.table) +
                            "' is not of the form [tenant.NAME], NAME of up to " + std::to_string(kNameBytesMax) +
                            " letters, digits, '-' and '_'");
    const std::string name = e.table.substr(kTable.size());
    const auto [at, fresh] = by_name.emplace(name, rows.size());
    if (fresh) rows.push_back({Row{.tenant = {.name = name}, .keys = {}, .salt = name}, e.line});
    if (rows.size() > kTenantsMax)
      return toml_error(source, e.line, "more than " + std::to_string(kTenantsMax) + " tenants");
    if (e.key.empty()) continue;
    if (const std::string wrong = set_field(rows[at->second].first, e); !wrong.empty())
      return toml_error(source, e.line, "'" + e.table + "." + e.key + "' " + wrong);
  }
  ApiKeys out;
  for (const auto& [row, line] : rows) {
    const std::string& name = row.tenant.name;
    MC_ASSERT(!name.empty());
    if (row.keys.empty()) return toml_error(source, line, "tenant " + name + " has no keys");
    if (row.tenant.burst_tokens > 0 && row.tenant.tokens_per_s == 0)
      return toml_error(source, line, "tenant " + name + " has burst_tokens without tokens_per_s");
    for (const std::string& key : row.keys) {
      const auto [at, fresh] = out.grants_.emplace(key_digest(key), Grant{name, row.salt, row.admin});
      if (!fresh)
        return toml_error(source, line, "a key of tenant " + name + " is a key of " + at->second.tenant + " already");
    }
    if (out.grants_.size() > kKeysMax)
      return toml_error(source, line, "more than " + std::to_string(kKeysMax) + " keys");
    out.tenants_.push_back(row.tenant);
    out.salts_.emplace(name, row.salt);
  }
  MC_ASSERT_EQ(out.tenants_.size(), out.salts_.size());
  MC_ASSERT_LE(out.tenants_.size(), out.grants_.size());
  if (out.tenants_.empty()) return toml_error(source, 1, "no tenant is named");
  return out;
}

Result<ApiKeys> ApiKeys::open(const std::string& path) {
  MC_TRY(text, read_secret_file(path, kFileBytesMax, "--api-keys",
                                "give the file of tenants and their keys, mode 0600 (mc-conductor(1), API KEYS)"));
  return parse(text, path);
}

const ApiKeys::Grant* ApiKeys::find(std::string_view authorization) const {
  const auto digest = bearer_digest(authorization);
  const auto at = digest ? grants_.find(*digest) : grants_.end();
  return at == grants_.end() ? nullptr : &at->second;
}

}  // namespace mc::door
