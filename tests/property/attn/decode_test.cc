// Every variant's decode against the reference, against its own prefill, and its invariances.
#include "attn/attn.h"
#include "count.h"
#include "property/attn/case.h"
#include "test.h"

using namespace mc;
using namespace mc::attn;
using namespace mc::attn::cases;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// A batch of sequences of different lengths and modes over one layout.
struct Batch {
  ExtentLayout layout;
  int32_t q_heads;
  std::vector<Rows> rows;
  std::vector<Pages> pages;
  std::vector<KvView> kv;
  std::vector<Mode> modes;
  std::vector<float> q;

  Batch(const ExtentLayout& shape, int32_t heads, const std::vector<std::pair<int64_t, Mode>>& sequences, Rng& rng)
      : layout(shape), q_heads(heads) {
    for (const auto& [tokens, mode] : sequences) {
      rows.push_back(random_rows(layout, tokens, Data::normal, rng));
      pages.emplace_back(layout, tokens, true, rng);
      pages.back().append(rows.back(), 0, tokens);
      kv.push_back(pages.back().view(tokens));
      modes.push_back(mode);
    }
    q.resize(sequences.size() * row_floats());
    for (float& x : q) x = bell(rng);
  }

  size_t row_floats() const { return static_cast<size_t>(q_heads) * layout.head_dim; }
  DecodeArgs args(float* out) const {
    return {.layout = layout,
            .q_heads = q_heads,
            .sequences = static_cast<int64_t>(kv.size()),
            .modes = modes.data(),
            .q = q.data(),
            .kv = kv.data(),
            .out = out};
  }
  Case case_of(size_t sequence) const {
    return {layout, modes[sequence], q_heads, kv[sequence].kv_len, kv[sequence].kv_len - 1, 1, Data::normal};
  }
};

const Mode kMoba64 = {ModeKind::moba, 64, 3};
const Mode kMoba128 = {ModeKind::moba, 128, 2};
Mode window(int32_t tokens) {
  return {.kind = ModeKind::window, .window = tokens};
}
const std::vector<std::pair<int64_t, Mode>> kSequences = {{1, {}},
                                                          {63, {}},
                                                          {64, kMoba64},
                                                          {65, {}},
                                                          {0, {}},
                                                          {191, kMoba64},
                                                          {192, kMoba64},
                                                          {193, kMoba64},
                                                          {1023, {}},
                                                          {1024, {}},
                                                          {1025, {}},
                                                          {700, kMoba64},
                                                          {700, kMoba128},
                                                          {1500, kMoba64},
                                                          {2100, kMoba128},
                                                          {1300, {ModeKind::moba, 64, 1}},
                                                          {900, {ModeKind::moba, 64, 100}},
                                                          {1, window(1)},
                                                          {64, window(1)},
                                                          {700, window(64)},
                                                          {700, window(67)},
                                                          {1025, window(17)},
                                                          {1100, window(1024)},
                                                          {2100, window(900)},
                                                          {2100, window(4096)}};

}  // namespace

TEST_CASE("attn/decode: every variant agrees with full attention of the reference") {
  for (const std::string& name : fast_variants())
    for (Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f8_e4m3})
      for (uint32_t head_dim : {40u, 64u, 96u, 128u}) {
        Rng rng(test::seed() + 21);
        Batch batch(layout_of(2, head_dim, dtype), head_dim == 64 ? 14 : 4,
                    {{1, {}}, {17, {}}, {64, {}}, {65, {}}, {1023, {}}, {1500, {}}, {0, {}}}, rng);
        Parallel pool(2);
        auto attention = Attention::open(pool, name);
        REQUIRE_OK(attention);
        std::vector<float> out(batch.q.size(), kNan), expected(out);
        REQUIRE_OK(attention->decode(batch.args(out.data())));
        ref_decode(batch.args(expected.data()));
        double worst = 0;
        for (size_t sequence = 0; sequence < batch.kv.size(); ++sequence) {
          const Bound limit(batch.case_of(sequence), batch.rows[sequence], name);
          const size_t at = sequence * batch.row_floats();
          worst = std::max(worst, error_share(limit, batch.q.data() + at, out.data() + at, expected.data() + at,
                                              batch.row_floats(), head_dim));
        }
        INFO(name << " " << to_string(dtype) << " d" << head_dim);
        CHECK(worst <= 1);
      }
}

