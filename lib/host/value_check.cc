#include "host/value_check.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "base/hash.h"
#include "store/pages.h"
#include "wire/value_record.h"

namespace mc::host {
namespace {

using Damage = ValueFindings::Damage;
using Key = std::pair<std::string, std::string>;  // tenant and name

class Check {
 public:
  explicit Check(store::Store& store)
      : store_(store), chunk_bytes_(std::min<uint64_t>(kValueChunkMost, store.value_bytes_max())) {}

  ValueFindings run();
  /// The blocks of the values that are lost.
  std::vector<Id128> lost_blocks(const ValueFindings& findings) const;

 private:
  void read_record(const Id128& id, ValueFindings& findings);
  std::optional<Damage> fault_of(const wire::ValueRecord& record);

  store::Store& store_;
  const uint64_t chunk_bytes_;
  store::PageBuffer memory_;
  std::vector<Id128> chunks_;
  std::map<Key, std::map<uint64_t, wire::ValueRecord>> records_;  // by key and number
  std::map<uint64_t, Id128> ids_;                                 // blocks of records, by number
};

Damage damage_of(const wire::ValueRecord& record, std::string what, bool is_lost) {
  return {.record = record.number,
          .tenant = record.tenant,
          .name = record.name,
          .what = std::move(what),
          .is_lost = is_lost};
}

ValueFindings Check::run() {
  MC_ASSERT(ids_.empty() && records_.empty());  // a check runs once
  MC_ASSERT(chunk_bytes_ > 0);
  std::vector<Id128> ids;
  store_.for_each([&](const Id128& id, uint32_t) {
    if (is_value_block(id)) (kind_of(id) == ValueBlock::record ? ids : chunks_).push_back(id);
  });
  std::sort(ids.begin(), ids.end(), [](const Id128& a, const Id128& b) { return number_of(a) < number_of(b); });
  ValueFindings findings;
  for (const Id128& id : ids) ids_.emplace(number_of(id), id), read_record(id, findings);
  for (const auto& [key, versions] : records_) {
    MC_ASSERT(!versions.empty());
    const wire::ValueRecord& newest = versions.rbegin()->second;
    ++findings.values;
    findings.bytes += newest.bytes;
    if (auto fault = fault_of(newest)) findings.damaged.push_back(std::move(*fault));
  }
  return findings;
}

void Check::read_record(const Id128& id, ValueFindings& findings) {
  store::Get get{.id = id, .room = memory_.room(store::kPageBytes)};
  store_.get({&get, 1});
  const uint64_t number = number_of(id);
  if (get.code != Code::ok) {
    const bool is_lost = get.code == Code::corrupt;
    findings.damaged.push_back({.record = number,
                                .tenant = {},
                                .name = {},
                                .what = is_lost ? "the record fails its checksum" : "the disk does not give the record",
                                .is_lost = is_lost});
    return;
  }
  auto record = wire::parse_value_record(get.room.first(get.bytes));
  if (record && record->number != number) record = Error{Code::corrupt, "the record has another number"};
  if (record) {
    records_[{record->tenant, record->name}].emplace(number, std::move(*record));
    return;
  }
  const bool is_lost = record.error().code == Code::corrupt;  // a record of a newer version is sound
  findings.damaged.push_back(
      {.record = number, .tenant = {}, .name = {}, .what = record.error().what, .is_lost = is_lost});
}

std::optional<Damage> Check::fault_of(const wire::ValueRecord& record) {
  uint32_t crc = 0;
  for (uint64_t at = 0, chunk = 0; at < record.bytes; at += chunk_bytes_, ++chunk) {
    const uint64_t bytes = std::min(chunk_bytes_, record.bytes - at);
    if (chunk > UINT16_MAX) return damage_of(record, "the record has an impossible size", true);
    store::Get get{.id = value_block_id(ValueBlock::bytes, record.data, chunk), .room = memory_.room(chunk_bytes_)};
    store_.get({&get, 1});
    const std::string which = "block " + std::to_string(chunk) + " of the value ";
    if (get.code == Code::io) return damage_of(record, which + "cannot be read from the disk", false);
    if (get.code == Code::corrupt) return damage_of(record, which + "fails its checksum", true);
    if (get.code != Code::ok || get.bytes != bytes) return damage_of(record, which + "is missing", true);
    MC_ASSERT_LE(get.bytes, get.room.size());
    crc = crc32c(get.room.first(get.bytes), crc);
  }
  if (crc == record.crc) return std::nullopt;
  return damage_of(record, "the value does not match its checksum", true);
}

std::vector<Id128> Check::lost_blocks(const ValueFindings& findings) const {
  std::vector<Id128> out;
  std::set<uint64_t> lost;
  for (const Damage& damage : findings.damaged) {
    MC_ASSERT(ids_.contains(damage.record));  // the findings are of this check
    if (!damage.is_lost) continue;
    out.push_back(ids_.at(damage.record));
    const auto versions = records_.find({damage.tenant, damage.name});
    if (versions == records_.end()) continue;
    for (const auto& [number, record] : versions->second) {
      MC_ASSERT(ids_.contains(number));
      if (number > damage.record) break;
      out.push_back(ids_.at(number));
      lost.insert(record.data);
    }
  }
  // A copy of a value shares its bytes.
  std::set<uint64_t> kept;
  const std::set<Id128> gone(out.begin(), out.end());
  for (const auto& [key, versions] : records_)
    for (const auto& [number, record] : versions)
      if (!gone.contains(ids_.at(number))) kept.insert(record.data);
  for (const Id128& id : chunks_)
    if (lost.contains(number_of(id)) && !kept.contains(number_of(id))) out.push_back(id);
  return out;
}

Result<std::unique_ptr<store::Store>> open_values(const OpenValues& open, uint64_t capacity_bytes,
                                                  store::Access access) {
  MC_TRY(disk, open(access));
  // Values leave by drops alone, also where the store has to move blocks at its start.
  return store::Store::open(std::move(disk), {.capacity_bytes = capacity_bytes, .keeps_all = true, .access = access});
}

}  // namespace

Error value_store_error(const std::string& directory, Error error) {
  if (error.mc == err::kStoreCorrupt)
    error.next =
        "bring the folder back from a copy, or move it out of the directory of --ssd and keep it: the node starts "
        "without it, and nothing else has its values";
  if (error.mc == err::kStoreVersion) error.next = "use the release that wrote it; nothing else has its values";
  return as_user_error(error.code == Code::no_space ? err::kDiskFull : err::kFileAccess,
                       within(directory, std::move(error)));
}

bool holds_values(const store::Store& store) {
  bool found = false;
  store.for_each([&](const Id128& id, uint32_t) { found = found || is_value_block(id); });
  return found;
}

Result<ValueFindings> check_values(const OpenValues& open, uint64_t capacity_bytes, bool repairs) {
  // A store without damage is not written to.
  MC_TRY(store, open_values(open, capacity_bytes, store::Access::read_only));
  Check check(*store);
  ValueFindings findings = check.run();
  findings.lost = store->restart().damaged;
  if (!repairs) return findings;
  const std::vector<Id128> blocks = check.lost_blocks(findings);
  if (blocks.empty()) return findings;
  store = nullptr;
  MC_TRY(repaired, open_values(open, capacity_bytes, store::Access::read_write));
  MC_CHECK(repaired->drop(blocks, store::Level::durable));
  for (const Damage& damage : findings.damaged) findings.dropped += damage.is_lost;
  MC_ASSERT(findings.dropped > 0);  // each block to drop belongs to a lost value
  return findings;
}

}  // namespace mc::host
