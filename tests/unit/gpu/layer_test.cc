// The kernels of a layer beside attention, in the emulator: against sums in double, against lib/attn for the seal of a
// page, and with a synchronisation of each product left out.
#include "gpu/kernels/layer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "attn/attn.h"
#include "base/dtype.h"
#include "base/hash.h"
#include "base/rng.h"
#include "gpu/kernels/kernels.h"
#include "unit/gpu/device_bench.h"

using namespace mc;
using namespace mc::gpu;
using tested::Bench;
using tested::normal;
using tested::rounded;

namespace {

struct Matrices {
  size_t rows, columns, inner;
  std::vector<uint16_t> x, w;
  std::vector<float> y;
  Matrices(Rng& rng, size_t m, size_t n, size_t k)
      : rows(m), columns(n), inner(k), x(rounded(normal(rng, m * k))), w(rounded(normal(rng, n * k))), y(m * n, 1) {}

  /// The largest error of `got` = 1 + x w^T as a share of its bound: inner + 2 roundings of f32, of the sum of the
  /// absolute values of the products.
  double worst_share(const std::vector<float>& got) const {
    double worst = 0;
    for (size_t r = 0; r < rows; ++r)
      for (size_t c = 0; c < columns; ++c) {
        double sum = 1, size = 1;
        for (size_t k = 0; k < inner; ++k) {
          const double product = double{bf16_to_f32(x[r * inner + k])} * bf16_to_f32(w[c * inner + k]);
          sum += product;
          size += std::abs(product);
        }
        const double bound = static_cast<double>(inner + 2) * 0x1p-24 * size;
        worst = std::max(worst, std::abs(got[r * columns + c] - sum) / bound);
      }
    return worst;
  }
  Result<std::vector<float>> run(Bench& bench, uint32_t tile) const {
    const ProductArgs args{.x = bench.put(x),
                           .w = bench.put(w),
                           .y = bench.put(y),
                           .rows = static_cast<int32_t>(rows),
                           .columns = static_cast<int32_t>(columns),
                           .inner = static_cast<int32_t>(inner),
                           .adds = true};
    const LaunchShape shape{
        .grid = {static_cast<uint32_t>((columns + 63) / 64), static_cast<uint32_t>((rows + tile - 1) / tile), 1},
        .dynamic_shared = product_shared(tile)};
    MC_CHECK(bench.device->launch(tile == 64 ? "product_64" : "product_16", shape, bytes_of(args)));
    std::vector<float> out(rows * columns);
    MC_CHECK(bench.device->read(reinterpret_cast<uint64_t>(args.y), std::as_writable_bytes(std::span(out))));
    return out;
  }
};

}  // namespace

TEST_CASE("gpu/layer: products of odd shapes add to y within the bound of f32 sums, without a bank conflict") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  int policy = 0;
  for (const auto& [m, n, k] : {std::array<size_t, 3>{1, 64, 64}, {17, 70, 72}, {64, 64, 136}, {65, 10, 8}})
    for (const uint32_t tile : {16u, 64u}) {
      const Matrices matrices(rng, m, n, k);
      Bench bench({.seed = rng.next(), .policy = static_cast<emu::Policy>(policy++ % emu::kPolicies)});
      const auto got = matrices.run(bench, tile);
      REQUIRE_OK(got);
      CHECK(matrices.worst_share(*got) <= 1);
      CHECK(bench.driver->gpu().counters().bank_conflicts == 0);
    }
}

TEST_CASE("gpu/layer: a row of a product has the same bits in tiles of 16 and of 64 rows") {
  Rng rng(test::seed());
  const Matrices matrices(rng, 20, 64, 128);
  Bench small, large;
  const auto a = matrices.run(small, 16), b = matrices.run(large, 64);
  REQUIRE_OK(a);
  REQUIRE_OK(b);
  CHECK(*a == *b);
}