TEST_CASE("attn/decode: a row attends to what prefill of the same row attends to, in every mode") {
  // Both choose blocks by the same leaves, so the choice is equal; the sums differ in order only.
  for (const std::string& name : fast_variants())
    for (Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f8_e4m3}) {
      Rng rng(test::seed() + 22);
      // Pages that are moba_blocks, and blocks of several pages: centroids are read, or made of sums.
      Batch batch(layout_of(2, 64, dtype, dtype == Dtype::f32 ? 64 : 16), 8, kSequences, rng);
      Parallel pool(2);
      auto attention = Attention::open(pool, name);
      REQUIRE_OK(attention);
      std::vector<float> out(batch.q.size(), kNan);
      REQUIRE_OK(attention->decode(batch.args(out.data())));
      for (size_t sequence = 0; sequence < batch.kv.size(); ++sequence) {
        std::vector<float> row(batch.row_floats(), kNan);
        const Case c = batch.case_of(sequence);
        const std::vector<float> q(batch.q.begin() + static_cast<ptrdiff_t>(sequence * row.size()),
                                   batch.q.begin() + static_cast<ptrdiff_t>((sequence + 1) * row.size()));
        REQUIRE_OK(attention->prefill(args_of(c, q, batch.kv[sequence], row.data())));
        INFO(name << ": " << c.name());
        CHECK(error_share(Bound(c, batch.rows[sequence], name), q.data(), out.data() + sequence * row.size(),
                          row.data(), row.size(), 64) <= 1);
      }
    }
}

TEST_CASE("attn/decode: a context of more than 65536 tokens, in longer cuts, is attended to whole") {
  const std::vector<uint32_t> head_dims = test::is_full() ? std::vector{40u, 64u} : std::vector{40u};
  for (const std::string& name : fast_variants())
    for (uint32_t head_dim : head_dims) {
      Rng rng(test::seed() + 26);
      // The choice of the second covers the cuts' ends: 510 of its 516 blocks, read as 34 cuts of 2048 tokens.
      const Mode most = {ModeKind::moba, 128, 511};
      Batch batch(layout_of(1, head_dim, Dtype::bf16, 128), 2, {{66'001, {}}, {66'100, most}}, rng);
      Parallel pool(2);
      auto attention = Attention::open(pool, name);
      REQUIRE_OK(attention);
      std::vector<float> out(batch.q.size(), kNan), expected(out);
      REQUIRE_OK(attention->decode(batch.args(out.data())));
      DecodeArgs one = batch.args(expected.data());
      one.sequences = 1;
      ref_decode(one);
      const size_t row = batch.row_floats();
      const std::vector<float> q(batch.q.begin() + static_cast<ptrdiff_t>(row), batch.q.end());
      REQUIRE_OK(attention->prefill(args_of(batch.case_of(1), q, batch.kv[1], expected.data() + row)));
      for (size_t sequence : {0u, 1u}) {
        INFO(name << ": " << batch.case_of(sequence).name());
        const Bound limit(batch.case_of(sequence), batch.rows[sequence], name);
        const size_t at = sequence * row;
        CHECK(error_share(limit, batch.q.data() + at, out.data() + at, expected.data() + at, row, head_dim) <= 1);
      }
    }
}

