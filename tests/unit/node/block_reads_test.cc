// Reads of blocks between nodes of which either may be a pipeline.

#include "node/block_reads.h"

#include <map>
#include <set>

#include "base/rng.h"
#include "bench.h"

namespace block_reads_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;

namespace {

/// A pipeline of processes that cut `layers` at random.
std::vector<wire::HolderPart> cut(Rng& rng, const std::string& name, uint8_t number, uint32_t layers,
                                  ExtentLayout page) {
  std::vector<wire::HolderPart> parts;
  for (uint32_t first = 0; first < layers;) {
    const auto end = first + 1 + static_cast<uint32_t>(rng.below(layers - first));
    page.stage = {first, end};
    const size_t n = parts.size();
    parts.push_back({n == 0 ? name : name + "." + std::to_string(n), instance(static_cast<uint8_t>(number + n)), first,
                     end, page.page_bytes()});
    first = end;
  }
  return parts;
}

struct Reader final : BlockSource {
  HolderParts own = std::vector<wire::HolderPart>();
  Shelf* shelf_of(const NamespaceId&) override { return nullptr; }
  bool is_pending(const BlockHash&) const override { return false; }
  HolderParts parts() const override { return own; }
};

struct ReadsBench {
  static constexpr uint32_t kLayers = 5;
  Numbers numbers;
  Peers peers{instance(50)};
  Reader reader;
  BlockReads reads{reader, numbers, peers};
  std::vector<wire::LeasedBlock> blocks;
  std::vector<kv::PageIndex> pages{7, 3};
  BlockRead read;
  TimePoint now{};
  Actions out;

  explicit ReadsBench(std::vector<wire::HolderPart> there, std::vector<wire::HolderPart> here = {}) {
    wire::Peers list{1, {{"p1", instance(4), wire::Role::prefill, "", {}}}};
    for (const auto* parts : {&there, &here})
      for (const auto& part : *parts) list.peers.push_back({part.node, part.instance, wire::Role::stage, "", {}});
    peers.take(list);
    reader.own = here;
    const uint64_t page_bytes = there.empty() ? layout_of(kLayers).page_bytes() : there[0].page_bytes;
    for (uint64_t page : {9, 2}) blocks.push_back({{}, {}, 0, page * page_bytes, {}});
    for (auto& block : blocks)
      for (uint32_t layer = 0; layer < kLayers; ++layer)
        block.layer_crcs.push_back(static_cast<uint32_t>(block.page_offset / page_bytes * 100 + layer));
    read.read = numbers.next(), read.node = "p1", read.instance = instance(4);
    read.parts = std::move(there), read.blocks = blocks, read.pages = pages, read.budget = 5s;
  }
  bool start() { return reads.start(read, own_layout(), now, out); }
  ExtentLayout own_layout() const {
    ExtentLayout layout = layout_of(kLayers);
    if (!reader.own->empty()) layout.stage = {0, reader.own->front().end_layer};
    return layout;
  }
};

std::vector<wire::HolderPart> halves(const std::string& name, uint8_t number) {
  ExtentLayout layout = layout_of(ReadsBench::kLayers);
  layout.stage = {0, 2};
  const uint64_t first = layout.page_bytes();
  layout.stage = {2, 5};
  return {{name, instance(number), 0, 2, first}, {name + ".1", instance(number + 1), 2, 5, layout.page_bytes()}};
}

}  // namespace

TEST_CASE("node/block_reads: a read that is cut by layers counts the leading layers that are here") {
  ReadsBench b({});
  b.read.by_layer = true;
  REQUIRE(b.start());
  const auto reads = all<Read>(b.out);
  REQUIRE(reads.size() == ReadsBench::kLayers);
  std::set<uint64_t> offsets;
  for (const Read& read : reads)
    for (const ReadSlice& slice : read.slices) offsets.insert(slice.page * 1000000 + slice.page_offset);
  CHECK(offsets.size() == 2 * ReadsBench::kLayers);
  CHECK(b.reads.layers_here(b.read.read) == 0);
  CHECK_FALSE(b.reads.on_read({reads[1].read, Code::ok, ""}));
  CHECK(b.reads.layers_here(b.read.read) == 0);
  CHECK_FALSE(b.reads.on_read({reads[0].read, Code::ok, ""}));
  CHECK(b.reads.layers_here(b.read.read) == 2);
  CHECK_FALSE(b.reads.on_read({reads[2].read, Code::corrupt, "why"}));
  CHECK_FALSE(b.reads.on_read({reads[3].read, Code::ok, ""}));
  CHECK(b.reads.layers_here(b.read.read) == 2);  // never those that failed
  b.out.clear();
  b.reads.cancel(b.read.read, b.out);
  CHECK(all<CancelRead>(b.out).size() == 1);
  const auto whole = b.reads.on_read({reads[4].read, Code::cancelled, "later"});
  REQUIRE(whole);
  CHECK((whole->read == b.read.read && whole->code == Code::corrupt && whole->what == "why"));
  CHECK(b.reads.idle());
}