TEST_CASE("gpu/layer: each synchronisation that a product leaves out is reported under every policy") {
  Rng rng(test::seed());
  const Matrices matrices(rng, 20, 64, 256);
  for (const uint32_t tile : {16u, 64u}) {
    std::vector<emu::Site> sites;
    Bench sound({.sites = &sites});
    REQUIRE_OK(matrices.run(sound, tile));
    std::sort(sites.begin(), sites.end());
    int mutants = 0;
    for (const emu::Site& site : sites) {
      if (site.instruction != emu::Instruction::cp_async_wait && site.instruction != emu::Instruction::bar_sync)
        continue;
      const emu::Mutation mutation{.site = site};
      for (int policy = 0; policy < emu::kPolicies; ++policy) {
        Bench bench({.seed = rng.next(), .policy = static_cast<emu::Policy>(policy), .mutation = &mutation});
        const auto got = matrices.run(bench, tile);
        CHECK_MESSAGE(!got.has_value(), site.line);
        ++mutants;
      }
    }
    CHECK(mutants == 9);  // a wait and two barriers, under three policies
  }
}

TEST_CASE("gpu/layer: RMSNorm, SiLU, embedding and the sum of rows give the formula within bf16's rounding") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  Bench bench;
  constexpr int kRows = 5, kColumns = 72;
  const std::vector<float> x = normal(rng, kRows * kColumns * 2), weight = normal(rng, kColumns);
  const auto near = [](float got, double want) { return std::abs(got - want) <= 0x1p-8 * std::abs(want) + 1e-30; };

  const NormArgs norm{.x = bench.put(x),
                      .weight = bench.put(weight),
                      .out = bench.put(std::vector<uint16_t>(kRows * kColumns)),
                      .rows = kRows,
                      .columns = kColumns,
                      .epsilon = 1e-5f};
  bench.launch("rms_norm", {.grid = {2, 1, 1}}, norm);
  const auto normed = bench.get(norm.out, kRows * kColumns);
  const SiluArgs silu{
      .gate_up = norm.x, .out = bench.put(std::vector<uint16_t>(kRows * kColumns)), .columns = kColumns};
  bench.launch("silu_mul", {.grid = {kRows, 1, 1}}, silu);
  const auto activated = bench.get(silu.out, kRows * kColumns);
  const AddArgs add{.x = norm.weight, .y = bench.put(x), .columns = kColumns};
  bench.launch("add_to_rows", {.grid = {kRows, 1, 1}}, add);
  const auto sums = bench.get(add.y, kRows * kColumns);
  for (size_t r = 0; r < kRows; ++r) {
    double squares = 0;
    for (size_t c = 0; c < kColumns; ++c) squares += double{x[r * kColumns + c]} * x[r * kColumns + c];
    const double scale = 1 / std::sqrt(squares / kColumns + 1e-5);
    for (size_t c = 0; c < kColumns; ++c) {
      CHECK(near(bf16_to_f32(normed[r * kColumns + c]), x[r * kColumns + c] * scale * weight[c]));
      const double gate = x[r * 2 * kColumns + c], up = x[r * 2 * kColumns + kColumns + c];
      CHECK(near(bf16_to_f32(activated[r * kColumns + c]), gate / (1 + std::exp(-gate)) * up));
      CHECK(sums[r * kColumns + c] == x[r * kColumns + c] + weight[c]);
    }
  }

  const auto table = rounded(normal(rng, 7 * kColumns));
  const EmbedArgs embed{.tokens = bench.put(std::vector<int32_t>{6, 0, 3}),
                        .table = bench.put(table),
                        .x = bench.put(std::vector<float>(3 * kColumns)),
                        .columns = kColumns};
  bench.launch("embed_rows", {.grid = {3, 1, 1}}, embed);
  const auto embedded = bench.get(embed.x, 3 * kColumns);
  CHECK(embedded[0] == bf16_to_f32(table[6 * kColumns]));
  CHECK(embedded[2 * kColumns + 5] == bf16_to_f32(table[3 * kColumns + 5]));
}

namespace {

/// Rows of the table for two tokens of the host, and for tokens that rows 1, 0 and 2 of the step before drew: 2, 5 and
/// none, which gives the first row.
Result<std::vector<float>> embed_fed(Bench& bench, const std::vector<uint16_t>& table, int columns) {
  const std::vector<Drawn> drawn = {{.token = 5}, {.token = 2}, {.token = -1}};
  const EmbedArgs args{.tokens = bench.put(std::vector<int32_t>{6, ~1, 3, ~0, ~2}),
                       .table = bench.put(table),
                       .fed = bench.put(drawn),
                       .x = bench.put(std::vector<float>(static_cast<size_t>(5 * columns))),
                       .columns = columns};
  MC_CHECK(bench.device->launch("embed_rows", {.grid = {5, 1, 1}}, bytes_of(args)));
  std::vector<float> out(static_cast<size_t>(5 * columns));
  MC_CHECK(bench.device->read(reinterpret_cast<uint64_t>(args.x), std::as_writable_bytes(std::span(out))));
  return out;
}

}  // namespace

