// Every variant's prefill against the reference, and the equalities and invariances that attn/args.h states.
#include "attn/attn.h"
#include "count.h"
#include "property/attn/case.h"
#include "test.h"

namespace prefill_test {

using namespace mc;
using namespace mc::attn;
using namespace mc::attn::cases;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Attention open(Parallel& pool, const std::string& name) {
  auto attention = Attention::open(pool, name);
  REQUIRE_OK(attention);
  return std::move(*attention);
}

/// Rows worth a look at the reference's price: both ends, block edges, and a few at random.
std::vector<int64_t> sample_rows(const Case& c, Rng& rng) {
  std::vector<int64_t> rows;
  for (int64_t row : {int64_t{0}, int64_t{1}, c.rows / 2, c.rows - 2, c.rows - 1}) rows.push_back(row);
  const int64_t edge = c.mode.kind == ModeKind::window ? c.mode.window : 64;
  const int64_t dense = dense_below(c.mode) == kDenseForEver ? edge : dense_below(c.mode);
  for (int64_t position : {dense - 1, dense, dense + c.mode.block - 1, dense + c.mode.block})
    rows.push_back(position - c.q_begin);
  for (int i = 0; i < 3; ++i) rows.push_back(static_cast<int64_t>(rng.below(static_cast<uint64_t>(c.rows))));
  std::erase_if(rows, [&](int64_t row) { return row < 0 || row >= c.rows; });
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

/// Fills the scratch of an Attention with NaN by attending to NaN, so that reading a stale byte shows.
void poison(Attention& attention, const Case& c) {
  Rng rng(1);
  const int64_t tokens = 700;
  Case bad = c;
  bad.kv_len = bad.rows = tokens;
  bad.q_begin = 0;
  Pages pages(c.layout, tokens, false, rng);
  for (int64_t page = 0; page * c.layout.block_tokens < tokens; ++page)
    std::memset(pages.layer(page), 0xff, c.layout.layer_bytes());
  std::vector<float> q(out_floats(bad), kNan), out(out_floats(bad));
  REQUIRE_OK(attention.prefill(args_of(bad, q, pages.view(tokens), out.data())));
}

struct Worst {
  double error = 0;  // as a share of the bound
  std::string where;
};

/// Compares sampled rows of `out` with the reference under the selection that was used.
void compare(const std::string& name, const Case& c, const Rows& rows, const std::vector<float>& q, const KvView& kv,
             const std::vector<float>& out, const std::vector<int32_t>& selection, Rng& rng, Worst& worst) {
  const Bound limit(c, rows, name);
  const size_t row_floats = static_cast<size_t>(c.q_heads) * c.layout.head_dim;
  const size_t list = static_cast<size_t>(c.q_heads) * static_cast<size_t>(std::max(c.mode.top_k - 1, 0));
  for (int64_t row : sample_rows(c, rng)) {
    const size_t at = static_cast<size_t>(row);
    std::vector<float> expected(row_floats);
    PrefillArgs one = args_of(c, q, kv, expected.data());
    one.rows = 1;
    one.q_begin = c.q_begin + row;
    one.q += at * row_floats;
    if (list > 0) one.selection_in = selection.data() + at * list;
    ref_prefill(one);
    const double error = error_share(limit, q.data() + at * row_floats, out.data() + at * row_floats, expected.data(),
                                     row_floats, c.layout.head_dim);
    if (error >= worst.error) worst = {error, c.name() + " row " + std::to_string(row)};
  }
}

/// Every list: ascending, as many blocks as there must be, none at or after the row's own, and none
/// outside that scores better than one inside by more than rounding.
void check_selection(const Case& c, const std::vector<float>& q, const KvView& kv,
                     const std::vector<int32_t>& selection, Rng& rng) {
  const int64_t history = std::max(c.mode.top_k - 1, 0);
  PrefillArgs args = args_of(c, q, kv, nullptr);
  for (int64_t row : sample_rows(c, rng)) {
    const int64_t position = c.q_begin + row;
    for (int32_t head = 0; head < c.q_heads; ++head) {
      const int32_t* list = selection.data() + (row * c.q_heads + head) * history;
      const int64_t count = std::find(list, list + history, -1) - list;
      if (position < dense_below(c.mode)) {
        CHECK(count == 0);
        continue;
      }
      std::vector<double> scores(static_cast<size_t>(position / c.mode.block));
      const int64_t candidates = ref_scores(args, row, head, scores.data());
      REQUIRE(count == std::min(history, candidates));
      double largest = 0, worst_in = std::numeric_limits<double>::infinity(), best_out = -worst_in;
      for (int64_t i = 0; i < count; ++i) {
        REQUIRE(list[i] < candidates);
        if (i > 0) REQUIRE(list[i - 1] < list[i]);
      }
      for (int64_t block = 0; block < candidates; ++block) {
        const double s = scores[static_cast<size_t>(block)];
        largest = std::max(largest, std::abs(s));
        const bool inside = std::find(list, list + count, block) != list + count;
        inside ? worst_in = std::min(worst_in, s) : best_out = std::max(best_out, s);
      }
      // Scores cancel, so their rounding follows the terms, not the sum: 2^-9 max |s| is ample for
      // bf16; head_dim 2^-24 of the norms would do.
      INFO(c.name() << " row " << row << " head " << head);
      CHECK(worst_in >= best_out - std::exp2(-9) * largest);
    }
  }
}

Case random_case(Rng& rng) {
  const auto pick = [&](auto... values) {
    const std::common_type_t<decltype(values)...> list[] = {values...};
    return list[rng.below(sizeof...(values))];
  };
  Case c = {};
  const uint32_t kv_heads = pick(1u, 2u);
  const int32_t group = pick(1, 2, 4, 7);
  c.layout = layout_of(kv_heads, pick(64u, 64u, 96u, 128u, 40u), pick(Dtype::f32, Dtype::bf16, Dtype::f8_e4m3),
                       pick(16u, 64u, 64u, 128u));
  c.q_heads = static_cast<int32_t>(kv_heads) * group;
  if (rng.chance(0.6)) {
    const int32_t block = std::max(pick(64, 64, 128, 192), static_cast<int32_t>(c.layout.block_tokens));
    c.mode = {ModeKind::moba,
              block / static_cast<int32_t>(c.layout.block_tokens) * static_cast<int32_t>(c.layout.block_tokens),
              pick(1, 2, 3, 4)};
  } else if (rng.chance(0.5)) {
    c.mode = {.kind = ModeKind::window, .window = pick(1, 2, 17, 64, 65, 255, 256, 257, 400)};
  }
  const int64_t edge = c.mode.kind == ModeKind::moba ? dense_below(c.mode) : 256;
  c.kv_len = pick(int64_t{1}, int64_t{63}, int64_t{64}, int64_t{65}, edge - 1, edge, edge + 1, edge + 63, 2 * edge + 1,
                  3 * edge, int64_t{700}, int64_t{1023}, int64_t{1300});
  c.rows = pick(c.kv_len, std::min<int64_t>(c.kv_len, 64), int64_t{1}, std::min<int64_t>(c.kv_len, 130));
  c.q_begin = c.kv_len - c.rows;
  c.data = pick(Data::normal, Data::normal, Data::huge, Data::constant_keys, Data::zeros, Data::one_key);
  return c;
}

/// One random input under full attention, and under other modes.
class FullAndOther {
 public:
  FullAndOther(const std::string& variant, const Case& c, uint64_t seed)
      : pool_(2), attention_(open(pool_, variant)), case_(c), rng_(seed), pages_(c.layout, c.kv_len, true, rng_) {
    pages_.append(random_rows(c.layout, c.kv_len, c.data, rng_), 0, c.kv_len);
    q_ = random_queries(c, rng_);
    full = with(c.mode);
  }

  std::vector<float> full;

  std::vector<float> with(const Mode& mode) const {
    Case c = case_;
    c.mode = mode;
    std::vector<float> out(out_floats(c), kNan);
    REQUIRE_OK(attention_.prefill(args_of(c, q_, pages_.view(c.kv_len), out.data())));
    return out;
  }

 private:
  Parallel pool_;
  mutable Attention attention_;
  Case case_;
  Rng rng_;
  mutable Pages pages_;
  std::vector<float> q_;
};

}  // namespace

TEST_CASE("attn/prefill: every variant agrees with the reference on edge-biased inputs") {
  for (const std::string& name : fast_variants()) {
    Parallel pool(2);
    Attention attention = open(pool, name);
    Rng rng(test::seed() + 11);
    Worst worst;
    for (int n = 0; n < test::count(40, 400); ++n) {
      const Case c = random_case(rng);
      INFO(name << ": " << c.name());
      const Rows rows = random_rows(c.layout, c.kv_len, c.data, rng);
      Pages pages(c.layout, c.kv_len, true, rng);
      pages.append(rows, 0, c.kv_len);
      const std::vector<float> q = random_queries(c, rng);
      std::vector<float> out(out_floats(c), kNan);
      std::vector<int32_t> selection(list_values(c), -7);
      if (n % 4 == 0) poison(attention, c);
      PrefillArgs args = args_of(c, q, pages.view(c.kv_len), out.data());
      if (!selection.empty()) args.selection_out = selection.data();
      REQUIRE_OK(attention.prefill(args));
      if (c.mode.kind == ModeKind::moba && c.mode.top_k > 1)
        check_selection(c, q, pages.view(c.kv_len), selection, rng);
      compare(name, c, rows, q, pages.view(c.kv_len), out, selection, rng, worst);
    }
    INFO(name << ": " << worst.error << " of the bound at " << worst.where);
    CHECK(worst.error <= 1);
    CHECK(worst.error > 0);
  }
}

TEST_CASE("attn/prefill: a forced selection is what rows attend to") {
  for (const std::string& name : fast_variants()) {
    Parallel pool(2);
    Attention attention = open(pool, name);
    Rng rng(test::seed() + 12);
    Worst worst;
    for (Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f8_e4m3}) {
      const Case c = {layout_of(2, 64, dtype), {ModeKind::moba, 64, 3}, 4, 640, 0, 640, Data::normal};
      const Rows rows = random_rows(c.layout, c.kv_len, c.data, rng);
      Pages pages(c.layout, c.kv_len, true, rng);
      pages.append(rows, 0, c.kv_len);
      const std::vector<float> q = random_queries(c, rng);
      // Adversarial routing: all rows to block 0, and every row to random blocks of its past.
      for (bool all_first : {true, false}) {
        std::vector<int32_t> selection(list_values(c), -1), used(list_values(c));
        for (int64_t row = dense_below(c.mode); row < c.rows; ++row)
          for (int32_t head = 0; head < c.q_heads; ++head) {
            int32_t* list = selection.data() + (row * c.q_heads + head) * 2;
            const auto past = static_cast<uint64_t>(row / 64);
            list[0] = all_first ? 0 : static_cast<int32_t>(rng.below(past));
            const auto other = static_cast<int32_t>(rng.below(past));
            if (!all_first && other != list[0]) list[1] = other;
            if (list[1] >= 0 && list[1] < list[0]) std::swap(list[0], list[1]);
          }
        std::vector<float> out(out_floats(c), kNan);
        PrefillArgs args = args_of(c, q, pages.view(c.kv_len), out.data());
        args.selection_in = selection.data();
        args.selection_out = used.data();
        REQUIRE_OK(attention.prefill(args));
        CHECK(used == selection);
        compare(name, c, rows, q, pages.view(c.kv_len), out, selection, rng, worst);
      }
    }
    INFO(name << ": " << worst.error << " of the bound at " << worst.where);
    CHECK(worst.error <= 1);
  }
}

