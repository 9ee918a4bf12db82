#include "model/split_backend.h"

#include <string>
#include <vector>

#include "base/assert.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/hash.h"
#include "gpu/device_group.h"
#include "model/device_rank.h"

namespace mc::model {
namespace {

class SplitBackend final : public Backend {
 public:
  SplitBackend(gpu::DeviceGroup& group, std::vector<std::unique_ptr<DeviceRank>> ranks, const ModelConfig& config,
               const KvPart& kv)
      : group_(group), ranks_(std::move(ranks)), layers_(config.layers), hidden_(config.hidden), kv_(kv) {}

  Result<void> check_plan(const attn::Plan& plan, int64_t kv_len) const override {
    return ranks_[0]->check_plan(plan, kv_len);
  }
  Result<void> begin(const PrefillChunk& chunk) override {
    return on_all([&](DeviceRank& rank) { return rank.begin(chunk); });
  }
  Result<void> begin(std::span<const DecodeRow> rows) override {
    return on_all([&](DeviceRank& rank) { return rank.begin(rows); });
  }
  bool mixes() const override { return true; }
  Result<void> begin(const MixedPass& pass) override {
    MC_ASSERT(pass.draws.empty());
    return on_all([&](DeviceRank& rank) { return rank.begin(pass); });
  }
  Result<void> before_attention(uint32_t layer) override {
    return on_all([&](DeviceRank& rank) { return rank.before_attention(layer); });
  }
  bool stores_later() const override { return true; }
  Result<void> finish_layer(uint32_t layer) override {
    return on_all([&](DeviceRank& rank) { return rank.finish_layer(layer); });
  }
  std::span<const uint32_t> checksums(uint32_t layer) const override;
  Result<void> finish_step() override {
    return on_all([&](DeviceRank& rank) { return rank.finish_step(); });
  }
  void forget(uint64_t sequence) override {
    for (const auto& rank : ranks_) rank->forget(sequence);
  }
  Result<void> attend(uint32_t layer) override {
    return on_all([&](DeviceRank& rank) { return rank.attend(layer); });
  }
  Result<void> after_attention(uint32_t layer) override {
    MC_TRY(rows, rows_of([&](DeviceRank& rank) { return rank.rows_behind(layer); }));
    return finish(layer, rows);
  }
  Result<void> finish_last_row(std::span<float> logits, std::span<float> hidden) override {
    MC_TRY(rows, rows_of([&](DeviceRank& rank) { return rank.attend_last_row(); }));
    MC_CHECK(finish(layers_ - 1, rows));
    return on_first([&](DeviceRank& rank) { return rank.end_last_row(logits, hidden); });
  }
  Result<void> finish_rows(const MixedPass& pass) override {
    MC_TRY(rows, rows_of([&](DeviceRank& rank) { return rank.attend_last_rows(); }));
    if (rows[0].count == 0) return {};
    MC_CHECK(finish(layers_ - 1, rows));
    return on_first([&](DeviceRank& rank) { return rank.end_rows(pass); });
  }
  Result<void> logits(size_t first, size_t count, std::span<float> out) override {
    return on_first([&](DeviceRank& rank) { return rank.logits(first, count, out); });
  }
  Result<void> activations(std::span<float> out) override {
    return on_first([&](DeviceRank& rank) { return rank.activations(out); });
  }

 private:
  using Rows = std::vector<DeviceLayers::Rows>;  // by rank

