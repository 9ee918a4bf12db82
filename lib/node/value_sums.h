// Memory of the values of a store (value_store.h): of all tenants, and of each. A tenant is shown its own sums alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/assert.h"

namespace mc::node {

class ValueSums {
 public:
  /// Memory of values with their keys and tables, and two parts of it that cannot be evicted: values that are pinned or
  /// leased, and keys with tables of values on disk.
  struct Sums {
    uint64_t used_bytes = 0, held_bytes = 0, disk_key_bytes = 0;
    bool operator==(const Sums&) const = default;
  };

  void use(const std::string& tenant, uint64_t bytes) {
    all_.used_bytes += bytes;
    tenants_[tenant].used_bytes += bytes;
  }
  void give_back(const std::string& tenant, uint64_t bytes) {
    const auto own = tenants_.find(tenant);
    MC_ASSERT(own != tenants_.end());
    MC_ASSERT_LE(bytes, own->second.used_bytes);
    all_.used_bytes -= bytes;
    own->second.used_bytes -= bytes;
    if (own->second.used_bytes == 0) tenants_.erase(own);
  }
  /// Counts the value as held. The tenant uses the bytes already.
  void hold(const std::string& tenant, uint64_t bytes) { add(&Sums::held_bytes, tenant, bytes); }
  void unhold(const std::string& tenant, uint64_t bytes) { remove(&Sums::held_bytes, tenant, bytes); }
  /// Counts the key of a value on disk. The tenant uses the bytes already.
  void add_disk_key(const std::string& tenant, uint64_t bytes) { add(&Sums::disk_key_bytes, tenant, bytes); }
  void remove_disk_key(const std::string& tenant, uint64_t bytes) { remove(&Sums::disk_key_bytes, tenant, bytes); }

  const Sums& all() const { return all_; }
  Sums of(const std::string& tenant) const {
    const auto own = tenants_.find(tenant);
    return own == tenants_.end() ? Sums{} : own->second;
  }
  /// The sums of each tenant that has values.
  const std::map<std::string, Sums>& tenants() const { return tenants_; }

 private:
  void add(uint64_t Sums::* part, const std::string& tenant, uint64_t bytes) {
    all_.*part += bytes;
    tenants_.at(tenant).*part += bytes;
  }
  void remove(uint64_t Sums::* part, const std::string& tenant, uint64_t bytes) {
    MC_ASSERT_LE(bytes, all_.*part);
    all_.*part -= bytes;
    tenants_.at(tenant).*part -= bytes;
  }

  Sums all_;
  std::map<std::string, Sums> tenants_;
};

}  // namespace mc::node
