// See attn_case.h. Values come from a counter-based hash: a million tokens of eight heads are two thousand
// million numbers, too many for a generator with a logarithm in it. Uniform with variance 1 serves as well.
#include "attn_case.h"

#include <algorithm>
#include <cmath>

#include "attn/plan.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/rng.h"
#include "base/units.h"

namespace mc::bench {
namespace {

constexpr uint32_t kLayersMax = 256;

/// Uniform in [-sqrt(3), sqrt(3)).
float value_at(uint64_t stream, uint64_t index) {
  uint64_t x = index + stream * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 29)) * 0x94d049bb133111ebu;
  const auto bits = static_cast<int32_t>(x >> 32);
  return static_cast<float>(bits) * (1.7320508f / 2147483648.0f);
}

}  // namespace

Result<std::vector<NamedMode>> read_plans(const std::vector<std::string>& items, uint32_t block_tokens) {
  std::vector<std::string> texts;
  for (const std::string& item : items) {
    const bool parameter = item.find('=') < item.find(':');
    if (parameter && !texts.empty())
      texts.back() += "," + item;
    else
      texts.push_back(item);
  }
  std::vector<NamedMode> plans;
  for (const std::string& text : texts) {
    MC_TRY(asked, attn::parse_plan(text));
    asked.full_last = 0;  // one layer is measured, and it is not the last
    MC_TRY(plan, attn::resolve(asked, std::nullopt, 1, block_tokens));
    std::string name = attn::to_string(plan);
    plans.emplace_back(name.substr(0, name.find(",full_last")), plan.mode);
  }
  return plans;
}

uint32_t AttnShape::walked_layers() const {
  if (!decode) return 1;
  const size_t one = static_cast<size_t>(tokens) * layout.kv_heads * layout.row_bytes() * 2;
  return static_cast<uint32_t>(std::clamp<size_t>((kColdBytes + one - 1) / one, 1, kLayersMax));
}

size_t AttnShape::bytes() const {
  ExtentLayout whole = layout;
  whole.layers = walked_layers();
  const size_t pages = (static_cast<size_t>(tokens) + layout.block_tokens - 1) / layout.block_tokens;
  const size_t rows = decode ? walked_layers() : static_cast<size_t>(chunk_tokens);
  return pages * whole.page_bytes() + 2 * rows * static_cast<size_t>(q_heads) * layout.head_dim * sizeof(float);
}

Result<AttnCase> AttnCase::open(const AttnShape& shape, Parallel& parallel, uint64_t seed) {
  AttnCase made(shape, parallel);
  ExtentLayout& layout = made.shape_.layout;
  layout.layers = shape.walked_layers();
  const int64_t block = layout.block_tokens;
  const int64_t pages = (shape.tokens + block - 1) / block;
  const size_t rows = shape.decode ? layout.layers : static_cast<size_t>(shape.chunk_tokens);
  const size_t row_bytes = rows * static_cast<size_t>(shape.q_heads) * layout.head_dim * sizeof(float);
  MC_TRY(pool, mem::HostBuffer::allocate(static_cast<size_t>(pages) * layout.page_bytes(),
                                         {.name = "attention bench KV", .huge_pages = true, .prefault = &parallel}));
  MC_TRY(q, mem::HostBuffer::allocate(row_bytes, {.name = "attention bench queries", .huge_pages = true}));
  MC_TRY(out, mem::HostBuffer::allocate(row_bytes, {.name = "attention bench results", .huge_pages = true}));
  made.pool_ = std::move(pool);
  made.q_ = std::move(q);
  made.out_ = std::move(out);
  for (int64_t page = 0; page < pages; ++page)
    made.pages_.push_back(made.pool_.data() + static_cast<size_t>(page) * layout.page_bytes());
  Rng rng(seed);
  for (size_t i = made.pages_.size(); i > 1; --i) std::swap(made.pages_[i - 1], made.pages_[rng.below(i)]);
  made.fill_queries(seed);

  const size_t row = layout.kv_heads * layout.head_dim;
  std::vector<std::vector<float>> scratch(static_cast<size_t>(parallel.threads()));
  for (auto& floats : scratch) floats.resize(2 * static_cast<size_t>(block) * row);
  parallel.for_each(pages, [&](int64_t page, int worker) {
    float* k = scratch[static_cast<size_t>(worker)].data();
    float* v = k + static_cast<size_t>(block) * row;
    for (uint32_t layer = 0; layer < layout.layers; ++layer) {
      const uint64_t first =
          (static_cast<uint64_t>(layer) * static_cast<uint64_t>(pages) + static_cast<uint64_t>(page)) *
          static_cast<uint64_t>(block) * row;
      for (size_t i = 0; i < static_cast<size_t>(block) * row; ++i) k[i] = value_at(2 * seed, first + i);
      for (size_t i = 0; i < static_cast<size_t>(block) * row; ++i) v[i] = value_at(2 * seed + 1, first + i);
      attn::append({.layout = layout,
                    .target = {made.pages_.data(), layout.layer_offset(layer)},
                    .position = page * block,
                    .tokens = std::min(block, shape.tokens - page * block),
                    .k = k,
                    .v = v});
    }
  });
  return made;
}