TEST_CASE("gpu/layer: a token that the step before drew is embedded, and each instruction left out is seen") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  constexpr int kColumns = 72;
  const auto table = rounded(normal(rng, 7 * kColumns));
  std::vector<emu::Site> sites;
  Bench sound({.sites = &sites});
  const auto want = embed_fed(sound, table, kColumns);
  REQUIRE_OK(want);
  size_t row = 0;
  for (const int token : {6, 2, 3, 5, 0}) {
    for (int c = 0; c < kColumns; ++c)
      CHECK((*want)[row * kColumns + static_cast<size_t>(c)] ==
            bf16_to_f32(table[static_cast<size_t>(token * kColumns + c)]));
    ++row;
  }
  int mutants = 0;
  for (const emu::Site& site : sites) {
    if (site.instruction == emu::Instruction::exit) continue;
    const emu::Mutation mutation{.site = site};
    for (int policy = 0; policy < emu::kPolicies; ++policy, ++mutants) {
      Bench bench({.seed = rng.next(), .policy = static_cast<emu::Policy>(policy), .mutation = &mutation});
      const auto got = embed_fed(bench, table, kColumns);
      CHECK_MESSAGE((!got.has_value() || *got != *want), emu::to_string(site.instruction), " at ", site.line);
    }
  }
  CHECK(mutants >= 4 * emu::kPolicies);  // the token, the drawn one, the table, and the store
}

TEST_CASE("gpu/layer: K and V are turned, placed and sealed as lib/attn writes them, bit for bit") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  for (const bool normalised : {false, true}) {
    ExtentLayout layout{.layers = 1, .kv_heads = 2, .head_dim = 64, .block_tokens = 64, .dtype = Dtype::bf16};
    constexpr int kHeads = 4, kRows = 70, kHalf = 32;  // a whole page and a tail of 6
    constexpr int kKept = 3;                           // of the rows
    const size_t width = (kHeads + 2 * layout.kv_heads) * layout.head_dim;
    const std::vector<float> qkv = normal(rng, kRows * width);
    const std::vector<float> cosine = normal(rng, kRows * kHalf), sine = normal(rng, kRows * kHalf);
    const std::vector<float> norm = normal(rng, 64);
    Bench bench;
    std::vector<RowPlace> places;
    for (int r = 0; r < kRows; ++r) places.push_back({1 - r / 64, r % 64});  // pages in the order 1, 0
    unsigned char* pool = bench.put(std::vector<unsigned char>(2 * layout.page_bytes(), 0xee));
    const KvPool of{pool,
                    layout.page_bytes(),
                    layout.head_bytes(),
                    static_cast<uint32_t>(layout.v_offset()),
                    static_cast<uint32_t>(layout.ksum_offset()),
                    static_cast<uint32_t>(layout.kmean_offset()),
                    64,
                    2};
    const float* norms = normalised ? bench.put(norm) : nullptr;
    const RotateArgs rotate{.pool = of,
                            .qkv = bench.put(qkv),
                            .cosine = bench.put(cosine),
                            .sine = bench.put(sine),
                            .q_norm = norms,
                            .k_norm = norms,
                            .places = bench.put(places),
                            .q = bench.put(std::vector<uint16_t>(kRows * kHeads * 64)),
                            .kept = bench.put(std::vector<uint16_t>(kKept * 2 * 2 * 64)),
                            .kept_rows = kKept,
                            .q_heads = kHeads,
                            .head_dim = 64,
                            .epsilon = 1e-5f};
    bench.launch("rotate_and_keep", {.grid = {kRows, 2, 1}}, rotate);
    const std::vector<RowPlace> sealed = {{1, 64}, {-1, 0}, {0, 6}};  // the second one is no page
    const SealArgs seal{.pool = of, .pages = bench.put(sealed), .head_dim = 64};
    bench.launch("seal_pages", {.grid = {3, 2, 1}}, seal);
    std::vector<unsigned char> pages = bench.get(pool, 2 * layout.page_bytes());

    const auto q = bench.get(rotate.q, kRows * kHeads * 64);
    double worst = 0;
    for (size_t r = 0; r < kRows; ++r)
      for (size_t h = 0; h < kHeads; ++h) {
        const float* from = qkv.data() + r * width + h * 64;
        double squares = 0;
        for (int i = 0; i < 64; ++i) squares += double{from[i]} * from[i];
        const double scale = normalised ? 1 / std::sqrt(squares / 64 + 1e-5) : 1;
        for (size_t i = 0; i < kHalf; ++i) {
          const double a = from[i] * scale * (normalised ? norm[i] : 1);
          const double b = from[i + kHalf] * scale * (normalised ? norm[i + kHalf] : 1);
          const double c = cosine[r * kHalf + i], s = sine[r * kHalf + i];
          const uint16_t* to = q.data() + (r * kHeads + h) * 64 + i;
          const double size = std::abs(a * c) + std::abs(b * s) + std::abs(a * s) + std::abs(b * c);
          worst = std::max({worst, std::abs(bf16_to_f32(to[0]) - (a * c - b * s)) / size,
                            std::abs(bf16_to_f32(to[kHalf]) - (b * c + a * s)) / size});
        }
      }
    CHECK(worst <= 0x1p-8);

    // V is copied and K is turned by the device; the seal of those bytes is lib/attn's.
    std::vector<unsigned char> want = pages;
    attn::seal(layout, reinterpret_cast<std::byte*>(want.data() + layout.page_bytes()), 64);
    attn::seal(layout, reinterpret_cast<std::byte*>(want.data()), 6);
    for (size_t page = 0; page < 2; ++page)
      CHECK(std::equal(want.begin() + static_cast<ptrdiff_t>(page * layout.page_bytes()),
                       want.begin() + static_cast<ptrdiff_t>(page * layout.page_bytes() + layout.layer_bytes()),
                       pages.begin() + static_cast<ptrdiff_t>(page * layout.page_bytes())));
    const auto* v = reinterpret_cast<const uint16_t*>(want.data() + layout.head_bytes() + layout.v_offset());
    const float* last = qkv.data() + 69 * width + (kHeads + 2 + 1) * 64;  // row 69, V of head 1: page 0, slot 5
    CHECK(v[5 * 64 + 7] == f32_to_bf16(last[7]));
    const auto kept = bench.get(rotate.kept, kKept * 2 * 2 * 64);
    for (size_t r = 0; r < kKept; ++r)  // slot r of page 1
      for (size_t part = 0; part < 2; ++part)
        for (size_t head = 0; head < 2; ++head) {
          const size_t record = layout.page_bytes() + head * layout.head_bytes() + part * layout.v_offset();
          const auto* stored = reinterpret_cast<const uint16_t*>(want.data() + record) + r * 64;
          CHECK(std::equal(stored, stored + 64, kept.data() + ((r * 2 + part) * 2 + head) * 64));
        }
    CHECK(v[6 * 64 + 7] == 0);
  }
}

