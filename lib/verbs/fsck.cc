#include "verbs/fsck.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "base/assert.h"
#include "base/errors.h"
#include "base/fd.h"
#include "base/foreign_text.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/units.h"
#include "host/block_disk.h"
#include "host/value_check.h"
#include "node/disk_block.h"
#include "store/store.h"

namespace mc::verbs {
namespace {

/// Room of one value, aligned for direct I/O.
struct alignas(store::kPageBytes) Page {
  std::byte bytes[store::kPageBytes];
};

struct Findings {
  uint64_t blocks = 0, bytes = 0;
  std::map<std::string, uint64_t> layouts;  // blocks by shape
  struct Damage {
    Id128 id;
    std::string what;
  };
  std::vector<Damage> damaged;
};

/// The fault of a block whose value has the right checksum; "" = none.
std::string objection(const Id128& id, std::span<const std::byte> value, Findings& findings) {
  if (value.size() < node::kDiskFrontBytes) return "the value is shorter than a front";
  const auto block = node::parse_disk_front(value.first(node::kDiskFrontBytes));
  if (!block) return block.error().what;
  if (block->hash != id) return "the front names block " + block->hash.short_hex();
  if (value.size() != node::disk_value_bytes(block->layout))
    return "the value has " + std::to_string(value.size()) + " bytes, its layout " +
           std::to_string(node::disk_value_bytes(block->layout));
  const auto page = value.subspan(node::kDiskFrontBytes);
  MC_ASSERT_EQ(page.size(), block->layout.page_bytes());
  MC_ASSERT_EQ(block->layer_crcs.size(), block->layout.layers);
  for (uint32_t layer = 0; layer < block->layout.layers; ++layer) {
    const auto extent = page.subspan(block->layout.layer_offset(layer), block->layout.layer_bytes());
    if (crc32c(extent) != block->layer_crcs[layer]) return "layer " + std::to_string(layer) + " fails its checksum";
  }
  ++findings.layouts[std::to_string(block->layout.layers) + " layers x " + std::to_string(block->layout.kv_heads) +
                     " heads x " + std::to_string(block->layout.head_dim) + ", " +
                     std::string(to_string(block->layout.dtype)) + ", " + std::to_string(block->layout.block_tokens) +
                     " tokens"];
  return "";
}

Findings read_all_blocks(store::Store& store) {
  std::vector<std::pair<Id128, uint32_t>> blocks;
  store.for_each([&](const Id128& id, uint32_t bytes) { blocks.emplace_back(id, bytes); });
  std::sort(blocks.begin(), blocks.end());
  Findings findings;
  std::vector<Page> room;
  for (const auto& [id, bytes] : blocks) {
    MC_ASSERT(bytes > 0);  // the format of the store has no empty values
    room.resize((bytes + sizeof(Page) - 1) / sizeof(Page));
    store::Get get{.id = id, .room = {room.front().bytes, room.size() * sizeof(Page)}};
    store.get({&get, 1});
    MC_ASSERT(get.code != Code::no_space);  // the index has the size of the value
    MC_ASSERT(get.code != Code::ok || get.bytes == bytes);
    ++findings.blocks;
    findings.bytes += bytes;
    std::string what = get.code == Code::ok        ? objection(id, get.room.first(get.bytes), findings)
                       : get.code == Code::corrupt ? "the value fails its checksum"
                                                   : "the disk does not give the value";
    if (!what.empty()) findings.damaged.push_back({id, std::move(what)});
  }
  MC_ASSERT_EQ(findings.blocks, blocks.size());
  MC_ASSERT_LE(findings.damaged.size(), findings.blocks);
  return findings;
}

/// The next step after a check; "" where nothing is damaged.
std::string next_step(const std::string& directory, bool is_damaged, bool repairs) {
  if (!is_damaged) return "";
  if (!repairs)
    return "next: repair with: mc-cache fsck " + directory +
           " --repair. It drops what is damaged. Blocks are computed again; values must be put again.\n";
  return "next: the rest cannot be read by this version, or the disk fails: try the version that wrote it, and look at "
         "the log of the kernel\n";
}

/// The findings of one store of KV blocks.
struct Report {
  std::vector<std::string> lost;  // promises of the store that the start found broken
  Findings blocks;
  bool repaired = false;
};

std::string report_text(const Report& report) {
  std::string out;
  const Findings& found = report.blocks;
  for (const std::string& loss : report.lost) out += "lost     " + loss + "\n";
  for (const auto& damage : found.damaged)
    out += std::string(report.repaired ? "dropped  " : "damaged  ") + damage.id.hex() + "  " + damage.what + "\n";
  for (const auto& [layout, count] : found.layouts) out += std::to_string(count) + " blocks of " + layout + "\n";
  return out + std::to_string(found.blocks) + (found.blocks == 1 ? " block, " : " blocks, ") +
         human_bytes(found.bytes) + ", " + std::to_string(found.damaged.size()) +
         (report.repaired ? " dropped" : " damaged") + "\n";
}

/// Names of values come from clients, so control characters are shown as escapes.
std::string report_text(const host::ValueFindings& found) {
  std::string out;
  for (const std::string& loss : found.lost) out += "lost     values: " + loss + "\n";
  for (const auto& damage : found.damaged) {
    const std::string name = damage.name.empty() ? "a value" : damage.tenant + " " + damage.name;
    const bool dropped = found.dropped > 0 && damage.is_lost;
    out += (dropped ? "dropped  " : "damaged  ") + show_controls(name) + ", record " + std::to_string(damage.record) +
           "  " + damage.what + "\n";
  }
  return out + std::to_string(found.values) + (found.values == 1 ? " value, " : " values, ") +
         human_bytes(found.bytes) + ", " + std::to_string(found.damaged.size()) + " damaged" +
         (found.dropped > 0 ? ", " + std::to_string(found.dropped) + " of them dropped" : "") + "\n";
}

Json texts(const std::vector<std::string>& lines) {
  Json out = Json::array();
  for (const std::string& line : lines) out.push(line);
  return out;
}

Json json_of(const Report& report) {
  Json damaged = Json::array(), layouts = Json::array();
  for (const auto& damage : report.blocks.damaged)
    damaged.push(Json::object({{"id", damage.id.hex()}, {"what", damage.what}}));
  for (const auto& [layout, count] : report.blocks.layouts)
    layouts.push(Json::object({{"layout", layout}, {"blocks", count}}));
  Json out = Json::object({{"type", "end"}, {"blocks", report.blocks.blocks}, {"bytes", report.blocks.bytes}});
  out.set("lost", texts(report.lost)).set("damaged", std::move(damaged)).set("repaired", report.repaired);
  return std::move(out.set("layouts", std::move(layouts)));
}

Json json_of(const host::ValueFindings& found) {
  Json damaged = Json::array();
  for (const auto& damage : found.damaged) {
    Json row = Json::object({{"record", damage.record}, {"what", damage.what}, {"lost", damage.is_lost}});
    if (!damage.name.empty()) row.set("tenant", damage.tenant).set("key", damage.name);
    damaged.push(std::move(row));
  }
  Json out = Json::object({{"count", found.values}, {"bytes", found.bytes}, {"lost", texts(found.lost)}});
  return std::move(out.set("damaged", std::move(damaged)).set("dropped", found.dropped));
}

Result<std::unique_ptr<store::Store>> open_blocks(const std::string& directory, store::Access access) {
  auto disk = store::open_disk("auto", directory, access);
  if (!disk) return as_user_error(err::kFileAccess, std::move(disk).error());
  auto store =
      store::Store::open(std::move(disk->disk), {.capacity_bytes = host::present_bytes(directory), .access = access});
  if (!store) return as_user_error(err::kFileAccess, within(directory, std::move(store).error()));
  return store;
}

/// A folder of values is told by its blocks. By its name, too, because its blocks may be lost.
Result<bool> is_value_store(const std::string& directory) {
  const auto path = std::filesystem::path(directory + "/").lexically_normal().parent_path();
  if (path.filename() == host::kValuesFolder) return true;
  MC_TRY(store, open_blocks(directory, store::Access::read_only));
  return host::holds_values(*store);
}

Result<Report> check_blocks(const std::string& directory, bool repairs) {
  MC_TRY(store, open_blocks(directory, repairs ? store::Access::read_write : store::Access::read_only));
  Report report{.lost = store->restart().damaged, .blocks = read_all_blocks(*store)};
  report.repaired = repairs && !report.blocks.damaged.empty();
  std::vector<Id128> ids;
  for (const auto& damage : report.blocks.damaged) ids.push_back(damage.id);
  if (report.repaired) MC_CHECK(store->drop(ids, store::Level::durable));
  return report;
}

Result<host::ValueFindings> check_values_in(const std::string& directory, bool repairs) {
  const auto open = [&](store::Access access) -> Result<std::unique_ptr<store::Disk>> {
    MC_TRY(disk, store::open_disk("auto", directory, access));
    return std::move(disk.disk);
  };
  auto found = host::check_values(open, host::present_bytes(directory), repairs);
  if (!found) return host::value_store_error(directory, std::move(found).error());
  return found;
}

}  // namespace

Result<int> fsck_store(const cli::Args& args) {
  const std::string directory = args.positional_one("DIR");
  const std::string values = directory + "/" + std::string(host::kValuesFolder);
  std::error_code unreadable;
  (void)std::filesystem::directory_iterator(directory, unreadable);
  if (unreadable)
    return user_error(err::kFileAccess, directory + ": " + unreadable.message(), "DIR",
                      unreadable == std::errc::permission_denied ? "run as the user of the node that wrote it"
                                                                 : "name the directory of a node's --ssd DIR:SIZE");
  // A store that is opened where none is would be made.
  if (!host::has_store(directory))
    return user_error(err::kFileAccess, directory + " has no block store", "DIR",
                      "name the directory of a node's --ssd DIR:SIZE");
  const bool repairs = args.on(flags::kRepair), json = args.on(flags::kJson);
  MC_TRY(has_values_alone, is_value_store(directory));
  std::string text;
  Json out = Json::object({{"type", "end"}});
  bool is_sound = true;
  if (!has_values_alone) {
    MC_TRY(report, check_blocks(directory, repairs));
    text = report_text(report);
    out = json_of(report);
    is_sound = (report.blocks.damaged.empty() && report.lost.empty()) || repairs;
  }
  if (has_values_alone || host::has_store(values)) {
    MC_TRY(found, check_values_in(has_values_alone ? directory : values, repairs));
    text += report_text(found);
    out.set("values", json_of(found));
    is_sound = is_sound && found.damaged.size() == found.dropped && (found.lost.empty() || repairs);
  }
  MC_CHECK(write_all(1, json ? out.dump() + "\n" : text + next_step(directory, !is_sound, repairs)));
  return is_sound ? 0 : 1;
}

}  // namespace mc::verbs