TEST_CASE("attn/prefill: uneven query and key lengths, with negative positions giving zero and -inf") {
  const std::pair<int64_t, int64_t> lengths[] = {{1, 147},   {113, 203},   {128, 217},   {108, 256},  {256, 512},
                                                 {512, 256}, {1023, 1024}, {1024, 1023}, {2048, 2048}};
  for (const std::string& name : fast_variants()) {
    Parallel pool(2);
    Attention attention = open(pool, name);
    Rng rng(test::seed() + 13);
    Worst worst;
    for (const auto& [q_len, kv_len] : lengths) {
      const Case c = {layout_of(1, 64, Dtype::bf16), {}, 2, kv_len, kv_len - q_len, q_len, Data::normal};
      const Rows rows = random_rows(c.layout, c.kv_len, c.data, rng);
      Pages pages(c.layout, c.kv_len, true, rng);
      pages.append(rows, 0, c.kv_len);
      const std::vector<float> q = random_queries(c, rng);
      std::vector<float> out(out_floats(c), kNan), o(out_floats(c), kNan), m(static_cast<size_t>(q_len * 2), kNan),
          d(m);
      PrefillArgs args = args_of(c, q, pages.view(c.kv_len), out.data());
      args.state = {o.data(), m.data(), d.data()};
      REQUIRE_OK(attention.prefill(args));
      compare(name, c, rows, q, pages.view(c.kv_len), out, {}, rng, worst);
      for (int64_t row = 0; row < -c.q_begin; ++row) {
        CHECK(out[static_cast<size_t>(row * 2 * 64)] == 0);
        CHECK(lse(m[static_cast<size_t>(row * 2)], d[static_cast<size_t>(row * 2)]) ==
              -std::numeric_limits<float>::infinity());
      }
    }
    INFO(name << ": " << worst.error << " of the bound at " << worst.where);
    CHECK(worst.error <= 1);
  }
}