namespace {

/// Rows of two heads of 64 in pages of 64 tokens, stored by code_rows in three passes: rows 0 to 2 of page 1, the rest
/// of that page beside six rows of page 0, and one more row.
class CodedPages {
 public:
  static constexpr int kHeads = 4, kRows = 71;
  ExtentLayout layout{.layers = 1, .kv_heads = 2, .head_dim = 64, .block_tokens = 64, .dtype = Dtype::f8_e4m3};

  explicit CodedPages(Rng& rng) : qkv_(normal(rng, kRows * width())) {
    // Rows of very different sizes, so that later rows need larger scales. A zero row has the smallest one.
    for (size_t r = 0; r < kRows; ++r) {
      const float size = r == 7 ? 0.0f : std::ldexp(1.0f, static_cast<int>(rng.below(20)) - 10);
      for (size_t i = 0; i < width(); ++i) qkv_[r * width() + i] *= size;
    }
  }

  size_t width() const { return (kHeads + 2 * layout.kv_heads) * layout.head_dim; }

  /// The two pages, sealed on the device.
  std::vector<unsigned char> on_device(Bench& bench) {
    unsigned char* pool = bench.put(std::vector<unsigned char>(2 * layout.page_bytes(), 0xee));
    CodeArgs args{.pool = {pool, layout.page_bytes(), layout.head_bytes(), static_cast<uint32_t>(layout.v_offset()),
                           static_cast<uint32_t>(layout.ksum_offset()), static_cast<uint32_t>(layout.kmean_offset()),
                           64, 2, static_cast<uint32_t>(layout.scale_offset())},
                  .qkv = bench.put(qkv_),
                  .kept = bench.put(std::vector<unsigned char>(kRows * kept_code_bytes(2, 64))),
                  .kept_rows = kRows,
                  .q_heads = kHeads,
                  .head_dim = 64};
    const std::vector<PageRows> passes[] = {
        {{1, 0, 0, 3}}, {{1, 3, 3, 61}, {-1, 0, 0, 0}, {0, 0, 64, 6}}, {{0, 6, 70, 1}}};
    for (const std::vector<PageRows>& pages : passes) {
      args.pages = bench.put(pages);
      bench.launch("code_rows", {.grid = {static_cast<uint32_t>(pages.size()), 2, 2}, .dynamic_shared = kCodeShared},
                   args);
    }
    const std::vector<RowPlace> sealed = {{1, 64}, {0, 7}};
    const SealArgs seal{.pool = args.pool, .pages = bench.put(sealed), .head_dim = 64};
    bench.launch("seal_pages", {.grid = {2, 2, 1}}, seal);
    kept_ = bench.get(args.kept, kRows * kept_code_bytes(2, 64));
    return bench.get(pool, 2 * layout.page_bytes());
  }