TEST_CASE("node/block_reads: a whole node reads each layer of a pipeline's block from the member that has it") {
  ReadsBench b(halves("p1", 4));
  REQUIRE(b.start());
  const auto reads = all<Read>(b.out);
  REQUIRE(reads.size() == 2);
  CHECK((reads[0].peer == "p1" && reads[1].peer == "p1.1"));
  const uint64_t extent = layout_of(5).layer_bytes();
  CHECK(reads[1].slices.size() == 6);
  CHECK(reads[1].slices[1].page == 7);
  CHECK(reads[1].slices[1].page_offset == 3 * extent);
  CHECK(reads[1].slices[1].remote_offset == 9 * b.read.parts[1].page_bytes + extent);
  CHECK(reads[1].slices[1].crc == 903);
  CHECK_FALSE(b.reads.on_read({reads[1].read, Code::corrupt, "why"}));
  const auto whole = b.reads.on_read({reads[0].read, Code::timeout, "later"});
  REQUIRE(whole);
  CHECK((whole->read == b.read.read && whole->code == Code::corrupt && whole->what == "why"));  // the first failure
  CHECK(b.reads.idle());
}

TEST_CASE("node/block_reads: between whole nodes it is one read of the caller's number, without books") {
  ReadsBench b({});
  REQUIRE(b.start());
  const auto reads = all<Read>(b.out);
  REQUIRE((reads.size() == 1 && b.out.size() == 1));
  CHECK((reads[0].read == b.read.read && reads[0].slices.size() == 10 && b.reads.idle()));
  CHECK(b.reads.on_read({reads[0].read, Code::ok, ""})->code == Code::ok);
  b.out.clear();
  b.reads.cancel(b.read.read, b.out);
  CHECK(all<CancelRead>(b.out).at(0).read == b.read.read);
}

TEST_CASE("node/block_reads: whatever the two cuts are, each layer of each block is read once, from where it is") {
  Rng rng(test::seed());
  for (int round = 0; round < 200; ++round) {
    const ExtentLayout layout = layout_of(ReadsBench::kLayers);
    ReadsBench b(rng.chance(0.2) ? std::vector<wire::HolderPart>() : cut(rng, "p1", 4, ReadsBench::kLayers, layout),
                 rng.chance(0.2) ? std::vector<wire::HolderPart>() : cut(rng, "me", 50, ReadsBench::kLayers, layout));
    REQUIRE(b.start());
    std::set<std::pair<kv::PageIndex, uint32_t>> filled;  // (page, layer)
    const auto fills = [&](kv::PageIndex page, uint32_t layer, const NodeId& node, uint64_t offset, uint32_t crc) {
      CHECK(filled.emplace(page, layer).second);
      const uint64_t remote_page = page == 7 ? 9 : 2;
      CHECK(crc == remote_page * 100 + layer);
      if (b.read.parts.empty())
        CHECK((node == "p1" && offset == remote_page * layout.page_bytes() + layer * layout.layer_bytes()));
      for (const auto& part : b.read.parts)
        if (part.first_layer <= layer && layer < part.end_layer)
          CHECK((node == part.node &&
                 offset == remote_page * part.page_bytes + (layer - part.first_layer) * layout.layer_bytes()));
    };
    std::vector<ReadDone> ends;
    for (const Read& read : all<Read>(b.out)) {
      for (const ReadSlice& slice : read.slices)
        fills(slice.page, static_cast<uint32_t>(slice.page_offset / layout.layer_bytes()), read.peer,
              slice.remote_offset, slice.crc);
      if (const auto done = b.reads.on_read({read.read, Code::ok, ""})) ends.push_back(*done);
    }
    for (const auto& stage : *b.reader.own)
      for (const auto& asked : sent<wire::StageRead>(b.out, stage.node)) {
        for (size_t n = 0; n < asked.crcs.size(); ++n)
          for (size_t i = 0; i < asked.pages.size(); ++i)
            fills(asked.pages[i], asked.first_layer + static_cast<uint32_t>(n), asked.node,
                  asked.offsets[i] + n * layout.layer_bytes(), asked.crcs[n][i]);
        if (const auto done = b.reads.on_stage_read(stage.node, stage.instance, {asked.read, Code::ok, "", false}))
          ends.push_back(*done);
      }
    CHECK(filled.size() == 2 * ReadsBench::kLayers);
    REQUIRE(ends.size() == 1);
    CHECK((ends[0].read == b.read.read && ends[0].code == Code::ok && b.reads.idle()));
  }
}