TEST_CASE("attn/prefill: chunks, resuming, page order and threads do not change a bit") {
  for (Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f8_e4m3}) {
    Rng rng(test::seed() + 14);
    const Case any_mode = {layout_of(2, 64, dtype), {}, 6, 1000, 0, 1000, Data::normal};
    const Rows rows = random_rows(any_mode.layout, any_mode.kv_len, any_mode.data, rng);
    const std::vector<float> q = random_queries(any_mode, rng);
    for (const std::string& name : fast_variants())
      for (Mode mode : {Mode{}, Mode{ModeKind::moba, 64, 3}, Mode{ModeKind::moba, 128, 2}, Mode{ModeKind::moba, 192, 2},
                        Mode{.kind = ModeKind::window, .window = 100}, Mode{.kind = ModeKind::window, .window = 300}}) {
        Case c = any_mode;
        c.mode = mode;
        INFO(name << ": " << c.name());
        const size_t row_floats = static_cast<size_t>(c.q_heads) * c.layout.head_dim;
        Pages straight(c.layout, c.kv_len, false, rng);
        straight.append(rows, 0, c.kv_len);
        Parallel one(1), three(3);
        Attention alone = open(one, name), together = open(three, name);
        std::vector<float> whole(out_floats(c), kNan);
        REQUIRE_OK(alone.prefill(args_of(c, q, straight.view(c.kv_len), whole.data())));
        // Not multiples of anything, and the multiples of 64 that the engine uses.
        constexpr int64_t kChunks[] = {64, 333, 192, 4096};
        for (int64_t chunk : std::span(kChunks).first(test::count(size_t{2}, std::size(kChunks)))) {
          // A later row may give an open page of fp8_e4m3 a larger scale. Chunks of the engine end with pages.
          if (dtype == Dtype::f8_e4m3) chunk = chunk / 64 * 64;
          Pages pages(c.layout, c.kv_len, true, rng);
          std::vector<float> out(out_floats(c), kNan);
          for (int64_t begin = 0; begin < c.rows; begin += chunk) {
            const int64_t end = std::min(begin + chunk, c.rows);
            pages.append(rows, begin, end, &three);
            Case part = c;
            part.q_begin = begin;
            part.rows = end - begin;
            PrefillArgs args = args_of(part, q, pages.view(end), out.data() + static_cast<size_t>(begin) * row_floats);
            args.q += static_cast<size_t>(begin) * row_floats;
            REQUIRE_OK(together.prefill(args));
          }
          INFO("chunk " << chunk);
          CHECK(same_bits(out, whole));
        }
      }
  }
}

