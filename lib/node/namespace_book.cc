#include "node/namespace_book.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/units.h"

namespace mc::node {

std::string tenant_of(std::string_view salt) {
  const size_t colon = salt.find(':');
  if (colon == std::string_view::npos) return std::string(kDefaultTenant);
  const auto length = parse_u64(salt.substr(0, colon), 1, salt.size() - colon - 1);
  return std::string(length ? salt.substr(colon + 1, static_cast<size_t>(*length)) : kDefaultTenant);
}

bool NamespaceBook::Entry::has_model(std::string_view name) const {
  constexpr size_t kDigitsLeast = 8;  // of a digest; fewer could be a name
  return model == name || (name.size() >= kDigitsLeast && weights.starts_with(name));
}

bool NamespaceBook::knows_tenant(std::string_view tenant) const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const auto& at) { return at.second.entry.tenant == tenant; });
}

bool NamespaceBook::knows_model(std::string_view name) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& at) { return at.second.entry.has_model(name); });
}

void NamespaceBook::add(const NamespaceId& id, const kv::Namespace& kv, std::string model, std::string tenant) {
  std::optional<std::string> owner;
  if (!tenant.empty())
    owner = std::move(tenant);
  else if (kv.id() == id)
    owner = tenant_of(kv.salt);
  const auto [at, is_new] = entries_.try_emplace(id);
  Entry& entry = at->second.entry;
  if (is_new) entry.weights = kv.weights, entry.kv_namespace = kv.with_salt("").text();
  if (entry.model.empty()) entry.model = std::move(model);
  if (!entry.tenant) entry.tenant = std::move(owner);
  if (id == own_) return;
  by_use_.erase(std::exchange(at->second.use, ++uses_));
  by_use_.emplace(uses_, id);
  if (by_use_.size() > entries_max_) {
    entries_.erase(by_use_.begin()->second);
    by_use_.erase(by_use_.begin());
  }
  MC_ASSERT_EQ(by_use_.size() + own_.has_value(), entries_.size());
}

void NamespaceBook::add_own(const kv::Namespace& kv, std::string model) {
  MC_ASSERT(!own_ && entries_.empty());
  own_ = kv.id();
  add(*own_, kv, std::move(model));
}

const NamespaceBook::Entry* NamespaceBook::find(const NamespaceId& id) const {
  const auto at = entries_.find(id);
  return at == entries_.end() ? nullptr : &at->second.entry;
}

}  // namespace mc::node
