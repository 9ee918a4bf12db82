// Attention over pages of fp8_e4m3 is attention over the bf16 values that they stand for.
#include "attn/attn.h"
#include "attn/kernels.h"
#include "property/attn/case.h"
#include "test.h"

using namespace mc;
using namespace mc::attn;
using namespace mc::attn::cases;

namespace {

/// The leaves of a fast variant.
const Kernels& leaves_of(const std::string& variant) {
  return variant == "avx2" ? kAvx2Kernels : variant == "avx512" ? kAvx512Kernels : kAvx512Bf16Kernels;
}

/// The values of pages of fp8_e4m3, as rows of floats.
Rows values_of(const ExtentLayout& layout, const KvView& kv) {
  const size_t dim = layout.head_dim, row = layout.kv_heads * dim;
  Rows out{std::vector<float>(static_cast<size_t>(kv.kv_len) * row), {}};
  out.v = out.k;
  for (int64_t t = 0; t < kv.kv_len; ++t)
    for (uint32_t head = 0; head < layout.kv_heads; ++head) {
      const int kv_head = static_cast<int>(head);
      float scales[2];
      std::memcpy(scales, head_record(layout, kv, t / layout.block_tokens, kv_head) + layout.scale_offset(), 8);
      const std::byte* k = k_row(layout, kv, t, kv_head);
      const std::byte* v = v_row(layout, kv, t, kv_head);
      for (size_t i = 0; i < dim; ++i) {
        out.k[static_cast<size_t>(t) * row + head * dim + i] = e4m3_to_f32(static_cast<uint8_t>(k[i])) * scales[0];
        out.v[static_cast<size_t>(t) * row + head * dim + i] = e4m3_to_f32(static_cast<uint8_t>(v[i])) * scales[1];
      }
    }
  return out;
}

}  // namespace

TEST_CASE("attn/e4m3: every variant widens every code under every scale to the bits of its value") {
  std::vector<uint8_t> codes(2 * 256 + 13);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
  for (const std::string& name : fast_variants())
    for (int exponent = kE4m3ExponentMin; exponent <= kE4m3ExponentMax; ++exponent)
      for (const size_t count : {codes.size(), size_t{1}, size_t{40}, size_t{256}}) {
        std::vector<uint16_t> out(codes.size() + 1, 0x1234);
        leaves_of(name).widen_e4m3(codes.data(), static_cast<int>(count), exponent, nullptr, out.data());
        INFO(name << " 2^" << exponent << ", " << count << " codes");
        size_t wrong = 0;
        for (size_t i = 0; i < count; ++i) wrong += out[i] != f32_to_bf16(e4m3_to_f32(codes[i]) * e4m3_scale(exponent));
        CHECK(wrong == 0);
        CHECK(out[count] == 0x1234);
      }
}

TEST_CASE("attn/e4m3: prefill and decode give the bits that bf16 pages of the stored values give") {
  for (const std::string& name : fast_variants())
    for (const Mode mode : {Mode{}, Mode{ModeKind::moba, 64, 3}, Mode{.kind = ModeKind::window, .window = 100}})
      for (const uint32_t head_dim : {40u, 64u, 128u}) {
        Rng rng(test::seed() + 31);
        const Case narrow = {layout_of(2, head_dim, Dtype::f8_e4m3), mode, 6, 700, 0, 700, Data::one_key};
        Case wide = narrow;
        wide.layout.dtype = Dtype::bf16;
        INFO(name << ": " << narrow.name());
        Pages codes(narrow.layout, 700, true, rng), values(wide.layout, 700, true, rng);
        codes.append(random_rows(narrow.layout, 700, narrow.data, rng), 0, 700);
        values.append(values_of(narrow.layout, codes.view(700)), 0, 700);
        const std::vector<float> q = random_queries(narrow, rng);
        Parallel pool(2);
        auto attention = Attention::open(pool, name);
        REQUIRE_OK(attention);
        std::vector<float> a(out_floats(narrow)), b(a);
        REQUIRE_OK(attention->prefill(args_of(narrow, q, codes.view(700), a.data())));
        REQUIRE_OK(attention->prefill(args_of(wide, q, values.view(700), b.data())));
        CHECK(same_bits(a, b));
        const KvView both[] = {codes.view(700), values.view(700)};
        std::vector<float> rows[2];
        for (int i = 0; i < 2; ++i) {
          rows[i].resize(6 * head_dim);
          REQUIRE_OK(attention->decode({.layout = i == 0 ? narrow.layout : wide.layout,
                                        .q_heads = 6,
                                        .sequences = 1,
                                        .modes = &mode,
                                        .q = q.data(),
                                        .kv = both + i,
                                        .out = rows[i].data()}));
        }
        CHECK(same_bits(rows[0], rows[1]));
      }
}
