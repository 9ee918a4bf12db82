// Identities that cross process borders, as plain values. All of them order and hash by content,
// so containers keyed by them iterate the same way in every run.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

namespace mc {

/// 128 bits, printed as 32 lower-case hex digits. The zero value means "none".
struct Id128 {
  std::array<uint8_t, 16> bytes{};

  auto operator<=>(const Id128&) const = default;
  bool is_zero() const { return *this == Id128{}; }
  std::string hex() const;
  /// First `digits` hex digits, for logs and tables.
  std::string short_hex(int digits = 8) const { return hex().substr(0, static_cast<size_t>(digits)); }
  static std::optional<Id128> from_hex(std::string_view hex);
};

/// Identity of a KV block *and its whole prefix*: SHA-256/128 over parent, namespace and tokens.
struct BlockHash : Id128 {};
/// Identity of the properties that must be equal before one node may read another's KV (kv/namespace.h).
struct NamespaceId : Id128 {};
/// Random per process start: a name is an address, an instance is an identity.
struct InstanceId : Id128 {};

/// Node name ("p0", "d1", "c0"): unique in a cluster, reused after a restart.
using NodeId = std::string;
/// "req_" + 28 characters; assigned by the conductor, carried by every message of the request.
using RequestId = std::string;

struct Id128Hash {
  size_t operator()(const Id128& id) const {
    uint64_t word;  // the ids are cryptographic hashes or random: any 8 bytes spread well
    std::memcpy(&word, id.bytes.data(), sizeof word);
    return static_cast<size_t>(word);
  }
};

}  // namespace mc
