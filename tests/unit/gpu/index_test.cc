// The index of MoBA prefill (lib/gpu/kernels/index_sm80.cu) on the emulated device, beside its definition: for each KV
// head and block, the rows whose selection has the block, in ascending order.
#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "base/rng.h"
#include "gpu/emulated.h"
#include "gpu/gpu.h"
#include "gpu/kernels/attention.h"
#include "gpu/ptx/fault.h"
#include "test.h"

namespace mc::gpu {
namespace {

/// How the rows of a case choose their blocks.
enum class IndexChoice : uint8_t { drawn, first_ones, last_ones };

struct IndexCase {
  int32_t kv_heads = 1, group = 2, block = 64, top_k = 3;
  int32_t q_begin = 0, tokens = 300;
  IndexChoice choice = IndexChoice::drawn;
  int64_t kv_len() const { return int64_t{q_begin} + tokens; }
  int32_t q_heads() const { return kv_heads * group; }
  int32_t rows() const { return tokens * group; }
  int32_t chosen() const { return top_k - 1; }
  int32_t tile_steps = 1;  // steps of kIndexThreads rows that a tile takes
  int32_t tile_rows() const { return tile_steps * kIndexThreads; }
  int32_t blocks() const { return static_cast<int32_t>(kv_len() / block); }
};

/// [tokens, q_heads, top_k - 1], as the gate writes it.
std::vector<int32_t> draw_selection(const IndexCase& c, Rng& rng) {
  std::vector<int32_t> out;
  for (int32_t token = 0; token < c.tokens; ++token)
    for (int32_t head = 0; head < c.q_heads(); ++head) {
      const int64_t position = c.q_begin + token;
      const auto candidates = static_cast<int32_t>(position / c.block);
      std::vector<int32_t> row;
      for (int32_t i = 0; i < candidates; ++i) row.push_back(i);
      if (c.choice == IndexChoice::last_ones) std::ranges::reverse(row);
      if (c.choice == IndexChoice::drawn)
        for (size_t i = row.size(); i > 1; --i) std::swap(row[i - 1], row[rng.below(i)]);
      row.resize(std::min<size_t>(row.size(), static_cast<size_t>(c.chosen())));
      std::ranges::sort(row);
      row.resize(static_cast<size_t>(c.chosen()), -1);
      out.insert(out.end(), row.begin(), row.end());
    }
  return out;
}

/// The arrays of an index, as the kernels wrote them.
struct Index {
  std::vector<int32_t> offsets, item_first, item_block, list, places;
  bool operator==(const Index&) const = default;
};

struct IndexBench {
  std::shared_ptr<EmulatedDriver> driver = std::make_shared<EmulatedDriver>();
  std::unique_ptr<Device> device = *Device::open(driver, 0);
};

/// The index of a case on a device; nothing when the emulator stops the run.
std::optional<Index> make_index(IndexBench& bench, const IndexCase& c, const std::vector<int32_t>& selection) {
  Device& device = *bench.device;
  std::vector<DeviceBuffer> buffers;
  const auto make = [&](size_t words) {
    buffers.push_back(*DeviceBuffer::make(device, std::max<size_t>(words, 1) * 4, "index"));
    const std::vector<int32_t> poison(words, -77);
    REQUIRE_OK(device.write(buffers.back().address(), std::as_bytes(std::span(poison))));
    return device_pointer<int32_t>(buffers.back().address());
  };
  const auto heads = static_cast<size_t>(c.kv_heads), blocks = static_cast<size_t>(c.blocks());
  const auto entries = static_cast<size_t>(c.rows() * c.chosen());
  const size_t items = entries / kItemRows + std::min(entries, blocks);
  Routing routing{.blocks = c.blocks(),
                  .tile_rows = c.tile_rows(),
                  .entries = static_cast<int32_t>(entries),
                  .items = static_cast<int32_t>(items)};
  routing.counts = make(heads * kIndexTiles * blocks);
  routing.offsets = make(heads * (blocks + 1));
  routing.item_first = make(heads * (blocks + 1));
  routing.item_block = make(heads * items);
  routing.list = make(heads * entries);
  routing.places = make(heads * entries);
  const Sequence sequence{.q_begin = c.q_begin,
                          .kv_len = c.kv_len(),
                          .tokens = c.tokens,
                          .mode = {.kind = attn::ModeKind::moba, .block = c.block, .top_k = c.top_k}};
  const auto copy = [&](std::span<const std::byte> bytes) {
    buffers.push_back(*DeviceBuffer::make(device, bytes.size(), "table"));
    REQUIRE_OK(device.write(buffers.back().address(), bytes));
    return buffers.back().address();
  };
  const AttentionArgs args{.pool = {.kv_heads = c.kv_heads},
                           .sequences = device_pointer<const Sequence>(copy(std::as_bytes(std::span(&sequence, 1)))),
                           .q_heads = c.q_heads(),
                           .selection = device_pointer<const int32_t>(copy(std::as_bytes(std::span(selection)))),
                           .chosen = c.chosen(),
                           .routing = device_pointer<const Routing>(copy(std::as_bytes(std::span(&routing, 1))))};
  const auto windows = static_cast<uint32_t>(std::max(1, (c.blocks() + kIndexBlocks - 1) / kIndexBlocks));
  const uint32_t tiles = kIndexTiles * windows, kv_heads = static_cast<uint32_t>(c.kv_heads);
  bool ran = true;
  const auto launch = [&](std::string_view kernel, uint32_t ctas, uint32_t threads, uint32_t shared) {
    const LaunchShape shape{.grid = {ctas, kv_heads, 1}, .threads = threads, .dynamic_shared = shared};
    ran = ran && device.launch(kernel, shape, bytes_of(args));
  };
  REQUIRE(c.rows() <= kIndexTiles * c.tile_rows());
  launch("moba_count", tiles, kIndexThreads, count_shared(c.blocks()));
  launch("moba_offsets", 1, kOffsetsThreads, kOffsetsShared);
  launch("moba_lists", tiles, kIndexThreads, lists_shared(c.blocks()));
  if (!ran || !device.finish()) return std::nullopt;
  Index out;
  const auto read = [&](const int32_t* from, size_t words) {
    std::vector<int32_t> to(words);
    if (words > 0) REQUIRE_OK(device.read(reinterpret_cast<uint64_t>(from), std::as_writable_bytes(std::span(to))));
    return to;
  };
  out.offsets = read(routing.offsets, heads * (blocks + 1));
  out.item_first = read(routing.item_first, heads * (blocks + 1));
  out.item_block = read(routing.item_block, heads * items);
  out.list = read(routing.list, heads * entries);
  out.places = read(routing.places, heads * entries);
  return out;
}

/// The index by its definition. Entries that the kernels leave alone have the value that the memory had.
Index define_index(const IndexCase& c, const std::vector<int32_t>& selection) {
  Index out;
  const auto entries = static_cast<size_t>(c.rows() * c.chosen()), blocks = static_cast<size_t>(c.blocks());
  const size_t items = entries / kItemRows + std::min(entries, blocks);
  for (int32_t head = 0; head < c.kv_heads; ++head) {
    std::vector<int32_t> list, places(entries, -77), item_block;
    int32_t item = 0;
    for (int32_t block = 0; block < c.blocks(); ++block) {
      out.offsets.push_back(static_cast<int32_t>(list.size()));
      out.item_first.push_back(item);
      const size_t before = list.size();
      for (int32_t number = 0; number < c.rows(); ++number) {
        const int64_t position = c.q_begin + number / c.group;
        if (position < attn::moba_dense_below(c.block, c.top_k)) continue;
        const int32_t row = number / c.group * c.q_heads() + head * c.group + number % c.group;
        for (int32_t slot = 0; slot < c.chosen(); ++slot) {
          if (selection[static_cast<size_t>(row * c.chosen() + slot)] != block) continue;
          places[static_cast<size_t>(number * c.chosen() + slot)] = static_cast<int32_t>(list.size());
          list.push_back(number);
        }
      }
      for (size_t row = before; row < list.size(); row += kItemRows, ++item) item_block.push_back(block);
    }
    out.offsets.push_back(static_cast<int32_t>(list.size()));
    out.item_first.push_back(item);
    list.resize(entries, -77);
    REQUIRE(item_block.size() <= items);
    item_block.resize(items, -77);
    out.list.insert(out.list.end(), list.begin(), list.end());
    out.places.insert(out.places.end(), places.begin(), places.end());
    out.item_block.insert(out.item_block.end(), item_block.begin(), item_block.end());
  }
  return out;
}

}  // namespace

TEST_CASE("gpu/index: the lists are the inverse of the selection, ascending, under every schedule") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  std::vector<IndexCase> cases = {
      {.tokens = 1},
      {.q_begin = 129, .tokens = 1},                                            // dense rows alone
      {.q_begin = 1000, .tokens = 1},                                           // fewer rows than a tile
      {.kv_heads = 2, .group = 7, .top_k = 17, .q_begin = 2000, .tokens = 40},  // the most blocks that a row chooses
      {.group = 1, .tokens = 700, .choice = IndexChoice::first_ones, .tile_steps = 2},  // one list has nearly all rows
      {.group = 4, .block = 128, .q_begin = 3000, .tokens = 150, .choice = IndexChoice::last_ones},
      {.group = 4, .top_k = 2, .q_begin = 512, .tokens = 1100, .tile_steps = 3},  // several steps of a tile
      {.block = 1, .top_k = 3, .q_begin = 2 * kIndexBlocks - 3, .tokens = 7},     // three windows of blocks
  };
  for (const IndexCase& c : cases) {
    CAPTURE(c.tokens);
    const std::vector<int32_t> selection = draw_selection(c, rng);
    const Index right = define_index(c, selection);
    for (int policy = 0; policy < emu::kPolicies; ++policy) {
      IndexBench bench;
      bench.driver->gpu().set_options(
          {.seed = test::seed() + static_cast<uint64_t>(policy), .policy = static_cast<emu::Policy>(policy)});
      CHECK(make_index(bench, c, selection) == right);
    }
  }
}

