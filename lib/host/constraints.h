// The grammars of the answers that this worker samples. The state of an answer is computed from its tokens, so any node
// can go on with it: the prefill node draws the first token, a decode node the next ones, and another node all later
// ones when the first was lost.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "grammar/grammar.h"
#include "wire/sampling.h"

namespace mc::host {

/// One answer that must follow its grammar.
class Constraint {
 public:
  Constraint(std::shared_ptr<grammar::Masks> masks, std::vector<uint32_t> end_ids);

  /// Goes on by a token that was drawn. invalid: the grammar does not allow it.
  Result<void> accept(uint32_t token);
  /// The tokens that may be drawn now, one bit each. invalid: there are none. Valid until the next call.
  Result<std::span<const uint64_t>> allowed();

 private:
  std::shared_ptr<grammar::Masks> masks_;
  std::vector<uint32_t> end_ids_;
  grammar::Matcher matcher_;
  std::vector<uint64_t> mask_;
  size_t accepted_ = 0;
};

/// One thread.
class Constraints {
 public:
  static constexpr size_t kBytesMax = size_t{256} << 20;

  /// Reads the tokenizer of the model. A folder without one gives constraints that refuse each request with the reason.
  /// Grammars and their masks never take more than `bytes_max`, without the masks that all grammars share. The grammars
  /// alone take at most half of it, so that the masks have room.
  static Constraints open(const std::string& model_directory, size_t vocab, size_t bytes_max = kBytesMax);

  /// The constraint of an answer that has these tokens. unsupported: there is no tokenizer, or it cannot spell the
  /// grammar. MC4029 for a bad grammar. busy: the grammars of the answers under way leave no room for this one.
  Result<std::unique_ptr<Constraint>> begin(const wire::Sampling& sampling, std::span<const uint32_t> answer);
  /// Drops the grammars that no answer uses, and the masks of the others. Constraints that have begun go on.
  void forget();
  /// Grammars that are kept now, or used by answers.
  size_t kept() const;
  /// Masks that were computed for the grammars that are kept, for the first time or again.
  uint64_t computed_masks() const;
  /// The memory of grammars and masks now, about.
  size_t bytes() const;

 private:
  class Cache;
  std::shared_ptr<Cache> cache_;  // constraints of answers have its address
  std::string missing_;           // why there is no cache
};

}  // namespace mc::host
