// NamespaceBook records models and tenants of the KV namespaces of a node's blocks, because a namespace id alone names
// neither. The book is bounded. The namespace that was used least recently leaves it first, and that of the node's own
// model stays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "kv/kv.h"

namespace mc::node {

/// The tenant of requests that name none, as in the store of values.
inline constexpr std::string_view kDefaultTenant = "default";

/// The tenant in a salt that the conductor made ("5:alice" and a client's own salt); kDefaultTenant when the salt names
/// none.
std::string tenant_of(std::string_view salt);

class NamespaceBook {
 public:
  struct Entry {
    std::string model;                  // name as served; "" = not known
    std::string weights;                // digest of the weights, hex
    std::optional<std::string> tenant;  // nothing: not known
    std::string kv_namespace;           // text without a salt

    /// Whether `name` is the name of the model or at least eight digits of the digest of its weights.
    bool has_model(std::string_view name) const;
  };

  explicit NamespaceBook(size_t entries_max = 4096) : entries_max_(entries_max) {}
  /// Records the namespace of the node's own model.
  void add_own(const kv::Namespace& kv, std::string model);
  /// A request or an offer uses the namespace `id`, which `kv` describes: with its salt, or without one and with the
  /// `tenant`. The tenant is not known when `tenant` is "" and `kv` is not the text of `id`, because its salt is
  /// missing. What an entry has stays, and a later call adds what it lacks.
  void add(const NamespaceId& id, const kv::Namespace& kv, std::string model, std::string tenant = {});
  /// nullptr = nothing is known.
  const Entry* find(const NamespaceId& id) const;
  /// Whether an entry has this tenant, or this model.
  bool knows_tenant(std::string_view tenant) const;
  bool knows_model(std::string_view name) const;

 private:
  struct Known {
    Entry entry;
    uint64_t use = 0;  // key in by_use_
  };
  size_t entries_max_;
  std::map<NamespaceId, Known> entries_;
  std::map<uint64_t, NamespaceId> by_use_;  // without the node's own namespace
  std::optional<NamespaceId> own_;
  uint64_t uses_ = 0;
};

}  // namespace mc::node