TEST_CASE(
    "attn/prefill: top_k over all blocks equals full attention, and rows below top_k blocks always do, bit for bit") {
  for (const std::string& name : fast_variants())
    for (Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f8_e4m3}) {
      INFO(name << ", " << to_string(dtype));
      const FullAndOther run(name, {layout_of(1, 96, dtype), {}, 4, 900, 0, 900, Data::normal}, test::seed() + 15);
      CHECK(same_bits(run.with({ModeKind::moba, 128, 100}), run.full));
      const std::vector<float> out = run.with({ModeKind::moba, 128, 3});
      const size_t dense = 3 * 128 * 4 * 96;
      CHECK(std::memcmp(out.data(), run.full.data(), dense * 4) == 0);
      CHECK_FALSE(same_bits(out, run.full));
    }
}

TEST_CASE(
    "attn/prefill: a window that reaches the first key equals full attention bit for bit, a shorter one does not") {
  for (const std::string& name : fast_variants())
    for (Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f8_e4m3}) {
      INFO(name << ", " << to_string(dtype));
      const FullAndOther run(name, {layout_of(1, 64, dtype), {}, 4, 700, 0, 700, Data::normal}, test::seed() + 17);
      CHECK(same_bits(run.with({.kind = ModeKind::window, .window = 700}), run.full));
      const std::vector<float> out = run.with({.kind = ModeKind::window, .window = 300});
      const size_t row = 4 * 64;
      CHECK(std::memcmp(out.data(), run.full.data(), 300 * row * sizeof(float)) == 0);
      CHECK(std::memcmp(out.data() + 300 * row, run.full.data() + 300 * row, row * sizeof(float)) != 0);
    }
}

