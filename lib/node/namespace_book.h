// NamespaceBook records models and tenants of the KV namespaces of a node's blocks, because a namespace id alone names
// neither. The book is bounded, and the id that was recorded first leaves it first.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <string_view>

#include "kv/kv.h"

namespace mc::node {

/// The tenant in a salt that the conductor made ("5:alice" and a client's own salt); "" = the salt names none.
std::string tenant_of(std::string_view salt);

class NamespaceBook {
 public:
  struct Entry {
    std::string model;         // name as served; "" = not known
    std::string weights;       // digest of the weights, hex
    std::string tenant;        // "" = none
    std::string kv_namespace;  // text without a salt
  };

  explicit NamespaceBook(size_t entries_max = 4096) : entries_max_(entries_max) {}
  /// Records the namespace `id`, which `kv` describes: with its salt, or without one and with the `tenant`. What an
  /// entry has stays, and a later call adds what it lacks.
  void add(const NamespaceId& id, const kv::Namespace& kv, std::string model, std::string tenant = {});
  /// nullptr = nothing is known.
  const Entry* find(const NamespaceId& id) const;

 private:
  size_t entries_max_;
  std::map<NamespaceId, Entry> entries_;
  std::deque<NamespaceId> order_;
};

}  // namespace mc::node