TEST_CASE("gpu/index: the lists of a sequence are those of its chunks one after the other") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  const IndexCase whole{.group = 3, .top_k = 3, .tokens = 600};
  const std::vector<int32_t> selection = draw_selection(whole, rng);
  IndexBench bench;
  const std::optional<Index> made = make_index(bench, whole, selection);
  REQUIRE(made);
  const Index& index = *made;
  std::map<int32_t, std::vector<int32_t>> lists;  // by block
  for (const auto& [begin, end] : {std::pair{0, 64}, {64, 201}, {201, 600}}) {
    IndexCase chunk = whole;
    chunk.q_begin = begin, chunk.tokens = end - begin;
    const auto width = static_cast<ptrdiff_t>(whole.q_heads() * whole.chosen());
    const auto made_part =
        make_index(bench, chunk, {selection.begin() + begin * width, selection.begin() + end * width});
    REQUIRE(made_part);
    const Index& part = *made_part;
    for (int32_t block = 0; block < chunk.blocks(); ++block)
      for (int32_t at = part.offsets[static_cast<size_t>(block)]; at < part.offsets[static_cast<size_t>(block) + 1];
           ++at)
        lists[block].push_back(part.list[static_cast<size_t>(at)] + begin * whole.group);
  }
  for (int32_t block = 0; block < whole.blocks(); ++block) {
    const auto first = index.list.begin();
    CHECK(lists[block] == std::vector<int32_t>(first + index.offsets[static_cast<size_t>(block)],
                                               first + index.offsets[static_cast<size_t>(block) + 1]));
  }
}

TEST_CASE("gpu/index: lists out of order and tiles that share places are seen in one schedule") {
  Rng rng(3);
  const IndexCase c{.group = 4, .top_k = 2, .q_begin = 512, .tokens = 600};
  const std::vector<int32_t> selection = draw_selection(c, rng);
  const Index right = define_index(c, selection);
  for (const Fault fault : {Fault::list_descends, Fault::tiles_share_places}) {
    IndexBench bench;
    bench.driver->gpu().set_options({.fault = static_cast<uint8_t>(fault)});
    CHECK(make_index(bench, c, selection) != right);  // two tiles that write one place stop the run
  }
}

}  // namespace mc::gpu