void AttnCase::fill_queries(uint64_t seed) {
  const size_t dim = shape_.layout.head_dim, heads = static_cast<size_t>(shape_.q_heads);
  const size_t group = heads / shape_.layout.kv_heads;
  const size_t rows = q_.size() / (heads * dim * sizeof(float));
  float* q = q_.as<float>();
  for (size_t row = 0; row < rows; ++row)
    for (size_t head = 0; head < heads; ++head)
      for (size_t i = 0; i < dim; ++i) {
        const size_t at = (row * heads + head) * dim + i;
        const size_t shared = (row / kCoherentTokens * heads + head / group) * dim + i;
        const float own = value_at(3 * seed + 5, at);
        q[at] = shape_.coherent ? 0.1f * own + 0.995f * value_at(3 * seed + 7, shared) : own;
      }
}

attn::KvView AttnCase::view(uint32_t layer, int64_t kv_len) const {
  return {pages_.data(), kv_len, shape_.layout.layer_offset(layer)};
}

/// Complete for the last token; empty when the gate is to read pages.
const attn::CentroidIndex& AttnCase::centroids(const attn::Mode& mode) {
  attn::CentroidIndex& index = centroids_.try_emplace(mode.block, shape_.layout).first->second;
  const attn::Plan plan{.mode = mode, .full_last = 0, .layers = static_cast<int32_t>(shape_.layout.layers)};
  if (shape_.decode && shape_.gathered) index.extend(plan, pages_.data(), shape_.tokens - 1, *parallel_);
  return index;
}

Result<double> AttnCase::run(attn::Attention& attention, const attn::Mode& mode) {
  const size_t row = static_cast<size_t>(shape_.q_heads) * shape_.layout.head_dim;
  const attn::CentroidIndex& index = centroids(mode);
  const TimePoint began = SystemClock::instance().now();
  if (shape_.decode) {
    for (uint32_t layer = 0; layer < shape_.layout.layers; ++layer) {
      attn::KvView kv = view(layer, shape_.tokens);
      kv.centroids = index.view(layer);
      MC_CHECK(attention.decode({.layout = shape_.layout,
                                 .q_heads = shape_.q_heads,
                                 .sequences = 1,
                                 .modes = &mode,
                                 .q = q_.as<float>() + layer * row,
                                 .kv = &kv,
                                 .out = out_.as<float>() + layer * row}));
    }
  } else {
    for (int64_t begin = 0; begin < shape_.tokens; begin += shape_.chunk_tokens) {
      const int64_t rows = std::min(shape_.chunk_tokens, shape_.tokens - begin);
      MC_CHECK(attention.prefill({.layout = shape_.layout,
                                  .mode = mode,
                                  .q_heads = shape_.q_heads,
                                  .rows = rows,
                                  .q_begin = begin,
                                  .q = q_.as<float>(),
                                  .kv = view(0, begin + rows),
                                  .out = out_.as<float>()}));
    }
  }
  return to_seconds(SystemClock::instance().now() - began) / shape_.layout.layers;
}

Result<double> AttnCase::decode_bytes(attn::Attention& attention, const attn::Mode& mode) {
  const ExtentLayout& layout = shape_.layout;
  const int64_t last = shape_.tokens - 1;
  const double token_bytes = 2.0 * static_cast<double>(layout.row_bytes());
  if (last < attn::dense_below(mode))
    return token_bytes * layout.kv_heads * static_cast<double>(last + 1 - attn::first_key(mode, last));
  const size_t history = static_cast<size_t>(mode.top_k - 1), heads = static_cast<size_t>(shape_.q_heads);
  const size_t group = heads / layout.kv_heads;
  std::vector<int32_t> chosen(heads * history);
  double bytes = 0;
  for (uint32_t layer = 0; layer < layout.layers; ++layer) {
    MC_CHECK(attention.prefill({.layout = layout,
                                .mode = mode,
                                .q_heads = shape_.q_heads,
                                .rows = 1,
                                .q_begin = last,
                                .q = q_.as<float>() + layer * heads * layout.head_dim,
                                .kv = view(layer, shape_.tokens),
                                .out = out_.as<float>(),
                                .selection_out = chosen.data()}));
    for (size_t head = 0; head < layout.kv_heads; ++head) {
      const auto begin = chosen.begin() + static_cast<ptrdiff_t>(head * group * history);
      const auto end = begin + static_cast<ptrdiff_t>(group * history);
      std::sort(begin, end);
      const auto blocks = std::unique(begin, end) - begin;
      bytes += token_bytes * (static_cast<double>(blocks) * mode.block + static_cast<double>(last % mode.block + 1));
      bytes += 2.0 * layout.head_dim * static_cast<double>(last / mode.block);  // centroids
    }
  }
  return bytes / layout.layers;
}

Result<std::pair<int32_t, uint32_t>> read_heads(const std::string& text) {
  const size_t slash = text.find('/');
  const auto q = parse_u64(text.substr(0, slash), 1, 1024);
  const auto kv = slash == std::string::npos ? q : parse_u64(text.substr(slash + 1), 1, 1024);
  if (!q || !kv || *q % *kv != 0 || *q / *kv > 128)
    return user_error(err::kBadValue,
                      "'" + text + "' is not query heads / KV heads, the first a multiple of the second", "--heads",
                      "write 32/8");
  return std::pair{static_cast<int32_t>(*q), static_cast<uint32_t>(*kv)};
}

}  // namespace mc::bench
