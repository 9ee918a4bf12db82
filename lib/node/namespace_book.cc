#include "node/namespace_book.h"

#include <utility>

#include "base/assert.h"
#include "base/units.h"

namespace mc::node {

std::string tenant_of(std::string_view salt) {
  const size_t colon = salt.find(':');
  if (colon == std::string_view::npos) return {};
  const auto length = parse_u64(salt.substr(0, colon), 1, salt.size() - colon - 1);
  return length ? std::string(salt.substr(colon + 1, static_cast<size_t>(*length))) : std::string();
}

void NamespaceBook::add(const NamespaceId& id, const kv::Namespace& kv, std::string model, std::string tenant) {
  if (tenant.empty()) tenant = tenant_of(kv.salt);
  if (const auto known = entries_.find(id); known != entries_.end()) {
    if (known->second.model.empty()) known->second.model = std::move(model);
    if (known->second.tenant.empty()) known->second.tenant = std::move(tenant);
    return;
  }
  entries_.emplace(id, Entry{std::move(model), kv.weights, std::move(tenant), kv.with_salt("").text()});
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
