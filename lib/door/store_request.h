// Requests of the store API: an operation on one value, from the method and the query of an HTTP request or from a line
// of a batch. Everything here comes from outside: sizes and counts are bounded before anything is built,
// and an error names the field.
//
//   PUT    /v1/store/KEY?ttl=10m&pin=1h&replace=true&durability=d2&replicas=2
//                                                        body = the value; x-mc-crc32c: 8 hexadecimal digits
//   PUT    /v1/store/KEY?group=true                      body = a group (wire/value_group.h), else nothing is put
//   GET    /v1/store/KEY?lease=10s                       HEAD: only whether it is there, and its size
//   GET    /v1/store/KEY?member=NAME | members=true      one member of a group, or a list of them as JSON
//   DELETE /v1/store/KEY?force=true
//   POST   /v1/store/KEY?op=pin&for=1h | op=unpin | op=copy&to=KEY&replace=true | op=move&to=KEY
//   GET    /v1/store?prefix=P&after=KEY&limit=N          JSON
//   POST   /v1/store                                     a batch
//
// A batch is one line of JSON and the values of its puts after it, in their order and without anything in between. The
// answer has the same form, with the values of the gets.
//
//   {"ops":[{"op":"put","key":"a","bytes":3,"ttl":"10m"},{"op":"get","key":"b","lease":"10s"}]}\nabc
//   {"results":[{"status":201,"outcome":"created"},{"status":200,"bytes":5,"crc32c":"9a71bb4c"}]}\nhello
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "http/server.h"
#include "node/value_store.h"

namespace mc::door {

inline constexpr size_t kStoreBatchMax = 1024;                      // operations of a batch
inline constexpr size_t kStoreBatchLineMax = size_t{4} << 20;       // bytes of its line
inline constexpr size_t kStoreListMax = 1000;                       // keys of one listing
inline constexpr std::string_view kStoreTenant = "default";         // of a request that names none
inline constexpr std::string_view kStoreCrcHeader = "x-mc-crc32c";  // of a value, in both directions
/// Names of node::ValueStore::PutResult in answers.
inline constexpr std::string_view kPutResultNames[] = {"created", "replaced", "unchanged"};
inline constexpr std::string_view kStoreTierHeader = "x-mc-tier";        // of a get and of HEAD: a word of ValueTier
inline constexpr Duration kStoreTimeMax = std::chrono::hours(24 * 366);  // longest time to live and pin

/// Where a value is: in the node's memory, on its disk alone, or on another node.
enum class ValueTier : uint8_t { memory, disk, remote };
std::string_view to_string(ValueTier tier);
std::optional<ValueTier> value_tier_from(std::string_view word);

enum class StoreVerb : uint8_t { put, get, exist, remove, pin, unpin, copy, move };

struct StoreOp {
  StoreVerb verb = StoreVerb::get;
  std::string key, to;          // `to`: of copy and move
  node::ValueTerms terms;       // of a put; `replaces` also of copy and move
  Duration lease{};             // of a get
  std::string member;           // of a get: the member of a group; "" = the whole value
  bool lists_members = false;   // of a get
  Duration pin{};               // of a pin
  bool forced = false;          // of a remove: holders of replicas that are away do not stop it
  std::string_view value;       // of a put; points into the body
  std::optional<uint32_t> crc;  // of `value`, as the client has it
};

struct StoreListing {
  std::string prefix, after;
  size_t limit = kStoreListMax;
};

/// The tenant that the query names, if it names one.
Result<std::optional<std::string>> store_tenant(std::string_view query);
/// The operation of a request for one value. The request outlives it.
Result<StoreOp> parse_store_op(const http::Request& request, std::string_view key);
Result<StoreListing> parse_store_listing(std::string_view query);
/// The operations of a batch. `body` outlives them.
Result<std::vector<StoreOp>> parse_store_batch(std::string_view body);

/// "9a71bb4c"
std::string crc_text(uint32_t crc);
Result<uint32_t> parse_crc(std::string_view text);

}  // namespace mc::door
