// See gpu_case.h. The bound of an output element, given the same selection: scores are chains of head_dim f32 roundings
// and move a weight by 4 sqrt(head_dim) 2^-24 |q| |k| / sqrt(head_dim); sums of `keys` weights round likewise;
// ex2.approx is right within 2^-22; weights are rounded to bf16 before they meet V, and so are the parts of a routed
// row and the output, by 2^-9 each.
#include "gpu_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "base/rng.h"

namespace mc::bench {
namespace {

double row_norm(const float* row, size_t floats) {
  double sum = 0;
  for (size_t i = 0; i < floats; ++i) sum += static_cast<double>(row[i]) * static_cast<double>(row[i]);
  return std::sqrt(sum);
}

void fill_rows(std::vector<float>& k, std::vector<float>& v, size_t row, Values values, Rng& rng) {
  for (size_t i = 0; i < k.size(); ++i) {
    k[i] = static_cast<float>(rng.normal());
    v[i] = static_cast<float>(rng.normal());
    if (values == Values::huge) k[i] *= 40;
    if (values == Values::zeros) k[i] = 0;
    if (values == Values::equal_keys) k[i] = k[i % row];
  }
}

}  // namespace

Result<std::unique_ptr<GpuCase>> GpuCase::open(const GpuShape& shape, Parallel& parallel, gpu::Device& device) {
  auto made = std::unique_ptr<GpuCase>(new GpuCase(shape, device));
  MC_CHECK(made->fill(parallel));
  MC_CHECK(made->expect(parallel));
  return made;
}

/// Sequences of random lengths up to the shape's, their pages in random order, every other byte of the pool a NaN.
Result<void> GpuCase::fill(Parallel& parallel) {
  Rng rng(shape_.seed);
  const ExtentLayout& layout = shape_.layout;
  const auto block = static_cast<int64_t>(layout.block_tokens);
  attention_ = {.layout = layout,
                .page_bytes = layout.page_bytes(),
                .q_heads = shape_.q_heads,
                .kernel = shape_.kernel,
                .routed_bytes = shape_.wave};
  int64_t page_count = 0;
  for (int i = 0; i < (shape_.mixed() ? 5 : shape_.decode() ? 3 : 2); ++i) {
    const bool is_row = shape_.decode() || (shape_.mixed() && i % 2 == 0);
    // The sequences of a batch may have different numbers of splits.
    gpu::SequenceRows s{.mode = shape_.mode,
                        .splits = i == 0 ? shape_.splits : static_cast<int32_t>(rng.between(1, shape_.splits))};
    s.kv_len = i == 0 ? shape_.tokens : rng.between(1, shape_.tokens);
    // More rows than keys: the first ones have negative positions and see nothing.
    s.tokens = is_row ? 1 : static_cast<int32_t>(rng.between(1, std::min<int64_t>(s.kv_len + 2, 150)));
    s.q_begin = s.kv_len - s.tokens;
    s.pages.resize(static_cast<size_t>((s.kv_len + block - 1) / block));
    for (int32_t& page : s.pages) page = static_cast<int32_t>(page_count++);
    tokens_ += s.tokens;
    sequences_.push_back(std::move(s));
  }
  std::vector<int32_t> order(static_cast<size_t>(page_count));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  pages_.assign(order.size() * layout.page_bytes(), std::byte{0xff});
  const size_t row = layout.kv_heads * layout.head_dim;
  for (gpu::SequenceRows& s : sequences_) {
    std::vector<std::byte*> pointers;
    for (int32_t& page : s.pages) {
      page = order[static_cast<size_t>(page)];
      pointers.push_back(pages_.data() + static_cast<size_t>(page) * layout.page_bytes());
    }
    std::vector<float> k(static_cast<size_t>(s.kv_len) * row), v(k.size());
    fill_rows(k, v, row, shape_.values, rng);
    attn::append({.layout = layout, .target = {pointers.data(), 0}, .tokens = s.kv_len, .k = k.data(), .v = v.data()},
                 &parallel);
    for (size_t at = 0; at < k.size(); at += layout.head_dim)
      k_norm_ = std::max(k_norm_, row_norm(&k[at], layout.head_dim));
    for (float x : v) v_max_ = std::max(v_max_, std::abs(static_cast<double>(x)));
  }
  if (layout.has_scales()) {  // what E4M3 stores may be a 16th larger, and a little
    k_norm_ *= 1.07;
    v_max_ *= 1.07;
  }
  queries_.resize(rows() * layout.head_dim);
  std::vector<bf16_t> rounded(queries_.size());
  for (size_t i = 0; i < queries_.size(); ++i) {
    rounded[i] = f32_to_bf16(static_cast<float>(rng.normal()));
    queries_[i] = bf16_to_f32(rounded[i]);
  }
  MC_TRY(pool, gpu::DeviceBuffer::make(*device_, pages_.size(), "KV pool"));
  MC_TRY(q, gpu::DeviceBuffer::make(*device_, rounded.size() * 2, "queries"));
  pool_ = std::move(pool);
  q_ = std::move(q);
  MC_CHECK(device_->write(pool_.address(), pages_));
  MC_CHECK(device_->write(q_.address(), std::as_bytes(std::span(rounded))));
  layer_.pool = pool_.address();
  layer_.q = q_.address();
  return {};
}

Result<void> GpuCase::expect(Parallel& parallel) {
  MC_TRY(reference, attn::Attention::open(parallel, "ref"));
  const ExtentLayout& layout = shape_.layout;
  const auto history = static_cast<size_t>(std::max(shape_.mode.top_k - 1, 0));
  expected_.resize(queries_.size());
  chosen_.assign(rows() * history, -1);
  size_t first = 0;
  for (const gpu::SequenceRows& s : sequences_) {
    std::vector<const std::byte*> pointers;
    for (const int32_t page : s.pages)
      pointers.push_back(pages_.data() + static_cast<size_t>(page) * layout.page_bytes());
    MC_CHECK(reference.prefill({.layout = layout,
                                .mode = s.mode,
                                .q_heads = shape_.q_heads,
                                .rows = s.tokens,
                                .q_begin = s.q_begin,
                                .q = queries_.data() + first * layout.head_dim,
                                .kv = {pointers.data(), s.kv_len},
                                .out = expected_.data() + first * layout.head_dim,
                                .selection_out = history > 0 ? chosen_.data() + first * history : nullptr}));
    first += static_cast<size_t>(s.tokens) * static_cast<size_t>(shape_.q_heads);
  }
  MC_TRY(out, gpu::DeviceBuffer::make(*device_, queries_.size() * 2, "output"));
  out_ = std::move(out);
  layer_.out = out_.address();
  if (history == 0) return {};
  MC_TRY(selection, gpu::DeviceBuffer::make(*device_, chosen_.size() * 4, "selection"));
  selection_ = std::move(selection);
  layer_.selection = selection_.address();
  return {};
}

double GpuCase::bound(double q_norm, double out) const {
  const double u = std::exp2(-24), dim = static_cast<double>(shape_.layout.head_dim);
  const double score = 4 * (std::sqrt(dim) + 1) * u * q_norm * k_norm_ / std::sqrt(dim);
  const double weight = score + 4 * (std::sqrt(static_cast<double>(shape_.tokens)) + 1) * u + std::exp2(-21);
  return v_max_ * (weight + std::exp2(-8)) + std::abs(out) * std::exp2(-8) + 1e-7;
}

/// The gate's score of a block for a row, in double, and the bound of a kernel's error in it: a chip's matrix units sum
/// 16 products with fewer bits than f32 has.
std::pair<double, double> GpuCase::score(const gpu::SequenceRows& s, size_t row, int32_t block) const {
  const ExtentLayout& layout = shape_.layout;
  const size_t dim = layout.head_dim, heads = static_cast<size_t>(shape_.q_heads);
  const size_t kv_head = row % heads / (heads / layout.kv_heads);
  const auto pages = static_cast<size_t>(s.mode.block) / layout.block_tokens;
  double sum = 0, size = 0;
  for (size_t i = 0; i < dim; ++i) {
    float total = 0;
    for (size_t p = 0; p < pages; ++p) {
      const size_t page = static_cast<size_t>(s.pages[static_cast<size_t>(block) * pages + p]);
      float one = 0;
      std::memcpy(
          &one, &pages_[page * layout.page_bytes() + kv_head * layout.head_bytes() + layout.ksum_offset() + i * 4], 4);
      total = p == 0 ? one : total + one;
    }
    const double centroid = bf16_to_f32(f32_to_bf16(total / static_cast<float>(s.mode.block)));
    const double product = centroid * static_cast<double>(queries_[row * dim + i]);
    sum += product;
    size += std::abs(product);
  }
  return {sum, size * std::exp2(-18)};
}

/// Whether each block that the device chose in place of the reference's scores as high, within the bounds.
bool GpuCase::is_tie(size_t row, const int32_t* chosen) const {
  const size_t history = chosen_.size() / rows(), heads = static_cast<size_t>(shape_.q_heads);
  size_t first = 0, at = 0;
  for (; row >= (first + static_cast<size_t>(sequences_[at].tokens)) * heads; ++at)
    first += static_cast<size_t>(sequences_[at].tokens);
  const int32_t* expected = &chosen_[row * history];
  const int32_t* const chosen_end = std::find(chosen, chosen + history, -1);
  const int32_t* const expected_end = std::find(expected, expected + history, -1);
  std::vector<int32_t> more, missing;
  std::set_difference(chosen, chosen_end, expected, expected_end, std::back_inserter(more));
  std::set_difference(expected, expected_end, chosen, chosen_end, std::back_inserter(missing));
  if (more.size() != missing.size()) return false;
  for (const int32_t block : more)
    if (block < 0 || block >= sequences_[at].kv_len / sequences_[at].mode.block) return false;
  for (const int32_t block : more)
    for (const int32_t other : missing) {
      const auto [theirs, bound] = score(sequences_[at], row, block);
      const auto [ours, other_bound] = score(sequences_[at], row, other);
      if (theirs + bound < ours - other_bound) return false;
    }
  return true;
}

/// The rows whose choice differs by a tie. Code::corrupt when one differs by more.
Result<std::vector<bool>> GpuCase::tied_rows(const std::vector<int32_t>& chosen) const {
  std::vector<bool> out(rows());
  const size_t history = chosen.size() / rows();
  for (size_t row = 0; row < rows() && history > 0; ++row) {
    const int32_t* mine = &chosen[row * history];
    const auto other = std::mismatch(mine, mine + history, &chosen_[row * history]);
    if (other.first == mine + history) continue;
    if (shape_.exact_choice || !std::is_sorted(mine, std::find(mine, mine + history, -1)) || !is_tie(row, mine))
      return Error{Code::corrupt, "gate: entry " + std::to_string(other.first - chosen.data()) +
                                      " of the selection is " + std::to_string(*other.first) +
                                      ", the reference chose " + std::to_string(*other.second)};
    out[row] = true;
  }
  return out;
}

Result<GpuCase::Answer> GpuCase::compute(gpu::AttentionKernel kernel) {
  Answer answer{std::vector<bf16_t>(queries_.size(), 0xffff), std::vector<int32_t>(chosen_.size(), -1)};
  const auto out = std::as_writable_bytes(std::span(answer.out));
  const auto chosen = std::as_writable_bytes(std::span(answer.chosen));
  MC_CHECK(device_->write(layer_.out, out));
  if (!chosen.empty()) MC_CHECK(device_->write(layer_.selection, chosen));
  gpu::AttentionShape shape = attention_;
  shape.kernel = kernel;
  // Few blocks make every tile a union tile: a case of lists is of lists alone.
  shape.unites = kernel == gpu::AttentionKernel::automatic || kernel == gpu::AttentionKernel::united;
  gpu::AttentionBatch batch(*device_);
  MC_CHECK(batch.begin(shape, sequences_));
  MC_CHECK(batch.attend(layer_));
  MC_CHECK(device_->read(layer_.out, out));
  if (!chosen.empty()) MC_CHECK(device_->read(layer_.selection, chosen));
  return answer;
}

Result<void> GpuCase::compare_bits(const Answer& answer) {
  MC_ASSERT(shape_.bits_of().has_value());
  const gpu::AttentionKernel kernel = *shape_.bits_of();
  const std::string other(shape_.bits_name());
  if (!promised_) {
    MC_TRY(promised, compute(kernel));
    promised_ = std::move(promised);
  }
  const auto place = [](const auto& ours, const auto& theirs) {
    return std::to_string(std::mismatch(ours.begin(), ours.end(), theirs.begin()).first - ours.begin());
  };
  if (answer.chosen != promised_->chosen)
    return Error{Code::corrupt, "bits: " + other + " chose another block at entry " +
                                    place(answer.chosen, promised_->chosen) + " of the selection"};
  if (answer.out != promised_->out)
    return Error{Code::corrupt,
                 "bits: element " + place(answer.out, promised_->out) + " of the output has other bits in " + other};
  return {};
}

Result<double> GpuCase::run() {
  wrong_ = Wrong::nothing;
  MC_TRY(answer, compute(shape_.kernel));
  auto found = tied_rows(answer.chosen);
  if (!found) wrong_ = Wrong::choice;
  MC_TRY(tied, std::move(found));
  ties_ = static_cast<size_t>(std::count(tied.begin(), tied.end(), true));
  double worst = 0;
  const size_t dim = shape_.layout.head_dim;
  for (size_t row = 0; row < rows(); ++row) {
    if (tied[row]) continue;
    const double norm = row_norm(&queries_[row * dim], dim);
    for (size_t i = row * dim; i < (row + 1) * dim; ++i) {
      const double right = static_cast<double>(expected_[i]);
      const double share = std::abs(static_cast<double>(bf16_to_f32(answer.out[i])) - right) / bound(norm, right);
      if (!(share <= worst)) worst = std::isnan(share) ? std::numeric_limits<double>::infinity() : share;
    }
  }
  if (worst > 1 || !shape_.bits_of()) return worst;
  if (auto same = compare_bits(answer); !same) {
    if (same.error().code == Code::corrupt) wrong_ = Wrong::bits;
    return std::move(same).error();
  }
  return worst;
}

}  // namespace mc::bench