  /// The pages that lib/attn makes of the rows.
  std::vector<unsigned char> on_host() const {
    std::vector<unsigned char> pages(2 * layout.page_bytes(), 0xee);
    std::byte* at[] = {page(pages, 1), page(pages, 0)};
    attn::append({.layout = layout,
                  .target = {at, 0},
                  .tokens = kRows,
                  .k = qkv_.data() + kHeads * 64,
                  .v = qkv_.data() + (kHeads + 2) * 64,
                  .k_stride = static_cast<int64_t>(width()),
                  .v_stride = static_cast<int64_t>(width())});
    attn::seal(layout, at[1], 7);
    return pages;
  }

  /// The pages that a host makes of what the device has kept of each row.
  std::vector<unsigned char> of_kept() const {
    std::vector<unsigned char> pages(2 * layout.page_bytes(), 0xee);
    for (int64_t row = 0; row < kRows; ++row)
      attn::append_codes(layout, page(pages, row < 64 ? 1 : 0), row % 64,
                         reinterpret_cast<const std::byte*>(kept_.data()) + row * kept_code_bytes(2, 64));
    attn::seal(layout, page(pages, 1), 64);
    attn::seal(layout, page(pages, 0), 7);
    return pages;
  }

 private:
  std::byte* page(std::vector<unsigned char>& pages, size_t index) const {
    return reinterpret_cast<std::byte*>(pages.data()) + index * layout.page_bytes();
  }
  std::vector<float> qkv_;
  std::vector<unsigned char> kept_;
};

bool same_extents(const ExtentLayout& layout, const std::vector<unsigned char>& a,
                  const std::vector<unsigned char>& b) {
  for (size_t page = 0; page < 2; ++page) {
    const auto at = static_cast<ptrdiff_t>(page * layout.page_bytes());
    if (!std::equal(a.begin() + at, a.begin() + at + static_cast<ptrdiff_t>(layout.layer_bytes()), b.begin() + at))
      return false;
  }
  return true;
}

}  // namespace

TEST_CASE("gpu/layer: codes of E4M3, their scales and the seal are those of lib/attn, bit for bit, in any passes") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  CodedPages coded(rng);
  for (int policy = 0; policy < emu::kPolicies; ++policy) {
    Bench bench({.seed = rng.next(), .policy = static_cast<emu::Policy>(policy)});
    CHECK(same_extents(coded.layout, coded.on_device(bench), coded.on_host()));
    CHECK(same_extents(coded.layout, coded.of_kept(), coded.on_host()));
  }
  Bench broken({.fault = static_cast<uint8_t>(Fault::codes_not_shifted)});
  CHECK_FALSE(same_extents(coded.layout, coded.on_device(broken), coded.on_host()));
}

