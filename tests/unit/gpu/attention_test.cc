// AttentionBatch on the emulated device. `mc-bench gpu` compares its kernels with the reference.
#include "gpu/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "attn/attn.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "gpu/devices.h"
#include "gpu/emulated.h"
#include "gpu/routed.h"
#include "test.h"

namespace mc::gpu {
namespace {

constexpr ExtentLayout kLayout{.layers = 1, .kv_heads = 1, .head_dim = 64, .block_tokens = 64, .dtype = Dtype::bf16};
constexpr int32_t kQHeads = 2;
constexpr int kSequencesMax = 20;

/// A pool of random pages on the emulated device, and one random query a sequence.
struct Pool {
  std::shared_ptr<EmulatedDriver> driver;
  std::unique_ptr<Device> device;
  DeviceBuffer pages, q, out;
  std::vector<std::byte> host;

  explicit Pool(int64_t count, int capability = 90) : Pool(count, EmulatedHost{.capability = capability}) {}
  Pool(int64_t count, const EmulatedHost& emulated) {
    driver = std::make_shared<EmulatedDriver>(emulated);
    device = *Device::open(driver, 0);
    Rng rng(7);
    Parallel parallel(1);
    host.resize(static_cast<size_t>(count) * kLayout.page_bytes());
    std::vector<std::byte*> at;
    for (int64_t i = 0; i < count; ++i) at.push_back(&host[static_cast<size_t>(i) * kLayout.page_bytes()]);
    std::vector<float> k(static_cast<size_t>(count * 64 * 64)), v(k.size());
    for (size_t i = 0; i < k.size(); ++i)
      k[i] = static_cast<float>(rng.normal()), v[i] = static_cast<float>(rng.normal());
    attn::append({.layout = kLayout, .target = {at.data(), 0}, .tokens = count * 64, .k = k.data(), .v = v.data()},
                 &parallel);
    pages = *DeviceBuffer::make(*device, host.size(), "pool");
    REQUIRE_OK(device->write(pages.address(), host));
    std::vector<bf16_t> queries(size_t{kSequencesMax} * kQHeads * 64);
    for (bf16_t& one : queries) one = f32_to_bf16(static_cast<float>(rng.normal()));
    q = *DeviceBuffer::make(*device, queries.size() * 2, "queries");
    out = *DeviceBuffer::make(*device, queries.size() * 2, "output");
    REQUIRE_OK(device->write(q.address(), std::as_bytes(std::span(queries))));
  }
  AttentionShape shape() const {
    return {
        .layout = kLayout, .page_bytes = kLayout.page_bytes(), .q_heads = kQHeads, .kernel = AttentionKernel::decode};
  }
  /// Fills the output with numbers that no kernel writes.
  void wipe() {
    const std::vector<bf16_t> poison(size_t{kSequencesMax} * kQHeads * 64, 0xffff);
    REQUIRE_OK(device->write(out.address(), std::as_bytes(std::span(poison))));
  }
  AttentionLayer layer() const { return {.pool = pages.address(), .q = q.address(), .out = out.address()}; }
  std::vector<bf16_t> result(size_t sequence) {
    std::vector<bf16_t> row(size_t{kQHeads} * 64);
    REQUIRE_OK(device->read(out.address() + sequence * row.size() * 2, std::as_writable_bytes(std::span(row))));
    return row;
  }
  /// Kernels that a layer of the batch launches. The output is theirs alone.
  uint64_t launches(const AttentionShape& shape, std::vector<SequenceRows> sequences) {
    AttentionBatch batch(*device);
    wipe();
    REQUIRE_OK(batch.begin(shape, std::move(sequences)));
    REQUIRE_OK(device->finish());
    const uint64_t before = driver->gpu().operations();
    REQUIRE_OK(batch.attend(layer()));
    REQUIRE_OK(device->finish());
    return driver->gpu().operations() - before;
  }
};

SequenceRows row_at(int64_t kv_len) {
  SequenceRows out{.q_begin = kv_len - 1, .kv_len = kv_len, .tokens = 1};
  for (int32_t page = 0; page * 64 < kv_len; ++page) out.pages.push_back(page);
  return out;
}

}  // namespace

TEST_CASE("gpu/attention: the splits of a decode row follow from its keys alone") {
  CHECK(splits_of(row_at(1), 8) == 1);
  CHECK(splits_of(row_at(512), 8) == 1);
  CHECK(splits_of(row_at(513), 8) == 2);
  CHECK(splits_of({.kv_len = 1'000'000}, 6) == kSplitsMax);
  for (const uint32_t heads : {7u, 8u, 16u, 32u}) CHECK(splits_of({.kv_len = 1'000'000}, heads) == 48);
  CHECK(splits_of({.kv_len = 1'000'000, .mode = {.kind = attn::ModeKind::window, .window = 600}}, 8) == 2);
}

TEST_CASE("gpu/attention: a decode row has equal bits alone and beside a longer sequence") {
  Pool pool(12);
  AttentionBatch batch(*pool.device);
  REQUIRE_OK(batch.begin(pool.shape(), {row_at(540)}));
  REQUIRE_OK(batch.attend(pool.layer()));
  const auto alone = pool.result(0);
  CHECK(std::any_of(alone.begin(), alone.end(), [](bf16_t x) { return x != 0; }));
  REQUIRE_OK(batch.begin(pool.shape(), {row_at(540), row_at(768)}));
  REQUIRE_OK(batch.attend(pool.layer()));
  CHECK(pool.result(0) == alone);
  CHECK(pool.result(1) != alone);
}

TEST_CASE("gpu/attention: a cluster has the choice and the bits of decode and its merge, over every plan and split") {
  Pool pool(12);
  constexpr int32_t kChosen = 4;
  const auto selection = *DeviceBuffer::make(*pool.device, size_t{2} * kQHeads * kChosen * 4, "selection");
  const attn::Mode modes[] = {{},
                              {.kind = attn::ModeKind::window, .window = 70},
                              {.kind = attn::ModeKind::moba, .block = 64, .top_k = kChosen + 1},
                              {.kind = attn::ModeKind::moba, .block = 128, .top_k = 3},
                              {.kind = attn::ModeKind::moba, .block = 64, .top_k = 1}};
  for (const attn::Mode& mode : modes)
    for (const int64_t tokens : {1, 65, 321, 740})
      for (const int32_t splits : {3, tokens == 740 ? kSplitsMax : 0}) {
        SequenceRows rows = row_at(tokens), other = row_at(500);
        rows.mode = other.mode = mode;
        rows.splits = splits;
        const auto run = [&](AttentionKernel kernel) {
          const std::vector<int32_t> none(size_t{2} * kQHeads * kChosen, -1);
          REQUIRE_OK(pool.device->write(selection.address(), std::as_bytes(std::span(none))));
          AttentionShape shape = pool.shape();
          shape.kernel = kernel;
          AttentionBatch batch(*pool.device);
          AttentionLayer layer = pool.layer();
          layer.selection = selection.address();
          REQUIRE_OK(batch.begin(shape, {rows, other}));
          REQUIRE_OK(batch.attend(layer));
          std::vector<int32_t> chosen(none.size());
          REQUIRE_OK(pool.device->read(selection.address(), std::as_writable_bytes(std::span(chosen))));
          return std::tuple(chosen, pool.result(0), pool.result(1));
        };
        CAPTURE(tokens);
        CAPTURE(mode.top_k);
        CAPTURE(splits);
        CHECK(run(AttentionKernel::cluster) == run(AttentionKernel::decode));
      }
}

TEST_CASE("gpu/attention: a MoBA sequence none of whose rows chooses has the launches and bits of full attention") {
  constexpr int32_t kChosen = 3, kTokens = 20;
  constexpr attn::Mode kMode{.kind = attn::ModeKind::moba, .block = 64, .top_k = kChosen + 1};
  SequenceRows dense = row_at(256), full = row_at(256), chooses = row_at(257);
  for (SequenceRows* rows : {&dense, &full, &chooses}) rows->tokens = kTokens / 2, rows->q_begin -= kTokens / 2 - 1;
  dense.mode = chooses.mode = kMode;
  Pool pool(12);
  const auto selection = *DeviceBuffer::make(*pool.device, size_t{kTokens} * kQHeads * kChosen * 4, "selection");
  std::vector<int32_t> chosen(size_t{kTokens} * kQHeads * kChosen, -77);
  REQUIRE_OK(pool.device->write(selection.address(), std::as_bytes(std::span(chosen))));
  AttentionShape shape = pool.shape();
  shape.kernel = AttentionKernel::automatic;
  CHECK(pool.launches(shape, {chooses}) > pool.launches(shape, {full}));
  CHECK(pool.launches(shape, {dense}) == pool.launches(shape, {full}));
  const auto last = pool.result(kTokens / 2 - 1);
  AttentionBatch batch(*pool.device);
  AttentionLayer layer = pool.layer();
  layer.selection = selection.address();
  REQUIRE_OK(batch.begin(shape, {dense, chooses}));
  REQUIRE_OK(batch.attend(layer));
  CHECK(pool.result(kTokens / 2 - 1) == last);
  REQUIRE_OK(pool.device->read(selection.address(), std::as_writable_bytes(std::span(chosen))));
  CHECK(std::ranges::count(chosen, -77) == 0);
  CHECK(std::ranges::count_if(chosen, [](int32_t block) { return block >= 0; }) == kQHeads * kChosen);
}

TEST_CASE("gpu/attention: few decode rows take one launch where many take several, with equal bits") {
  const attn::Mode moba{.kind = attn::ModeKind::moba, .block = 64, .top_k = 3};
  SequenceRows chooses = row_at(300), whole = row_at(540);
  chooses.mode = moba;
  for (const int capability : {90, 80}) {
    Pool pool(12, capability);
    AttentionShape shape = pool.shape();
    CHECK(pool.launches(shape, {chooses}) == 3);         // scores, choice, attention
    CHECK(pool.launches(shape, {whole, chooses}) == 4);  // and the merge
    shape.kernel = AttentionKernel::automatic;
    const bool is_hopper = capability == 90;
    CHECK(pool.launches(shape, {chooses}) == (is_hopper ? 1 : 3));
    CHECK(pool.launches(shape, {whole}) == (is_hopper ? 1 : 2));
    CHECK(pool.launches(shape, {whole, chooses}) == (is_hopper ? 1 : 4));
    const auto one = pool.result(0), two = pool.result(1);
    for (const auto& row : {one, two}) CHECK(std::ranges::count(row, bf16_t{0xffff}) == 0);
    CHECK(pool.launches(shape, {row_at(512)}) == 1);
    // The emulated GPU has 132 multiprocessors: 16 clusters run at the same time.
    std::vector<SequenceRows> many = {whole, chooses};
    many.resize(16, row_at(20));
    CHECK(pool.launches(shape, many) == (is_hopper ? 1 : 4));
    CHECK(pool.result(0) == one);
    many.push_back(row_at(20));
    CHECK(pool.launches(shape, many) == 4);
    CHECK(pool.result(0) == one);
    CHECK(pool.result(1) == two);
  }
}

TEST_CASE("gpu/attention: clusters take the decode rows that read few keys, however long the sequence is") {
  Pool pool(161);
  AttentionShape shape = pool.shape();
  shape.kernel = AttentionKernel::automatic;
  SequenceRows chooses = row_at(10'300), slides = row_at(10'300), mostly = row_at(10'300);
  chooses.mode = {.kind = attn::ModeKind::moba, .block = 64, .top_k = 3};
  slides.mode = {.kind = attn::ModeKind::window, .window = 1000};
  mostly.mode = {.kind = attn::ModeKind::moba, .block = 1024, .top_k = 6};  // 2 rows may read 11 blocks
  CHECK(pool.launches(shape, {row_at(8192)}) == 1);
  CHECK(pool.launches(shape, {row_at(8193)}) == 2);  // and the merge of 17 splits
  CHECK(pool.launches(shape, {chooses}) == 1);
  CHECK(pool.launches(shape, {slides}) == 1);
  CHECK(pool.launches(shape, {mostly}) == 5);  // centroids, scores, choice, attention, merge
  CHECK(pool.launches(shape, {chooses, row_at(8193)}) == 4);
}

TEST_CASE("gpu/attention: clusters take no more decode rows than the GPU has room for, and give the bits of decode") {
  // 132 multiprocessors are 11 partitions of 12, and each has room for one cluster: a CTA with 64 splits leaves no room
  // for a second one. A partition of 4 has no room for 8 CTAs.
  for (const auto& [partition, room] : {std::pair(12, 11), std::pair(4, 0)}) {
    Pool pool(9, EmulatedHost{.partition = partition});
    AttentionShape shape = pool.shape();
    SequenceRows row = row_at(540);
    row.splits = kSplitsMax;
    CHECK(pool.launches(shape, {row}) == 2);
    const auto decoded = pool.result(0);
    shape.kernel = AttentionKernel::automatic;
    for (const int count : {1, room, room + 1}) {
      if (count == 0) continue;
      CAPTURE(count);
      const std::vector<SequenceRows> rows(static_cast<size_t>(count), row);
      CHECK(pool.launches(shape, rows) == (count <= room ? 1 : 2));  // attention, and the merge
      CHECK(pool.result(0) == decoded);
    }
    shape.kernel = AttentionKernel::cluster;
    AttentionBatch batch(*pool.device);
    const auto named = batch.begin(shape, {row});
    CHECK(named.has_value() == (room > 0));
    if (named) continue;
    CHECK(named.error().code == Code::unsupported);
    CHECK(named.error().what.find("no room for a cluster of 8 CTAs with 131264 bytes") != std::string::npos);
  }
}

TEST_CASE("gpu/attention: a decode chunk of a group beyond one tile of rows has the bits of decode in a cluster") {
  Pool pool(12);
  const auto run = [&](AttentionKernel kernel) {
    SequenceRows rows = row_at(300);
    rows.tokens = kSequencesMax, rows.q_begin = 300 - kSequencesMax;  // 40 rows, some of which choose
    rows.mode = {.kind = attn::ModeKind::moba, .block = 64, .top_k = 3};
    rows.splits = 2;
    AttentionShape shape = pool.shape();
    shape.kernel = kernel;
    AttentionBatch batch(*pool.device);
    REQUIRE_OK(batch.begin(shape, {rows}));
    REQUIRE_OK(batch.attend(pool.layer()));
    std::vector<std::vector<bf16_t>> out;
    for (size_t token = 0; token < kSequencesMax; ++token) out.push_back(pool.result(token));
    return out;
  };
  CHECK(run(AttentionKernel::cluster) == run(AttentionKernel::decode));
}

TEST_CASE("gpu/attention: a step of rounded sizes, with rows of no sequence, gives the bits of a step as it is") {
  Pool pool(12);
  const attn::Mode moba{.kind = attn::ModeKind::moba, .block = 64, .top_k = 3};
  SequenceRows first = row_at(540), second = row_at(768), third = row_at(70);
  second.mode = moba;
  AttentionBatch batch(*pool.device);
  pool.wipe();
  REQUIRE_OK(batch.begin(pool.shape(), {first, second}));
  REQUIRE_OK(batch.attend(pool.layer()));
  const auto one = pool.result(0), two = pool.result(1);
  for (const auto& row : {one, two}) CHECK(std::ranges::count(row, bf16_t{0xffff}) == 0);
  AttentionShape rounded = pool.shape();
  rounded.is_rounded = true;
  for (const AttentionKernel kernel : {AttentionKernel::decode, AttentionKernel::cluster})
    for (const bool is_first : {true, false}) {
      std::vector<SequenceRows> rows = {first, second};
      if (!is_first) rows = {third, second, {}, {}};  // two rows more
      rounded.kernel = kernel;
      pool.wipe();
      REQUIRE_OK(batch.begin(rounded, rows));
      REQUIRE_OK(batch.attend(pool.layer()));
      if (is_first) CHECK(pool.result(0) == one);
      CHECK(pool.result(1) == two);
    }
}

TEST_CASE("gpu/attention: MoBA rows of a rounded step take one kernel, whatever the lengths of their sequences") {
  constexpr int32_t kHeads = 64;
  constexpr size_t kRows = 4;
  Pool pool(24);
  Rng rng(test::seed());
  CAPTURE(test::seed());
  std::vector<bf16_t> queries(kRows * kHeads * 64);
  for (bf16_t& one : queries) one = f32_to_bf16(static_cast<float>(rng.normal()));
  const std::vector<bf16_t> poison(queries.size(), 0xffff);
  const auto q = *DeviceBuffer::make(*pool.device, queries.size() * 2, "queries");
  const auto out = *DeviceBuffer::make(*pool.device, queries.size() * 2, "output");
  REQUIRE_OK(pool.device->write(q.address(), std::as_bytes(std::span(queries))));
  SequenceRows few = row_at(10 * 64), many = row_at(24 * 64);
  few.mode = many.mode = {.kind = attn::ModeKind::moba, .block = 64, .top_k = 8};
  CHECK(choose_routed(kLayout, kHeads, few, kRoutedBytes, true) !=
        choose_routed(kLayout, kHeads, many, kRoutedBytes, true));
  AttentionShape shape = pool.shape();
  shape.q_heads = kHeads;
  AttentionBatch batch(*pool.device);
  const auto run = [&](const std::vector<SequenceRows>& sequences) {
    REQUIRE_OK(pool.device->write(out.address(), std::as_bytes(std::span(poison))));
    REQUIRE_OK(batch.begin(shape, sequences));
    REQUIRE_OK(batch.attend({.pool = pool.pages.address(), .q = q.address(), .out = out.address()}));
    std::vector<bf16_t> result(size_t{2} * kHeads * 64);
    REQUIRE_OK(pool.device->read(out.address(), std::as_writable_bytes(std::span(result))));
    return result;
  };
  shape.kernel = AttentionKernel::hopper;
  const auto whole = run({few, many});
  CHECK(std::ranges::count(whole, bf16_t{0xffff}) == 0);
  shape.kernel = AttentionKernel::automatic, shape.is_rounded = true;
  CHECK(run({few, many, {}, {}}) == whole);
}

TEST_CASE("gpu/attention: the rows of a rounded step take one kernel under a named one too, whatever their plans") {
  Pool pool(12);
  std::vector<SequenceRows> rows = {row_at(540), row_at(700), row_at(90), {}};
  rows[1].mode = {.kind = attn::ModeKind::moba, .block = 64, .top_k = 3};
  rows[2].mode = {.kind = attn::ModeKind::window, .window = 70};
  for (const auto& [named, taken] : {std::pair(AttentionKernel::routed, AttentionKernel::prefill),
                                     std::pair(AttentionKernel::wide, AttentionKernel::hopper),
                                     std::pair(AttentionKernel::united, AttentionKernel::hopper)}) {
    AttentionShape shape = pool.shape();
    shape.is_rounded = true;
    shape.kernel = taken;
    CHECK(pool.launches(shape, rows) == 3);  // centroids, gate and attention
    std::vector<std::vector<bf16_t>> whole;
    for (size_t i = 0; i < 3; ++i) whole.push_back(pool.result(i));
    CHECK(std::ranges::count(whole[1], bf16_t{0xffff}) == 0);
    shape.kernel = named;
    CHECK(pool.launches(shape, rows) == 3);
    for (size_t i = 0; i < 3; ++i) CHECK(pool.result(i) == whole[i]);
  }
}

TEST_CASE("gpu/attention: a row chooses the same MoBA blocks, bit for bit, however its prompt is cut into chunks") {
  constexpr int32_t kTokens = 300;
  constexpr size_t kWidth = size_t{kQHeads} * 64, kChosen = 2;
  Pool pool(5);
  Rng rng(test::seed());
  CAPTURE(test::seed());
  std::vector<bf16_t> queries(kTokens * kWidth);
  for (bf16_t& one : queries) one = f32_to_bf16(static_cast<float>(rng.normal()));
  const auto q = *DeviceBuffer::make(*pool.device, queries.size() * 2, "queries");
  const auto out = *DeviceBuffer::make(*pool.device, queries.size() * 2, "output");
  const auto selection = *DeviceBuffer::make(*pool.device, kTokens * kQHeads * kChosen * 4, "selection");
  REQUIRE_OK(pool.device->write(q.address(), std::as_bytes(std::span(queries))));
  const auto run = [&](std::initializer_list<int32_t> ends, AttentionKernel kernel, size_t routed_bytes = 0,
                       bool unites = true) {
    AttentionBatch batch(*pool.device);
    AttentionShape shape = pool.shape();
    shape.kernel = kernel, shape.unites = unites;
    shape.routed_bytes = routed_bytes;
    int32_t begin = 0;
    for (const int32_t end : ends) {
      SequenceRows rows = row_at(end);
      rows.q_begin = begin, rows.tokens = end - begin;
      rows.mode = {.kind = attn::ModeKind::moba, .block = 64, .top_k = kChosen + 1};
      REQUIRE_OK(batch.begin(shape, {rows}));
      const uint64_t skipped = static_cast<uint64_t>(begin) * kWidth * 2;
      REQUIRE_OK(
          batch.attend({.pool = pool.pages.address(),
                        .q = q.address() + skipped,
                        .out = out.address() + skipped,
                        .selection = selection.address() + static_cast<uint64_t>(begin) * kQHeads * kChosen * 4}));
      begin = end;
    }
    std::vector<int32_t> chosen(kTokens * kQHeads * kChosen);
    std::vector<bf16_t> result(queries.size());
    REQUIRE_OK(pool.device->read(selection.address(), std::as_writable_bytes(std::span(chosen))));
    REQUIRE_OK(pool.device->read(out.address(), std::as_writable_bytes(std::span(result))));
    return std::pair(chosen, result);
  };
  const auto whole = run({kTokens}, AttentionKernel::prefill);
  CHECK(std::ranges::count_if(whole.first, [](int32_t block) { return block >= 0; }) > 100);
  CHECK(run({64, 192, kTokens}, AttentionKernel::prefill) == whole);
  CHECK(run({128, kTokens}, AttentionKernel::prefill) == whole);
  CHECK(run({64, kTokens}, AttentionKernel::hopper).first == whole.first);
  // Among so few blocks every tile of rows goes by its union, unless none may.
  const auto lists = run({kTokens}, AttentionKernel::wide, 0, false);
  CHECK(lists.first == whole.first);
  for (const AttentionKernel kernel : {AttentionKernel::routed, AttentionKernel::wide, AttentionKernel::stationary,
                                       AttentionKernel::transposed, AttentionKernel::united})
    for (const bool unites : {false, true}) {
      if (unites != (kernel == AttentionKernel::united) && kernel != AttentionKernel::wide) continue;
      CAPTURE(static_cast<int>(kernel));
      const auto routed = run({kTokens}, kernel, 0, unites);
      CHECK(routed.first == whole.first);
      if (kernel != AttentionKernel::routed) CHECK(routed.second == lists.second);
      CHECK(run({64, 192, kTokens}, kernel, 0, unites) == routed);
      CHECK(run({201, kTokens}, kernel, 0, unites) == routed);
      CHECK(run({kTokens}, kernel, 1, unites) == routed);  // pieces of 64 tokens
    }
}

TEST_CASE(
    "gpu/attention: sequences that are routed together, in one wave or several, have the bits of batches of their "
    "own") {
  Pool pool(12);
  Rng rng(test::seed());
  CAPTURE(test::seed());
  constexpr size_t kWidth = size_t{kQHeads} * 64;
  std::vector<SequenceRows> parts = {row_at(700), row_at(90), row_at(430)};
  parts[0].tokens = 100, parts[1].tokens = 90, parts[2].tokens = 140;
  size_t tokens = 0;
  for (SequenceRows& part : parts) {
    part.q_begin = part.kv_len - part.tokens;
    part.mode = {.kind = attn::ModeKind::moba, .block = 64, .top_k = 3};
    tokens += static_cast<size_t>(part.tokens);
  }
  std::vector<bf16_t> queries(tokens * kWidth);
  for (bf16_t& one : queries) one = f32_to_bf16(static_cast<float>(rng.normal()));
  const auto q = *DeviceBuffer::make(*pool.device, queries.size() * 2, "queries");
  const auto out = *DeviceBuffer::make(*pool.device, queries.size() * 2, "output");
  REQUIRE_OK(pool.device->write(q.address(), std::as_bytes(std::span(queries))));
  AttentionBatch batch(*pool.device);
  const auto run = [&](const std::vector<SequenceRows>& sequences, size_t first, AttentionKernel kernel, size_t bytes) {
    AttentionShape shape = pool.shape();
    shape.kernel = kernel, shape.routed_bytes = bytes;
    shape.unites = kernel == AttentionKernel::united;
    REQUIRE_OK(batch.begin(shape, sequences));
    const uint64_t at = first * kWidth * 2;
    REQUIRE_OK(batch.attend({.pool = pool.pages.address(), .q = q.address() + at, .out = out.address() + at}));
    std::vector<bf16_t> result(queries.size());
    REQUIRE_OK(pool.device->read(out.address(), std::as_writable_bytes(std::span(result))));
    return result;
  };
  const std::vector<bf16_t> poison(queries.size(), 0xffff);
  const auto wipe = [&] { REQUIRE_OK(pool.device->write(out.address(), std::as_bytes(std::span(poison)))); };
  for (const AttentionKernel kernel : {AttentionKernel::routed, AttentionKernel::wide, AttentionKernel::stationary,
                                       AttentionKernel::transposed, AttentionKernel::united}) {
    wipe();
    size_t first = 0;
    std::vector<bf16_t> alone;
    for (const SequenceRows& part : parts) {
      alone = run({part}, first, kernel, 0);
      first += static_cast<size_t>(part.tokens);
    }
    for (const size_t bytes : {size_t{0}, size_t{50'000}}) {
      wipe();
      CHECK(run(parts, 0, kernel, bytes) == alone);
    }
  }
}

TEST_CASE("gpu/attention: MoBA rows are routed where that skips more than the index and padding cost") {
  const ExtentLayout layout{.layers = 1, .kv_heads = 8, .head_dim = 128, .block_tokens = 64, .dtype = Dtype::bf16};
  const auto kernel = [&](int64_t kv_len, int32_t tokens, int32_t block, int32_t top_k, bool is_hopper = true) {
    const SequenceRows rows{.q_begin = kv_len - tokens,
                            .kv_len = kv_len,
                            .tokens = tokens,
                            .mode = {.kind = attn::ModeKind::moba, .block = block, .top_k = top_k}};
    return choose_routed(layout, 32, rows, kRoutedBytes, is_hopper);
  };
  CHECK(kernel(131072, 8192, 128, 8) == AttentionKernel::transposed);  // 60 rows of a list in a wave
  CHECK(kernel(65536, 8192, 128, 8) == AttentionKernel::stationary);
  CHECK(kernel(65536, 8192, 256, 8) == AttentionKernel::stationary);
  CHECK(kernel(65536, 8192, 320, 8) == AttentionKernel::wide);  // beyond shared memory
  CHECK(kernel(65536, 8192, 128, 8, false) == AttentionKernel::routed);
  CHECK(kernel(1 << 20, 8192, 4096, 12) == AttentionKernel::wide);
  CHECK(kernel(1 << 20, 8192, 256, 8) == AttentionKernel::wide);        // 15 rows, of more products than a part costs
  CHECK(kernel(1 << 20, 8192, 128, 8) == AttentionKernel::transposed);  // 7 rows beside a union of 448 blocks
  CHECK(kernel(131072, 8192, 512, 3) == AttentionKernel::wide);
  // 33 blocks or fewer beside 11 chosen ones: nearly all of them are read anyway.
  CHECK(kernel(33 * 4096, 8192, 4096, 12) == AttentionKernel::hopper);
  CHECK(kernel(34 * 4096, 8192, 4096, 12) == AttentionKernel::wide);
  CHECK(kernel(33 * 4096, 8192, 4096, 12, false) == AttentionKernel::prefill);
  CHECK(kernel(131072, 32, 128, 8) == AttentionKernel::hopper);    // lists of less than one row
  CHECK(kernel(131072, 8192, 128, 1) == AttentionKernel::hopper);  // no block is chosen
  CHECK(kernel(100, 100, 128, 3) == AttentionKernel::hopper);
}

TEST_CASE("gpu/attention: the workspace of routed rows stays within its bound, and each token is in one piece") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  for (int round = 0; round < 50; ++round) {
    const auto heads = static_cast<int32_t>(1 + rng.below(8));
    const size_t bytes = size_t{1} << (16 + rng.below(12));
    constexpr AttentionKernel kKernels[] = {AttentionKernel::routed, AttentionKernel::wide, AttentionKernel::stationary,
                                            AttentionKernel::transposed, AttentionKernel::united};
    const AttentionKernel kernel = kKernels[rng.below(std::size(kKernels))];
    RoutedPlan plan(kLayout, heads, bytes);
    std::vector<int32_t> tokens;
    const attn::Mode mode{.kind = attn::ModeKind::moba, .block = 64, .top_k = 2 + static_cast<int32_t>(rng.below(16))};
    const uint64_t sequences = 1 + rng.below(4);
    for (uint64_t i = 0; i < sequences; ++i) {
      tokens.push_back(static_cast<int32_t>(1 + rng.below(3000)));
      plan.add(i, {.kv_len = tokens.back(), .tokens = tokens.back(), .mode = mode}, kernel);
    }
    std::vector<int32_t> ends(tokens.size());
    for (const RoutedWave& wave : plan.waves())
      for (size_t i = wave.first; i < wave.first + wave.count; ++i) {
        const RoutedPlan::Piece& piece = plan.pieces()[i];
        CHECK(piece.first == ends[piece.sequence]);
        ends[piece.sequence] += piece.tokens;
        CHECK((i == wave.first || piece.sequence != plan.pieces()[i - 1].sequence));
      }
    CHECK(ends == tokens);
    // Beside the tokens of a wave, at least 64 of them: arrays that grow with the blocks, and alignment.
    const size_t each = static_cast<size_t>(heads * (mode.top_k - 1)) * (2 * kLayout.head_dim + 17);
    const size_t blocks = tokens.size() * (3000 / 64 + 2);
    CHECK(plan.bytes() <=
          std::max(bytes, kPieceTokensMin * each) + blocks * routed_page_bytes(kLayout) + tokens.size() * 10 * 256);
  }
}

TEST_CASE("gpu/attention: chunks and decode rows of one batch have the bits of batches of their own, in any order") {
  Pool pool(12);
  Rng rng(test::seed());
  CAPTURE(test::seed());
  constexpr size_t kWidth = size_t{kQHeads} * 64;
  const attn::Mode moba{.kind = attn::ModeKind::moba, .block = 64, .top_k = 3};
  // A decode row over two splits, the shortest chunk of a prefill kernel, the longest of a decode kernel, a row of a
  // window, a chunk over cached pages, a decode row that chooses blocks, and a chunk that goes by key blocks.
  std::vector<SequenceRows> parts = {row_at(540), row_at(9),   row_at(8),  row_at(200),
                                     row_at(170), row_at(400), row_at(700)};
  parts[1].tokens = 9, parts[1].q_begin = 0;
  parts[2].tokens = 8, parts[2].q_begin = 0;
  parts[3].mode = {.kind = attn::ModeKind::window, .window = 70};
  parts[4].tokens = 42, parts[4].q_begin = 128, parts[4].mode = parts[5].mode = parts[6].mode = moba;
  parts[6].tokens = 130, parts[6].q_begin = 570;
  CHECK(choose_routed(kLayout, kQHeads, parts[6], kRoutedBytes, true) == AttentionKernel::transposed);
  size_t tokens = 0;
  for (const SequenceRows& part : parts) tokens += static_cast<size_t>(part.tokens);
  std::vector<bf16_t> queries(tokens * kWidth);
  for (bf16_t& one : queries) one = f32_to_bf16(static_cast<float>(rng.normal()));
  const auto q = *DeviceBuffer::make(*pool.device, queries.size() * 2, "queries");
  const auto out = *DeviceBuffer::make(*pool.device, queries.size() * 2, "output");
  AttentionShape shape = pool.shape();
  shape.kernel = AttentionKernel::automatic;
  AttentionBatch batch(*pool.device);
  // The queries and results of each part, by part.
  using Rows = std::vector<std::vector<bf16_t>>;
  const auto run = [&](const std::vector<size_t>& order, const Rows& of) {
    std::vector<SequenceRows> sequences;
    std::vector<bf16_t> all;
    for (const size_t part : order) {
      sequences.push_back(parts[part]);
      all.insert(all.end(), of[part].begin(), of[part].end());
    }
    REQUIRE_OK(pool.device->write(q.address(), std::as_bytes(std::span(all))));
    REQUIRE_OK(batch.begin(shape, sequences));
    REQUIRE_OK(batch.attend({.pool = pool.pages.address(), .q = q.address(), .out = out.address()}));
    REQUIRE_OK(pool.device->read(out.address(), std::as_writable_bytes(std::span(all))));
    Rows results(parts.size());
    auto at = all.begin();
    for (const size_t part : order) {
      results[part].assign(at, at + std::ssize(of[part]));
      at += std::ssize(of[part]);
    }
    return results;
  };
  Rows rows(parts.size()), alone(parts.size());
  auto at = queries.begin();
  for (size_t part = 0; part < parts.size(); ++part) {
    const auto count = static_cast<ptrdiff_t>(static_cast<size_t>(parts[part].tokens) * kWidth);
    rows[part].assign(at, at + count);
    at += count;
    alone[part] = run({part}, rows)[part];
    CHECK(std::any_of(alone[part].begin(), alone[part].end(), [](bf16_t x) { return x != 0; }));
  }
  for (const std::vector<size_t>& order : {std::vector<size_t>{0, 3, 2, 1, 5, 6, 4}, {4, 0, 6, 1, 3, 5, 2}})
    CHECK(run(order, rows) == alone);
}

TEST_CASE("gpu/attention: a KV head may have more query heads than a tile of decode has rows, in every kernel") {
  constexpr int32_t kHeads = 40, kTokens = 2;
  constexpr size_t kFloats = size_t{kTokens} * kHeads * 64;
  Pool pool(7);
  Rng rng(test::seed());
  CAPTURE(test::seed());
  std::vector<bf16_t> queries(kFloats);
  std::vector<float> rounded(kFloats), expected(kFloats);
  for (size_t i = 0; i < kFloats; ++i) {
    queries[i] = f32_to_bf16(static_cast<float>(rng.normal()));
    rounded[i] = bf16_to_f32(queries[i]);
  }
  const auto q = *DeviceBuffer::make(*pool.device, kFloats * 2, "queries");
  const auto out = *DeviceBuffer::make(*pool.device, kFloats * 2, "output");
  REQUIRE_OK(pool.device->write(q.address(), std::as_bytes(std::span(queries))));
  SequenceRows rows = row_at(420);
  rows.tokens = kTokens, rows.q_begin = 420 - kTokens;
  rows.mode = {.kind = attn::ModeKind::moba, .block = 64, .top_k = 3};
  Parallel parallel(1);
  auto reference = attn::Attention::open(parallel, "ref");
  REQUIRE_OK(reference);
  std::vector<const std::byte*> pages;
  for (const int32_t page : rows.pages) pages.push_back(&pool.host[static_cast<size_t>(page) * kLayout.page_bytes()]);
  REQUIRE_OK(reference->prefill({.layout = kLayout,
                                 .mode = rows.mode,
                                 .q_heads = kHeads,
                                 .rows = kTokens,
                                 .q_begin = rows.q_begin,
                                 .q = rounded.data(),
                                 .kv = {pages.data(), rows.kv_len},
                                 .out = expected.data()}));
  AttentionShape shape = pool.shape();
  shape.q_heads = kHeads, shape.unites = false;
  for (const AttentionKernel kernel :
       {AttentionKernel::automatic, AttentionKernel::prefill, AttentionKernel::decode, AttentionKernel::cluster,
        AttentionKernel::hopper, AttentionKernel::routed, AttentionKernel::wide, AttentionKernel::stationary,
        AttentionKernel::transposed, AttentionKernel::united}) {
    CAPTURE(static_cast<int>(kernel));
    std::vector<bf16_t> result(kFloats, 0xffff);
    REQUIRE_OK(pool.device->write(out.address(), std::as_bytes(std::span(result))));
    shape.kernel = kernel;
    AttentionBatch batch(*pool.device);
    REQUIRE_OK(batch.begin(shape, {rows}));
    REQUIRE_OK(batch.attend({.pool = pool.pages.address(), .q = q.address(), .out = out.address()}));
    REQUIRE_OK(pool.device->read(out.address(), std::as_writable_bytes(std::span(result))));
    float worst = 0;
    for (size_t i = 0; i < kFloats; ++i) {
      const float error = std::abs(bf16_to_f32(result[i]) - expected[i]);
      if (!(error <= worst)) worst = error;
    }
    CHECK(worst < 0.02f);  // values of about 4 in bf16: 2^-8 of them, once for the weights and once for the output
  }
}

TEST_CASE("gpu/attention: two layers of a batch use one copy of its tables") {
  Pool pool(2);
  AttentionBatch batch(*pool.device);
  REQUIRE_OK(batch.begin(pool.shape(), {row_at(100)}));
  REQUIRE_OK(batch.attend(pool.layer()));
  const auto first = pool.result(0);
  REQUIRE_OK(batch.attend(pool.layer()));
  CHECK(pool.result(0) == first);
}

TEST_CASE("gpu/attention: a batch takes no more memory than was planned for its rows and pages") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  Pool pool(1);
  for (int round = 0; round < 30; ++round) {
    AttentionShape shape = pool.shape();
    shape.layout.kv_heads = 1 + static_cast<uint32_t>(rng.below(3));
    shape.layout.head_dim = rng.below(2) == 0 ? 64 : 128;
    shape.q_heads = static_cast<int32_t>(shape.layout.kv_heads * (1 + rng.below(4)));
    shape.kernel = AttentionKernel::automatic;
    const bool is_step = rng.below(2) == 0;
    std::vector<SequenceRows> sequences;
    size_t rows = 0, pages = 0;
    const uint64_t before_chunk = rng.below(20);
    for (uint64_t i = 0; i <= before_chunk; ++i) {
      SequenceRows s = row_at(1 + static_cast<int64_t>(rng.below(rng.below(8) == 0 ? 40'000 : 2000)));
      if (!is_step && i == before_chunk)  // behind the rows of a step
        s.tokens = static_cast<int32_t>(1 + rng.below(static_cast<uint64_t>(std::min<int64_t>(s.kv_len, 300))));
      s.q_begin = s.kv_len - s.tokens;
      if (round % 3 > 0 && rng.below(2) == 0)  // every third batch has none
        s.mode = {.kind = attn::ModeKind::moba, .block = 64, .top_k = 1 + static_cast<int32_t>(rng.below(17))};
      rows += static_cast<size_t>(s.tokens);
      pages += s.pages.size();
      sequences.push_back(std::move(s));
    }
    shape.is_rounded = is_step && rng.below(2) == 0;
    const bool has_moba =
        std::ranges::any_of(sequences, [](const SequenceRows& s) { return s.mode.kind == attn::ModeKind::moba; });
    const auto before = pool.device->memory();
    const AttentionMemory planned =
        attention_memory(shape.layout, shape.q_heads, rows, sequences.size(), has_moba, before->total);
    AttentionBatch batch(*pool.device);
    REQUIRE_OK(batch.begin(shape, sequences));
    const auto after = pool.device->memory();
    CHECK(before->free - after->free <= planned.fixed + pages * planned.page);
  }
}

TEST_CASE("gpu/attention: a batch that the kernels cannot compute is refused by its limit") {
  Pool pool(2);
  AttentionBatch batch(*pool.device);
  SequenceRows rows = row_at(100);
  rows.splits = kSplitsMax + 1;
  CHECK(batch.begin(pool.shape(), {rows}).error().what.find("65 splits, at most 64") != std::string::npos);
  rows.splits = 0;
  rows.pages.pop_back();
  CHECK(batch.begin(pool.shape(), {rows}).error().what.find("has 1 pages") != std::string::npos);
}

TEST_CASE("gpu/attention: a sequence has 8,192 MoBA blocks at most, counted with the open one") {
  attn::Mode mode{.kind = attn::ModeKind::moba, .block = 128, .top_k = 3};
  REQUIRE_OK(check_mode(kLayout, mode, int64_t{128} * 8192));
  const auto refused = check_mode(kLayout, mode, int64_t{128} * 8192 + 1);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().what.find("8193 MoBA blocks, at most 8192") != std::string::npos);
  CHECK(refused.error().code == Code::invalid);  // the client's 400, not a fault of the node
  mode.block = 96;
  CHECK(check_mode(kLayout, mode, 1).error().what.find("96 tokens is no multiple") != std::string::npos);
}

}  // namespace mc::gpu
