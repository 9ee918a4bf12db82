#include "gpu_speed.h"

#include <algorithm>
#include <set>
#include <vector>

#include "attn_case.h"
#include "base/clock.h"
#include "base/rng.h"
#include "print.h"

namespace mc::bench {
namespace {

constexpr int kSpells = 5;
constexpr double kSpellSeconds = 0.05;
constexpr int64_t kPatternPages = 64;
constexpr size_t kQueryNumbers = size_t{1} << 20;

}  // namespace

/// The first spell warms up.
Result<double> median_seconds(gpu::Device& device, const std::function<Result<void>()>& work) {
  std::vector<double> spells;
  uint64_t calls = 1;
  while (spells.size() < kSpells) {
    const TimePoint began = steady_now();
    for (uint64_t i = 0; i < calls; ++i) MC_CHECK(work());
    MC_CHECK(device.finish());
    const double seconds = to_seconds(steady_now() - began);
    if (seconds < kSpellSeconds && calls < 1'000'000)
      calls *= 2;
    else
      spells.push_back(seconds / static_cast<double>(calls));
  }
  std::sort(spells.begin(), spells.end());
  return spells[kSpells / 2];
}

Result<double> copy_rate(gpu::Device& device) {
  constexpr size_t kBytes = size_t{512} << 20;
  MC_TRY(from, gpu::DeviceBuffer::make(device, kBytes, "source of a copy"));
  MC_TRY(to, gpu::DeviceBuffer::make(device, kBytes, "target of a copy"));
  MC_TRY(stream, gpu::Stream::make(device));
  MC_CHECK(stream.fill(from.address(), 1, kBytes));
  MC_TRY(seconds, median_seconds(device, [&]() -> Result<void> {
           MC_CHECK(stream.copy_within(to.address(), from.address(), kBytes));
           return stream.finish();
         }));
  return 2 * static_cast<double>(kBytes) / seconds;
}

Result<std::unique_ptr<GpuSpeed>> GpuSpeed::open(const GpuShape& shape, int32_t sequences, Parallel& parallel,
                                                 gpu::Device& device) {
  auto made = std::unique_ptr<GpuSpeed>(new GpuSpeed(shape, sequences, device));
  MC_CHECK(made->fill(parallel));
  return made;
}

/// Rows of about a million numbers, which repeat behind them.
std::vector<bf16_t> GpuSpeed::draw_queries(Rng& rng) const {
  const size_t dim = shape_.layout.head_dim, heads = static_cast<size_t>(shape_.q_heads);
  const size_t group = heads / shape_.layout.kv_heads;
  const size_t count = std::min(static_cast<size_t>(rows()), kQueryNumbers / (heads * dim) + 1);
  std::vector<bf16_t> out;
  std::vector<double> shared(shape_.layout.kv_heads * dim);
  for (size_t row = 0; row < count; ++row) {
    if (shape_.decode() || row % kCoherentTokens == 0)
      for (double& one : shared) one = rng.normal();
    for (size_t i = 0; i < heads * dim; ++i) {
      const double own = rng.normal(), alike = 0.1 * own + 0.995 * shared[i / dim / group * dim + i % dim];
      out.push_back(f32_to_bf16(static_cast<float>(shape_.coherent ? alike : own)));
    }
  }
  return out;
}

/// Fills `bytes` bytes with copies of the first `have`.
Result<void> GpuSpeed::repeat(uint64_t address, size_t have, size_t bytes) {
  MC_TRY(stream, gpu::Stream::make(*device_));
  while (have < bytes) {
    const size_t more = std::min(have, bytes - have);
    MC_CHECK(stream.copy_within(address + have, address, more));
    MC_CHECK(stream.finish());
    have += more;
  }
  return {};
}

Result<void> GpuSpeed::fill(Parallel& parallel) {
  Rng rng(shape_.seed);
  const ExtentLayout& layout = shape_.layout;
  const int64_t block = layout.block_tokens, each = (shape_.tokens + block - 1) / block, pages = each * sequences_;
  const int64_t pattern = std::min(pages, kPatternPages);
  std::vector<std::byte> bytes(static_cast<size_t>(pattern) * layout.page_bytes());
  std::vector<std::byte*> pointers;
  for (int64_t i = 0; i < pattern; ++i) pointers.push_back(&bytes[static_cast<size_t>(i) * layout.page_bytes()]);
  const size_t floats = static_cast<size_t>(pattern * block) * layout.kv_heads * layout.head_dim;
  std::vector<float> k(floats), v(floats);
  for (size_t i = 0; i < floats; ++i) {
    k[i] = static_cast<float>(rng.normal());
    v[i] = static_cast<float>(rng.normal());
  }
  attn::append(
      {.layout = layout, .target = {pointers.data(), 0}, .tokens = pattern * block, .k = k.data(), .v = v.data()},
      &parallel);
  const size_t pool_bytes = static_cast<size_t>(pages) * layout.page_bytes();
  const size_t q_bytes = static_cast<size_t>(rows()) * static_cast<size_t>(shape_.q_heads) * layout.head_dim * 2;
  MC_TRY(pool, gpu::DeviceBuffer::make(*device_, pool_bytes, "KV pool"));
  MC_TRY(q, gpu::DeviceBuffer::make(*device_, q_bytes, "queries"));
  MC_TRY(out, gpu::DeviceBuffer::make(*device_, q_bytes, "output"));
  pool_ = std::move(pool), q_ = std::move(q), out_ = std::move(out);
  MC_CHECK(device_->write(pool_.address(), bytes));
  MC_CHECK(repeat(pool_.address(), bytes.size(), pool_bytes));
  const std::vector<bf16_t> queries = draw_queries(rng);
  MC_CHECK(device_->write(q_.address(), std::as_bytes(std::span(queries))));
  MC_CHECK(repeat(q_.address(), queries.size() * 2, q_bytes));

  std::vector<int32_t> order(static_cast<size_t>(pages));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  std::vector<gpu::SequenceRows> sequences;
  for (int32_t i = 0; i < sequences_; ++i) {
    const auto first = order.begin() + i * each;
    const int64_t tokens = shape_.decode() ? 1 : shape_.tokens;
    sequences.push_back({.q_begin = shape_.tokens - tokens,
                         .kv_len = shape_.tokens,
                         .tokens = static_cast<int32_t>(tokens),
                         .pages = {first, first + each},
                         .mode = shape_.mode,
                         .splits = shape_.splits});
  }
  MC_CHECK(batch_.begin({.layout = layout,
                         .page_bytes = layout.page_bytes(),
                         .q_heads = shape_.q_heads,
                         .kernel = shape_.kernel,
                         .routed_bytes = shape_.wave},
                        std::move(sequences)));
  layer_ = {.pool = pool_.address(), .q = q_.address(), .out = out_.address()};
  return {};
}

Result<void> GpuSpeed::run() {
  MC_CHECK(batch_.attend(layer_));
  return device_->finish();
}

Result<double> GpuSpeed::time() {
  return median_seconds(*device_, [this] { return batch_.attend(layer_); });
}

Result<double> GpuSpeed::blocks_of_group() {
  const auto each = static_cast<size_t>(shape_.mode.top_k - 1), kv_heads = size_t{shape_.layout.kv_heads};
  const size_t groups = static_cast<size_t>(rows()) * kv_heads;
  const size_t of_group = static_cast<size_t>(shape_.q_heads) / kv_heads * each;
  std::vector<int32_t> chosen(groups * of_group);
  MC_TRY(selection, gpu::DeviceBuffer::make(*device_, chosen.size() * 4, "selection"));
  gpu::AttentionLayer layer = layer_;
  layer.selection = selection.address();
  MC_CHECK(batch_.attend(layer));
  MC_CHECK(device_->read(selection.address(), std::as_writable_bytes(std::span(chosen))));
  size_t count = 0;
  for (auto at = chosen.begin(); at != chosen.end(); at += static_cast<ptrdiff_t>(of_group)) {
    std::set<int32_t> blocks(at, at + static_cast<ptrdiff_t>(of_group));
    blocks.erase(-1);  // nothing was chosen
    count += blocks.size();
  }
  return static_cast<double>(count) / static_cast<double>(groups);
}

double GpuSpeed::bytes() const {
  const int64_t last = shape_.tokens - 1;
  // Prefill reads every key at least once, whichever rows choose it.
  const double keys = shape_.decode() ? attn::prefill_keys(shape_.mode, last, 1) : static_cast<double>(shape_.tokens);
  return keys * 2 * static_cast<double>(shape_.layout.kv_heads * shape_.layout.row_bytes()) * sequences_;
}

double GpuSpeed::flops() const {
  const int64_t begin = shape_.decode() ? shape_.tokens - 1 : 0;
  return attn::prefill_flop(shape_.mode, shape_.q_heads, static_cast<int32_t>(shape_.layout.head_dim), begin,
                            shape_.tokens - begin) *
         sequences_;
}

}  // namespace mc::bench
