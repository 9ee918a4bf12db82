// Tokens drawn on a device from logits that are there, by the rules of ops/sample.h: bit for bit the tokens that
// ops::Sampler draws from the same logits. Log-probabilities agree within 1e-5: the two sum the distribution in another
// way. How often a sequence has each token stays on the device for its penalties, and a step adds what is new.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/result.h"
#include "gpu/arena.h"
#include "gpu/kernels/draw.h"
#include "model/device_copies.h"
#include "model/pass.h"
#include "ops/sample.h"

namespace mc::model {

/// A draw for each row of a step, queued on a device. The results are copied to the host with the rest of the step.
struct DrawCall {
  uint32_t vocab = 0;
  std::vector<int32_t> logprobs;         // DrawRule::logprobs of the rows
  uint64_t drawn_at = 0, listed_at = 0;  // on the device
  std::vector<gpu::Drawn> drawn;
  std::vector<gpu::ListedToken> listed;  // [rows, kListedMax]; empty when no row lists tokens

  /// Adds the copies of the results to this call's memory, which moves with the call.
  void add_copies(std::vector<DeviceCopies::Store>& copies);
  /// Code::corrupt as ops::Sampler::sample(). The copies have ended.
  Result<void> results(std::span<ops::Sampled> out) const;

 private:
  Result<ops::Sampled> result_of(size_t row) const;
};

class DeviceDraws {
 public:
  /// Calls whose results are kept on the device at the same time.
  static constexpr size_t kPlaces = 2;
  /// The device must outlive the draws.
  explicit DeviceDraws(gpu::Device& device) : device_(device) {}
  /// Device memory for `rows` rows of a call.
  static size_t bytes(uint32_t vocab, size_t rows);
  Result<void> prepare(uint32_t vocab, size_t rows);

  /// Grammars stay with the host, and so do long lists of log-probabilities and of edits.
  static bool draws(const DrawRow& row);
  /// Queues the draw of a token for each row. `logits` is the address of [rows, vocab] f32, and `sequences` has the
  /// name of each row's sequence, 0 without one. The results take the memory of `place`. DrawRow::fed names rows of the
  /// call in the other place. `padded`: rows of `logits`, with those of no sequence after `rows`.
  Result<DrawCall> queue(std::span<const DrawRow> rows, std::span<const uint64_t> sequences, uint64_t logits,
                         size_t place, size_t padded = 0);
  /// Results of the call in a place, gpu::Drawn for each row.
  uint64_t drawn(size_t place) const { return at_.drawn + place * rows_ * sizeof(gpu::Drawn); }
  /// The sequence has ended, or its step failed.
  void forget(uint64_t sequence);

 private:
  /// The tokens of one sequence that are counted on the device.
  struct Counted {
    int32_t slot = 0;
    size_t tokens = 0;  // of its history
    uint64_t call = 0;  // the last draw
  };
  struct Parts {
    uint64_t rules = 0, counts = 0, edits = 0, changed = 0, drawn = 0, listed = 0, tokens = 0, spans = 0;
  };
  struct PartSize {
    uint64_t Parts::*member;
    size_t bytes;
  };
  static std::vector<PartSize> part_sizes(uint32_t vocab, size_t rows);
  template <class T>
  Result<void> put(uint64_t address, const std::vector<T>& values) {
    return device_.post(address, std::as_bytes(std::span(values)));
  }
  /// The slot in which the row's history is counted.
  Result<int32_t> count(uint64_t sequence, const DrawRow& row);
  Result<int32_t> new_slot();
  Result<void> count_tokens();
  Result<gpu::DrawRule> rule_of(const DrawRow& row, uint64_t sequence);
  Result<void> launch(const DrawCall& call, size_t rows, uint64_t logits);

  gpu::Device& device_;
  uint32_t vocab_ = 0;
  size_t rows_ = 0;
  gpu::Arena memory_;
  Parts at_;
  std::map<uint64_t, Counted> counted_;  // by sequence
  uint64_t call_ = 0;
  // The call under way has these.
  uint64_t fed_ = 0;                       // results of the call before
  std::vector<int32_t> tokens_;            // to be counted
  std::vector<gpu::CountedTokens> spans_;  // of tokens_
  std::vector<gpu::LogitEdit> edits_;
};

}  // namespace mc::model