  Result<void> ended(Result<void> result);
  template <class Step>
  Result<void> on_all(const Step& step) {
    const gpu::DeviceGroup::Wait wait(group_, SystemClock::instance().now());
    for (const auto& rank : ranks_) MC_CHECK(ended(step(*rank)));
    return {};
  }
  template <class Step>
  Result<void> on_first(const Step& step) {
    const gpu::DeviceGroup::Wait wait(group_, SystemClock::instance().now());
    return ended(step(*ranks_[0]));
  }
  template <class Step>
  Result<Rows> rows_of(const Step& step) {
    Rows rows;
    MC_CHECK(on_all([&](DeviceRank& rank) -> Result<void> {
      MC_TRY(own, step(rank));
      rows.push_back(own);
      return {};
    }));
    for (const auto& own : rows) MC_ASSERT_EQ(own.count, rows[0].count);
    return rows;
  }
  Result<void> finish(uint32_t layer, const Rows& rows);
  Result<void> sum(uint32_t layer, const Rows& rows, const char* of);

  gpu::DeviceGroup& group_;
  std::vector<std::unique_ptr<DeviceRank>> ranks_;
  uint32_t layers_;
  size_t hidden_;
  KvPart kv_;                                // of the first rank
  mutable std::vector<uint32_t> checksums_;  // of the layer that was asked for last
};

/// The other devices would wait for ever for one that has failed. Sums that were given up end like others, and what
/// they leave means nothing.
Result<void> SplitBackend::ended(Result<void> result) {
  const auto failure = group_.failure();
  if (!failure) return result;
  group_.abort();
  return result ? *failure : result;
}

Result<void> SplitBackend::sum(uint32_t layer, const Rows& rows, const char* of) {
  std::vector<uint64_t> addresses;
  for (const auto& own : rows) addresses.push_back(own.x);
  return group_.all_reduce(addresses, rows[0].count * hidden_, "layer " + std::to_string(layer) + ", " + of);
}

Result<void> SplitBackend::finish(uint32_t layer, const Rows& rows) {
  size_t at = 0;
  MC_CHECK(on_all([&](DeviceRank& rank) { return rank.layers().add_attention(layer, rows[at++]); }));
  MC_CHECK(sum(layer, rows, "attention"));
  at = 0;
  MC_CHECK(on_all([&](DeviceRank& rank) { return rank.layers().add_mlp(layer, rows[at++]); }));
  return sum(layer, rows, "MLP");
}

/// An extent is the parts of all ranks, one behind the other.
std::span<const uint32_t> SplitBackend::checksums(uint32_t layer) const {
  const auto first = ranks_[0]->checksums(layer);
  checksums_.assign(first.begin(), first.end());
  for (size_t rank = 1; rank < ranks_.size(); ++rank) {
    const auto own = ranks_[rank]->checksums(layer);
    MC_ASSERT_EQ(own.size(), checksums_.size());
    for (size_t i = 0; i < own.size(); ++i)
      checksums_[i] = crc32c_shift(checksums_[i], kv_.device.layer_bytes()) ^ own[i];
  }
  return checksums_;
}

}  // namespace

Result<std::unique_ptr<Backend>> open_split_backend(const Model& model, gpu::DeviceGroup& group, Parallel& parallel,
                                                    const RunnerOptions& options, const ops::Kernels& kernels) {
  const auto count = static_cast<uint32_t>(group.size());
  MC_ASSERT(count > 1);
  MC_CHECK(check_split(model.config(), count, group.name()));
  if (options.device_pages > 0)
    return user_error(err::kDeviceUnusable, group.name() + ": several devices have no tier of KV blocks yet",
                      "--device-mem", "give --device-mem 0, or name one device");
  RunnerOptions own = options;
  own.graphs = false;  // a graph would hold the calls of the library of sums
  std::vector<std::unique_ptr<DeviceRank>> ranks;
  for (uint32_t rank = 0; rank < count; ++rank) {
    MC_TRY(opened, open_device_rank(model, group.device(rank), parallel, own, kernels, {rank, count}));
    ranks.push_back(std::move(opened));
  }
  const KvPart kv = KvPart::of(model.kv_layout(options.block_tokens), {0, count});
  return std::unique_ptr<Backend>(std::make_unique<SplitBackend>(group, std::move(ranks), model.config(), kv));
}

}  // namespace mc::model