TEST_CASE("attn/prefill: states over a prefix and over the chunk merge to attention over both") {
  for (const std::string& name : fast_variants())
    for (Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f8_e4m3}) {
      Rng rng(test::seed() + 16);
      const int64_t prefix = 320;
      const Case c = {layout_of(2, 64, dtype), {}, 4, 512, prefix, 512 - prefix, Data::normal};
      INFO(name << ": " << c.name());
      const Rows rows = random_rows(c.layout, c.kv_len, c.data, rng);
      Pages pages(c.layout, c.kv_len, true, rng);
      pages.append(rows, 0, c.kv_len);
      const std::vector<float> q = random_queries(c, rng);
      Parallel pool(2);
      Attention attention = open(pool, name);
      std::vector<float> whole(out_floats(c), kNan);
      REQUIRE_OK(attention.prefill(args_of(c, q, pages.view(c.kv_len), whole.data())));
      const size_t state_rows = static_cast<size_t>(c.rows * c.q_heads);
      std::vector<float> o[2], m[2], d[2];
      for (int part = 0; part < 2; ++part) {
        o[part].assign(out_floats(c), kNan);
        m[part].assign(state_rows, kNan);
        d[part].assign(state_rows, kNan);
        Case p = c;
        KvView kv = pages.view(part == 0 ? prefix : c.kv_len - prefix);
        if (part == 1) {  // the chunk alone, as a sequence that begins at 0
          kv.pages += prefix / c.layout.block_tokens;
          p.q_begin = 0;
        }
        PrefillArgs args = args_of(p, q, kv, nullptr);
        args.state = {o[part].data(), m[part].data(), d[part].data()};
        REQUIRE_OK(attention.prefill(args));
      }
      const StateView into{o[0].data(), m[0].data(), d[0].data()};
      merge(into, {o[1].data(), m[1].data(), d[1].data()}, static_cast<int64_t>(state_rows), 64);
      std::vector<float> merged(out_floats(c));
      normalise(into, static_cast<int64_t>(state_rows), 64, merged.data());
      CHECK(error_share(Bound(c, rows, name), q.data(), merged.data(), whole.data(), merged.size(), 64) <= 1);
    }
}

}  // namespace prefill_test