TEST_CASE("attn/decode: a window attends to what the reference attends to, and to all where it reaches the first key") {
  for (const std::string& name : fast_variants())
    for (Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f8_e4m3})
      for (uint32_t block_tokens : {16u, 64u}) {
        Rng rng(test::seed() + 25);
        Batch batch(layout_of(2, 64, dtype, block_tokens), 4,
                    {{1, window(1)},
                     {79, window(3)},
                     {80, window(2)},
                     {81, window(65)},
                     {700, window(64)},
                     {1025, window(17)},
                     {1100, window(1024)},
                     {1300, window(1300)}},
                    rng);
        Parallel pool(2);
        auto attention = Attention::open(pool, name);
        REQUIRE_OK(attention);
        std::vector<float> out(batch.q.size(), kNan), expected(out), full(out);
        REQUIRE_OK(attention->decode(batch.args(out.data())));
        ref_decode(batch.args(expected.data()));
        for (size_t sequence = 0; sequence < batch.kv.size(); ++sequence) {
          const Bound limit(batch.case_of(sequence), batch.rows[sequence], name);
          const size_t at = sequence * batch.row_floats();
          INFO(name << ": " << batch.case_of(sequence).name());
          CHECK(error_share(limit, batch.q.data() + at, out.data() + at, expected.data() + at, batch.row_floats(),
                            64) <= 1);
        }
        batch.modes.assign(batch.modes.size(), Mode{});
        REQUIRE_OK(attention->decode(batch.args(full.data())));
        const size_t last = (batch.kv.size() - 1) * batch.row_floats();
        CHECK(std::memcmp(out.data() + last, full.data() + last, batch.row_floats() * sizeof(float)) == 0);
      }
}

TEST_CASE("attn/decode: neither the batch nor its order nor the threads change a row's bits") {
  for (const std::string& name : fast_variants())
    for (Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f8_e4m3}) {
      Rng rng(test::seed() + 23);
      Batch batch(layout_of(2, 64, dtype), 6, kSequences, rng);
      Parallel one(1), three(3);
      auto alone = Attention::open(one, name);
      auto together = Attention::open(three, name);
      REQUIRE_OK(alone);
      REQUIRE_OK(together);
      std::vector<float> out(batch.q.size(), kNan);
      REQUIRE_OK(together->decode(batch.args(out.data())));
      const size_t row = batch.row_floats();
      for (size_t sequence = batch.kv.size(); sequence-- > 0;) {
        DecodeArgs args = batch.args(nullptr);
        std::vector<float> single(row, kNan);
        args.sequences = 1;
        args.modes += sequence;
        args.kv += sequence;
        args.q += sequence * row;
        args.out = single.data();
        REQUIRE_OK(alone->decode(args));
        INFO(name << ": " << batch.case_of(sequence).name());
        CHECK(std::memcmp(single.data(), out.data() + sequence * row, row * 4) == 0);
      }
    }
}

TEST_CASE("attn/decode: states of two halves of a sequence merge to the whole") {
  for (const std::string& name : fast_variants())
    for (Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f8_e4m3}) {
      Rng rng(test::seed() + 24);
      const int64_t tokens = 1400, half = 640;
      Batch batch(layout_of(2, 64, dtype), 4, {{tokens, {}}}, rng);
      Parallel pool(2);
      auto attention = Attention::open(pool, name);
      REQUIRE_OK(attention);
      std::vector<float> whole(batch.row_floats()), merged(whole.size());
      REQUIRE_OK(attention->decode(batch.args(whole.data())));
      KvView halves[2] = {batch.kv[0], batch.kv[0]};
      halves[0].kv_len = half;
      halves[1].pages += half / 64;
      halves[1].kv_len = tokens - half;
      std::vector<float> o[2], m[2], d[2];
      for (int part = 0; part < 2; ++part) {
        o[part].assign(whole.size(), kNan);
        m[part].assign(4, kNan);
        d[part].assign(4, kNan);
        DecodeArgs args = batch.args(nullptr);
        args.kv = &halves[part];
        args.state = {o[part].data(), m[part].data(), d[part].data()};
        REQUIRE_OK(attention->decode(args));
      }
      const StateView into{o[0].data(), m[0].data(), d[0].data()};
      merge(into, {o[1].data(), m[1].data(), d[1].data()}, 4, 64);
      normalise(into, 4, 64, merged.data());
      CHECK(error_share(Bound(batch.case_of(0), batch.rows[0], name), batch.q.data(), merged.data(), whole.data(),
                        whole.size(), 64) <= 1);
    }
}
