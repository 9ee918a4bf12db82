#include "verbs/fsck.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/copy_crc.h"
#include "base/errors.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/units.h"
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
    if (sum_crc32c(extent) != block->layer_crcs[layer]) return "layer " + std::to_string(layer) + " fails its checksum";
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

/// Bytes of the segments that are there. With this capacity a store neither grows nor gives files back.
uint64_t present_bytes(const std::string& directory) {
  uint64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error))
    if (entry.path().filename().string().starts_with("seg.")) bytes += entry.file_size(error);
  return bytes;
}

std::string report_text(const Findings& findings, const store::Restart& restart, bool repaired) {
  std::string out;
  for (const std::string& loss : restart.damaged) out += "lost     " + loss + "\n";
  for (const auto& damage : findings.damaged)
    out += std::string(repaired ? "dropped  " : "damaged  ") + damage.id.hex() + "  " + damage.what + "\n";
  for (const auto& [layout, count] : findings.layouts) out += std::to_string(count) + " blocks of " + layout + "\n";
  out += std::to_string(findings.blocks) + " blocks, " + format_bytes(findings.bytes) + ", " +
         std::to_string(findings.damaged.size()) + (repaired ? " dropped" : " damaged") + "\n";
  return out;
}

Json json_of(const Findings& findings, const store::Restart& restart, bool repaired) {
  Json lost = Json::array(), damaged = Json::array(), layouts = Json::array();
  for (const std::string& loss : restart.damaged) lost.push(loss);
  for (const auto& damage : findings.damaged)
    damaged.push(Json::object({{"id", damage.id.hex()}, {"what", damage.what}}));
  for (const auto& [layout, count] : findings.layouts)
    layouts.push(Json::object({{"layout", layout}, {"blocks", count}}));
  Json out = Json::object({{"type", "end"}, {"blocks", findings.blocks}, {"bytes", findings.bytes}});
  out.set("lost", std::move(lost)).set("damaged", std::move(damaged)).set("repaired", repaired);
  return std::move(out.set("layouts", std::move(layouts)));
}

}  // namespace

Result<int> fsck_store(const cli::Args& args) {
  const std::string directory = args.positional_one("DIR");
  // A store that is opened where none is would be made.
  if (!std::filesystem::exists(directory + "/super.a") && !std::filesystem::exists(directory + "/super.b"))
    return user_error(err::kFileAccess, directory + " has no block store", "DIR",
                      "name the directory of a node's --ssd DIR:SIZE");
  const bool repairs = args.on(flags::kRepair);
  const store::Access access = repairs ? store::Access::read_write : store::Access::read_only;
  auto disk = store::open_disk("auto", directory, access);
  if (!disk) return as_user_error(err::kFileAccess, std::move(disk).error());
  const store::Options options{.capacity_bytes = present_bytes(directory), .access = access};
  auto store = store::Store::open(std::move(disk->disk), options);
  if (!store) return as_user_error(err::kFileAccess, within(directory, std::move(store).error()));
  const Findings findings = read_all_blocks(**store);
  const bool repair = repairs && !findings.damaged.empty();
  if (repair) {
    std::vector<Id128> ids;
    for (const auto& damage : findings.damaged) ids.push_back(damage.id);
    MC_CHECK((*store)->drop(ids, store::Level::durable));
  }
  const store::Restart& restart = (*store)->restart();
  const bool json = args.on(flags::kJson);
  MC_CHECK(
      write_all(1, json ? json_of(findings, restart, repair).dump() + "\n" : report_text(findings, restart, repair)));
  return (findings.damaged.empty() && restart.damaged.empty()) || repairs ? 0 : 1;
}

}  // namespace mc::verbs