TEST_CASE("node/block_reads: a read ends once, when each member has answered, is lost, or is late") {
  ReadsBench b({}, halves("me", 50));
  REQUIRE(b.start());
  const uint64_t here = all<Read>(b.out).at(0).read, there = sent<wire::StageRead>(b.out, "me.1").at(0).read;
  b.out.clear();
  b.reads.cancel(b.read.read, b.out);
  REQUIRE(all<CancelRead>(b.out).size() == 1);
  CHECK(all<CancelRead>(b.out)[0].read == here);
  REQUIRE(sent<wire::StageReadCancel>(b.out, "me.1").size() == 1);
  CHECK(sent<wire::StageReadCancel>(b.out, "me.1")[0].read == there);
  CHECK_FALSE(b.reads.on_read({here, Code::cancelled, ""}));
  // Another node answers in its place.
  CHECK_FALSE(b.reads.on_stage_read("p1", instance(4), {there, Code::ok, "", false}));
  CHECK(b.reads.next_wakeup() == b.now + 10s);
  CHECK(b.reads.on_tick(b.now + 10s - 1ns).empty());
  const auto late = b.reads.on_tick(b.now + 10s);
  REQUIRE(late.size() == 1);
  CHECK((late[0].read == b.read.read && late[0].code == Code::cancelled));
  CHECK_FALSE(b.reads.on_stage_read("me.1", instance(51), {there, Code::ok, "", false}));
  CHECK(b.reads.on_tick(b.now + 20s).empty());

  b.out.clear();
  b.read.read = b.numbers.next();
  REQUIRE(b.start());
  CHECK_FALSE(b.reads.on_read({all<Read>(b.out).at(0).read, Code::ok, ""}));
  CHECK(b.reads.on_stage_gone(instance(99)).empty());
  const auto lost = b.reads.on_stage_gone(instance(51));
  REQUIRE(lost.size() == 1);
  CHECK((lost[0].code == Code::peer_lost && b.reads.idle()));
}

TEST_CASE("node/block_reads: a read fails when a stage is lost that has read its part already, or has all layers") {
  for (const bool held : {false, true}) {
    ReadsBench b({}, halves("me", 50));
    if (held) b.read.held.assign(2, 0b10);
    REQUIRE(b.start());
    const auto there = sent<wire::StageRead>(b.out, "me.1");
    REQUIRE(there.size() == (held ? 0 : 1));
    if (!held) CHECK_FALSE(b.reads.on_stage_read("me.1", instance(51), {there[0].read, Code::ok, "", false}));
    CHECK(b.reads.on_stage_gone(instance(51)).empty());
    const auto done = b.reads.on_read({all<Read>(b.out).at(0).read, Code::ok, ""});
    REQUIRE(done);
    CHECK((done->code == Code::peer_lost && b.reads.idle()));
  }
}

TEST_CASE("node/block_reads: nothing is begun while a member of either pipeline is missing") {
  ReadsBench b(halves("p1", 4));
  b.read.parts[1].instance = instance(77);  // it has restarted since
  CHECK_FALSE(b.start());
  b.read.parts[1].instance = instance(5);
  b.reader.own = std::nullopt;
  CHECK_FALSE(b.start());
  CHECK((b.out.empty() && b.reads.idle()));
}

TEST_CASE("node/block_reads: parts that leave a layer out, hold one twice, or have no pages are not sound") {
  const auto sound = halves("p1", 4);
  CHECK(are_sound(sound, 5));
  CHECK(are_sound({}, 5));
  CHECK_FALSE(are_sound(sound, 6));
  auto parts = sound;
  parts[1].first_layer = 3;
  CHECK_FALSE(are_sound(parts, 5));
  parts[1].first_layer = 1;
  CHECK_FALSE(are_sound(parts, 5));
  parts = sound, parts[0].page_bytes = 0;
  CHECK_FALSE(are_sound(parts, 5));
  parts = sound, parts[1].end_layer = 2;
  CHECK_FALSE(are_sound(parts, 2));
}

}  // namespace block_reads_test
