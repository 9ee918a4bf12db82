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
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& at) { return at.second.tenant == tenant; });
}

bool NamespaceBook::knows_model(std::string_view name) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& at) { return at.second.has_model(name); });
}

void NamespaceBook::add(const NamespaceId& id, const kv::Namespace& kv, std::string model, std::string tenant) {
  std::optional<std::string> owner;
  if (!tenant.empty())
    owner = std::move(tenant);
  else if (kv.id() == id)
    owner = tenant_of(kv.salt);
  if (const auto known = entries_.find(id); known != entries_.end()) {
    if (known->second.model.empty()) known->second.model = std::move(model);
    if (!known->second.tenant) known->second.tenant = std::move(owner);
    return;
  }
  entries_.emplace(id, Entry{std::move(model), kv.weights, std::move(owner), kv.with_salt("").text()});
  order_.push_back(id);
  if (order_.size() > entries_max_) {
    entries_.erase(order_.front());
    order_.pop_front();
  }
  MC_ASSERT_EQ(order_.size(), entries_.size());
}

const NamespaceBook::Entry* NamespaceBook::find(const NamespaceId& id) const {
  const auto at = entries_.find(id);
  return at == entries_.end() ? nullptr : &at->second;
}

}  // namespace mc::node