TEST_CASE("gpu/layer: rows are gathered from their places, and a kernel that takes the first ones is found") {
  constexpr int kWords = 130;
  Rng rng(test::seed());
  std::vector<uint32_t> from(7 * kWords);
  for (uint32_t& word : from) word = static_cast<uint32_t>(rng.next());
  const std::vector<int32_t> rows = {0, 1, 6, 3, 3};
  const auto gather = [&](Fault fault) {
    Bench bench({.fault = static_cast<uint8_t>(fault)});
    const GatherArgs args{.from = bench.put(from),
                          .to = bench.put(std::vector<uint32_t>(rows.size() * kWords)),
                          .rows = bench.put(rows),
                          .words = kWords};
    bench.launch("gather_rows", {.grid = {static_cast<uint32_t>(rows.size()), 1, 1}}, args);
    return bench.get(args.to, rows.size() * kWords);
  };
  const auto got = gather(Fault::none);
  for (size_t row = 0; row < rows.size(); ++row)
    CHECK(std::equal(got.begin() + static_cast<ptrdiff_t>(row * kWords),
                     got.begin() + static_cast<ptrdiff_t>((row + 1) * kWords), from.begin() + rows[row] * kWords));
  CHECK(gather(Fault::gathers_own_place) != got);
}

namespace {

/// The checksums that a device makes of pages 2 and 0 of three, whose extents begin 64 bytes into a page.
Result<std::vector<uint32_t>> sums_of(Bench& bench, const std::vector<std::byte>& pool, uint64_t page_bytes,
                                      uint32_t bytes) {
  const ChecksumArgs args{.extents = reinterpret_cast<unsigned char*>(bench.put(pool)) + 64,
                          .page_bytes = page_bytes,
                          .pages = bench.put(std::vector<RowPlace>{{2, 0}, {-1, 0}, {0, 0}}),
                          .sums = bench.put(std::vector<uint32_t>{0, 5, 0}),
                          .words = bytes / 4,
                          .start = crc32c_shift(0xffffffff, bytes)};
  const LaunchShape shape{.grid = {3, 1, 1}, .dynamic_shared = kChecksumShared};
  MC_CHECK(bench.device->launch("checksum_extents", shape, bytes_of(args)));
  std::vector<uint32_t> out(3);
  MC_CHECK(bench.device->read(reinterpret_cast<uint64_t>(args.sums), std::as_writable_bytes(std::span(out))));
  if (out[1] != 5) return Error{Code::corrupt, "a sum of no page was written"};
  return std::vector<uint32_t>{out[0], out[2]};
}

std::vector<std::byte> noise(Rng& rng, size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(rng.below(256));
  return out;
}

}  // namespace

TEST_CASE("gpu/layer: the checksum of an extent is the CRC32C of its bytes, for every share of the threads") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  // Extents of fewer words than threads, of one word more or less than a round of them, and of a page of mc-tiny.
  for (const uint32_t bytes : {4u, 64u, 508u, 512u, 516u, 1020u, 1024u, 33536u}) {
    CAPTURE(bytes);
    const uint64_t page_bytes = 64 + bytes + 128;
    const std::vector<std::byte> pool = noise(rng, 3 * page_bytes);
    Bench bench({.seed = rng.next(), .policy = static_cast<emu::Policy>(bytes % emu::kPolicies)});
    const auto got = sums_of(bench, pool, page_bytes, bytes);
    REQUIRE_OK(got);
    CHECK((*got)[0] == crc32c({pool.data() + 2 * page_bytes + 64, bytes}));
    CHECK((*got)[1] == crc32c({pool.data() + 64, bytes}));
    CHECK(bench.driver->gpu().counters().bank_conflicts == 0);
  }
}

TEST_CASE("gpu/layer: each instruction that the checksum leaves out is reported, or gives another sum") {
  Rng rng(test::seed());
  CAPTURE(test::seed());
  constexpr uint32_t kBytes = 4096;
  const std::vector<std::byte> pool = noise(rng, 3 * (kBytes + 192));
  std::vector<emu::Site> sites;
  Bench sound({.sites = &sites});
  const auto want = sums_of(sound, pool, kBytes + 192, kBytes);
  REQUIRE_OK(want);
  int mutants = 0;
  for (const emu::Site& site : sites) {
    if (site.instruction == emu::Instruction::exit) continue;
    const emu::Mutation mutation{.site = site};
    for (int policy = 0; policy < emu::kPolicies; ++policy) {
      Bench bench({.seed = rng.next(), .policy = static_cast<emu::Policy>(policy), .mutation = &mutation});
      const auto got = sums_of(bench, pool, kBytes + 192, kBytes);
      CHECK_MESSAGE((!got.has_value() || *got != *want), emu::to_string(site.instruction), " at ", site.line);
      ++mutants;
    }
  }
  CHECK(mutants >= 6 * emu::kPolicies);  // two loads, the exchange, the store, the barrier and the load of the parts
}
