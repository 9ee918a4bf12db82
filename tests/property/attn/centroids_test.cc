// Gathered centroids against those in the pages: the same rows, and so the same choice and the same bits of a step,
// whatever happened to the sequence in between.
#include "attn/centroids.h"

#include <algorithm>

#include "attn/attn.h"
#include "count.h"
#include "property/attn/case.h"
#include "test.h"

using namespace mc;
using namespace mc::attn;
using namespace mc::attn::cases;

namespace {

/// A sequence whose pages come from either of two sets with different content, the way a table names them.
struct Sequence {
  ExtentLayout layout;
  Mode mode;
  int64_t tokens;
  std::vector<Pages> sets;
  std::vector<const std::byte*> table;

  Sequence(const ExtentLayout& shape, const Mode& sparse, int64_t length, Rng& rng)
      : layout(shape), mode(sparse), tokens(length) {
    for (int set = 0; set < 2; ++set) {
      sets.emplace_back(layout, tokens, true, rng);
      fill(set, 0, rng);
    }
    move(0, 0);
  }
  /// Writes a set's tokens from `begin`, the start of a page, anew.
  void fill(int set, int64_t begin, Rng& rng) {
    sets[static_cast<size_t>(set)].append(random_rows(layout, tokens, Data::normal, rng), begin, tokens);
  }
  /// Pages from `page` on come from `set`.
  void move(int64_t page, int set) {
    table.resize(static_cast<size_t>(tokens / layout.block_tokens));
    for (size_t i = static_cast<size_t>(page); i < table.size(); ++i)
      table[i] = sets[static_cast<size_t>(set)].layer(static_cast<int64_t>(i));
  }
  Plan plan() const { return {.mode = mode, .full_last = 0, .layers = 1}; }
  KvView view(int64_t kv_len) const { return {table.data(), kv_len, 0, {}}; }
};

std::vector<float> decode(Attention& attention, const Sequence& s, const KvView& kv, const std::vector<float>& q) {
  std::vector<float> out(q.size(), std::numeric_limits<float>::quiet_NaN());
  REQUIRE_OK(attention.decode({.layout = s.layout,
                               .q_heads = static_cast<int32_t>(q.size() / s.layout.head_dim),
                               .sequences = 1,
                               .modes = &s.mode,
                               .q = q.data(),
                               .kv = &kv,
                               .out = out.data()}));
  return out;
}

/// Lengths around the first one that gates, and where a strip of 64 blocks ends.
int64_t edge_length(const Sequence& s, Rng& rng) {
  const int64_t block = s.mode.block;
  const int64_t edges[] = {dense_below(s.mode), 64 * block, 65 * block, 128 * block, s.tokens - 2};
  const int64_t edge = edges[rng.below(std::size(edges))] + static_cast<int64_t>(rng.below(5)) - 2;
  const int64_t any = 1 + static_cast<int64_t>(rng.below(static_cast<uint64_t>(s.tokens)));
  return std::clamp<int64_t>(rng.below(4) == 0 ? any : edge, 1, s.tokens);
}

struct Shape {
  uint32_t block_tokens;
  int32_t moba_block;
};

}  // namespace

TEST_CASE(
    "attn/centroids: a step's bits are those of the pages, as a sequence grows, moves, and is cut and rewritten") {
  for (const std::string& name : fast_variants())
    for (Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f8_e4m3})
      for (const Shape& shape : {Shape{16, 16}, Shape{16, 64}, Shape{64, 64}}) {
        Rng rng(test::seed() + 31);
        const Mode mode = {ModeKind::moba, shape.moba_block, 3};
        Sequence s(layout_of(2, shape.block_tokens == 64 ? 64 : 40, dtype, shape.block_tokens), mode,
                   int64_t{130} * shape.moba_block, rng);
        Parallel pool(2);
        auto attention = Attention::open(pool, name);
        REQUIRE_OK(attention);
        CentroidIndex index(s.layout);
        std::vector<float> q(6 * s.layout.head_dim);
        for (int step = 0; step < test::count(8, 40); ++step) {
          const int64_t kv_len = edge_length(s, rng);
          const int64_t page = static_cast<int64_t>(rng.below(s.table.size()));
          if (step % 5 == 2) s.move(page, step % 2);
          if (step % 5 == 4) {  // cut back, then other tokens in the same pages
            index.extend(s.plan(), s.table.data(), page * s.layout.block_tokens, pool);
            s.fill(0, page * s.layout.block_tokens, rng);
            s.fill(1, page * s.layout.block_tokens, rng);
          }
          index.extend(s.plan(), s.table.data(), kv_len - 1, pool);
          for (float& x : q) x = bell(rng);
          const KvView pages = s.view(kv_len);
          KvView gathered = pages, part = pages;
          gathered.centroids = part.centroids = index.view(0);
          part.centroids.count = static_cast<int64_t>(rng.below(static_cast<uint64_t>(index.count()) + 1));
          INFO(name << " " << to_string(dtype) << " page " << shape.block_tokens << " block " << shape.moba_block
                    << " step " << step << " kv " << kv_len);
          const std::vector<float> expected = decode(*attention, s, pages, q);
          CHECK(same_bits(decode(*attention, s, gathered, q), expected));
          CHECK(same_bits(decode(*attention, s, part, q), expected));
        }
      }
}

TEST_CASE("attn/centroids: the index holds every whole block once it is gated, and each row is the page's") {
  for (Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f8_e4m3})
    for (const Shape& shape : {Shape{16, 16}, Shape{16, 64}}) {
      Rng rng(test::seed() + 32);
      Sequence s(layout_of(3, 40, dtype, shape.block_tokens), {ModeKind::moba, shape.moba_block, 2},
                 int64_t{66} * shape.moba_block, rng);
      Parallel pool(2);
      CentroidIndex index(s.layout);
      index.extend(s.plan(), s.table.data(), dense_below(s.mode) - 1, pool);
      CHECK(index.count() == 0);
      CHECK(index.bytes() == 0);
      for (const int64_t tokens : {2 * s.mode.block, 2 * s.mode.block + 1, 64 * s.mode.block - 1, 64 * s.mode.block + 1,
                                   3 * s.mode.block - 1, 66 * s.mode.block}) {
        index.extend(s.plan(), s.table.data(), tokens, pool);
        REQUIRE(index.count() == tokens / s.mode.block);
        const CentroidView view = index.view(0);
        std::vector<bf16_t> expected(s.layout.head_dim);
        bool same = true;
        for (int64_t block = 0; block < index.count(); ++block)
          for (int head = 0; head < 3; ++head) {
            centroid(s.layout, s.view(tokens), head, s.mode.block, block, expected.data());
            same = same && std::memcmp(expected.data(), centroid_row(s.layout, view, block, head),
                                       expected.size() * sizeof(bf16_t)) == 0;
          }
        INFO("tokens " << tokens);
        CHECK(same);
      }
    }
}
