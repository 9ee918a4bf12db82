// The reference's own edge cases, on inputs small enough to check by hand: scores are chosen
// through one-dimensional keys, so that expected outputs are written down, not recomputed.
#include "attn/ref.h"

#include "property/attn/case.h"
#include "test.h"

using namespace mc;
using namespace mc::attn;
using namespace mc::attn::cases;

namespace {

/// One KV head of 16 dims; block j of 16 tokens has keys (value[j], 0, ...) and V = (j, token, 0, ...).
struct Line {
  ExtentLayout layout = layout_of(1, 16, Dtype::f32, 16);
  Rng rng{1};
  Rows rows;
  Pages pages;
  int64_t tokens;

  explicit Line(const std::vector<float>& block_values)
      : rows(random_rows(layout, static_cast<int64_t>(block_values.size()) * 16, Data::zeros, rng)),
        pages(layout, static_cast<int64_t>(block_values.size()) * 16, true, rng),
        tokens(static_cast<int64_t>(block_values.size()) * 16) {
    for (int64_t t = 0; t < tokens; ++t) {
      float* v = rows.v.data() + t * 16;
      std::fill_n(v, 16, 0.0f);
      rows.k[static_cast<size_t>(t) * 16] = block_values[static_cast<size_t>(t / 16)];
      v[0] = static_cast<float>(t / 16);
      v[1] = static_cast<float>(t);
    }
    pages.append(rows, 0, tokens);
  }

  std::vector<int32_t> select(int64_t position, int32_t top_k, float q0) {
    std::vector<float> q(16, 0.0f);
    q[0] = q0;
    std::vector<int32_t> list(static_cast<size_t>(top_k - 1), -9);
    ref_select({.layout = layout,
                .mode = {ModeKind::moba, 16, top_k},
                .q_heads = 1,
                .rows = 1,
                .q_begin = position,
                .q = q.data(),
                .kv = pages.view(tokens)},
               list.data());
    return list;
  }

  std::vector<float> attend(int64_t position, Mode mode, float q0, int64_t kv_len) {
    std::vector<float> q(16, 0.0f), out(16, 99.0f);
    q[0] = q0;
    ref_prefill({.layout = layout,
                 .mode = mode,
                 .q_heads = 1,
                 .rows = 1,
                 .q_begin = position,
                 .q = q.data(),
                 .kv = pages.view(kv_len),
                 .out = out.data()});
    return out;
  }
};

using List = std::vector<int32_t>;

}  // namespace

TEST_CASE("attn/ref: the gate takes the largest scores among blocks that ended, never the row's own") {
  Line line({5, 1, 4, 2, 9, 3});
  CHECK(line.select(4 * 16, 3, 1) == List{0, 2});       // block 4 scores 9 but is the row's own
  CHECK(line.select(4 * 16 + 15, 3, 1) == List{0, 2});  // to its last token
  CHECK(line.select(5 * 16, 3, 1) == List{0, 4});       // one token later it is history
  CHECK(line.select(5 * 16, 3, -1) == List{1, 3});
}

TEST_CASE("attn/ref: equal scores go to the more recent blocks") {
  Line line({1, 1, 1, 1, 1, 1});
  CHECK(line.select(5 * 16, 3, 1) == List{3, 4});
  CHECK(line.select(5 * 16 + 3, 4, 0) == List{2, 3, 4});
}

TEST_CASE("attn/ref: NaN scores order as -inf, and as many blocks as there must be are still chosen") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Line line({nan, 1, nan, -5, 1, 1});
  CHECK(line.select(4 * 16, 3, 1) == List{1, 3});
  CHECK(line.select(4 * 16, 4, 1) == List{1, 2, 3});
}

TEST_CASE("attn/ref: rows below top_k blocks are dense and choose nothing") {
  Line line({1, 2, 3, 4});
  CHECK(line.select(3 * 16 - 1, 3, 1) == List{-1, -1});
  CHECK(line.select(3 * 16, 3, 1) == List{1, 2});
  const std::vector<float> out = line.attend(3 * 16 - 1, {ModeKind::moba, 16, 3}, 0, 64);
  CHECK(out[1] == doctest::Approx((3 * 16 - 1) / 2.0));  // the mean of all positions before it
}

TEST_CASE("attn/ref: top_k of one is the row's own block, up to the row") {
  Line line({1, 2, 3, 4});
  CHECK(line.attend(2 * 16, {ModeKind::moba, 16, 1}, 1, 64)[1] == 32);
  CHECK(line.attend(2 * 16 + 4, {ModeKind::moba, 16, 1}, 1, 64)[1] == 34);
}

TEST_CASE("attn/ref: with a cached prefix rows keep their positions, and negative positions see nothing") {
  Line line({0, 0, 0, 0});
  CHECK(line.attend(20, {}, 0, 64)[1] == 10);
  CHECK(line.attend(63, {}, 0, 64)[1] == 31.5f);
  CHECK(line.attend(-1, {}, 0, 64)[1] == 0);
  CHECK(line.attend(100, {}, 0, 11)[1] == 5);  // beyond the KV: all of it
}

TEST_CASE("attn/ref: each query head selects for itself") {
  Line line({5, 1, 4, 2, 9, 3});
  std::vector<float> q(32, 0.0f);
  q[0] = 1;
  q[16] = -1;
  List lists(4, -9);
  ref_select({.layout = line.layout,
              .mode = {ModeKind::moba, 16, 3},
              .q_heads = 2,
              .rows = 1,
              .q_begin = 5 * 16,
              .q = q.data(),
              .kv = line.pages.view(96)},
             lists.data());
  CHECK(lists == List{0, 4, 1, 3});
}
