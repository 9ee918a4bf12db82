#include "host/constraints.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "text/text.h"

namespace mc::host {
namespace {

constexpr size_t kGrammarsMax = 32;  // kept compiled for later requests, with their masks

}  // namespace

/// The compiled grammars of this worker. A grammar that an answer uses stays, because dropping it would free nothing.
/// Its masks may go at any time.
class Constraints::Cache final : public grammar::MaskMemory {
 public:
  Cache(grammar::Vocabulary vocabulary, size_t bytes_max) : vocabulary_(std::move(vocabulary)), bytes_max_(bytes_max) {}

  Result<std::shared_ptr<grammar::Masks>> masks_of(const std::string& text);
  bool make_room_for_mask(size_t bytes) override { return make_room(0, bytes); }
  void forget() {
    std::erase_if(known_, [](const auto& entry) { return entry.second.is_idle(); });
    for (auto& [text, known] : known_) known.masks->clear();
  }
  size_t kept() const { return known_.size(); }
  size_t bytes() const;
  uint64_t computed_masks() const;

 private:
  struct Known {
    std::shared_ptr<grammar::Masks> masks;
    size_t bytes = 0;  // of the text and the grammar
    bool is_idle() const { return masks.use_count() == 1; }
    size_t answers() const { return static_cast<size_t>(masks.use_count()) - 1; }
  };
  bool make_room(size_t grammar_bytes, size_t mask_bytes);

  const grammar::Vocabulary vocabulary_;
  grammar::MaskStore shared_;
  std::map<std::string, Known> known_;
  const size_t bytes_max_;
};

Constraint::Constraint(std::shared_ptr<grammar::Masks> masks, std::vector<uint32_t> end_ids)
    : masks_(std::move(masks)), end_ids_(std::move(end_ids)), matcher_(*masks_) {
  mask_.resize((masks_->vocabulary().size() + 63) / 64);
}

Result<void> Constraint::accept(uint32_t token) {
  if (!matcher_.accept(token))
    return Error{Code::invalid, "token " + std::to_string(token) + " at place " + std::to_string(accepted_) +
                                    " of the answer does not follow the grammar of its request"};
  ++accepted_;
  return {};
}

Result<std::span<const uint64_t>> Constraint::allowed() {
  matcher_.fill(mask_);
  for (const uint32_t id : end_ids_) {
    if (matcher_.is_complete())
      grammar::allow(mask_, id);
    else if (id / 64 < mask_.size())
      mask_[id / 64] &= ~(uint64_t{1} << (id % 64));
  }
  if (std::any_of(mask_.begin(), mask_.end(), [](uint64_t word) { return word != 0; }))
    return std::span<const uint64_t>(mask_);
  return Error{Code::invalid, "after " + std::to_string(accepted_) +
                                  " tokens of the answer no token follows its grammar, and none of " +
                                  std::to_string(end_ids_.size()) + " tokens may end it"};
}

Constraints Constraints::open(const std::string& model_directory, size_t vocab, size_t bytes_max) {
  Constraints out;
  const auto tokenizer = text::Tokenizer::open(model_directory);
  if (!tokenizer) {
    out.missing_ = "this worker has no tokenizer, so it cannot force the form of an answer: " + tokenizer.error().what;
    return out;
  }
  std::vector<std::string> texts(vocab);
  std::vector<bool> special(vocab);
  for (uint32_t id = 0; id < vocab; ++id) {
    texts[id] = tokenizer->token_bytes(id);
    special[id] = tokenizer->is_special(id);
  }
  auto vocabulary = grammar::Vocabulary::build(texts, special);
  MC_ASSERT_EQ(vocabulary.size(), vocab);
  out.cache_ = std::make_shared<Cache>(std::move(vocabulary), bytes_max);
  return out;
}

void Constraints::forget() {
  if (cache_) cache_->forget();
}

size_t Constraints::kept() const {
  return cache_ ? cache_->kept() : 0;
}

uint64_t Constraints::computed_masks() const {
  return cache_ ? cache_->computed_masks() : 0;
}

size_t Constraints::bytes() const {
  return cache_ ? cache_->bytes() : 0;
}

Result<std::shared_ptr<grammar::Masks>> Constraints::Cache::masks_of(const std::string& text) {
  if (const auto known = known_.find(text); known != known_.end()) {
    known->second.masks->note_use();
    return known->second.masks;
  }
  MC_TRY(grammar, grammar::Grammar::compile(text));
  MC_CHECK(vocabulary_.check(*grammar));
  const size_t bytes = text.size() + grammar->bytes(), most = bytes_max_ / 2;
  if (bytes > most)
    return user_error(err::kSchemaUnsupported, "the compiled grammar has " + std::to_string(bytes) +
                                                   " bytes, and at most " + std::to_string(most) + " are supported");
  if (!make_room(bytes, 0))
    return Error{Code::busy, "the compiled grammar has " + std::to_string(bytes) + " bytes, and of " +
                                 std::to_string(most) + " bytes for grammars the answers under way leave too few; " +
                                 "retry when one of them has ended"};
  auto masks = std::make_shared<grammar::Masks>(std::move(grammar), vocabulary_, shared_, this);
  masks->note_use();
  known_[text] = {masks, bytes};
  return masks;
}

uint64_t Constraints::Cache::computed_masks() const {
  uint64_t computed = 0;
  for (const auto& [text, known] : known_) computed += known.masks->computed();
  return computed;
}

size_t Constraints::Cache::bytes() const {
  size_t bytes = 0;
  for (const auto& [text, known] : known_) bytes += known.bytes + known.masks->bytes();
  return bytes;
}

/// Drops the idle grammars that were used longest ago, then the masks of the others, until a grammar or a mask of these
/// bytes fits. False: it does not fit.
///
/// Each step computes all answers in turn. So the masks that were used longest ago belong to the answer that needs them
/// next. Only masks that no answer has used for two turns are cleared by their age. Where all are in use, the largest
/// are cleared, which makes room for many tokens of the others.
bool Constraints::Cache::make_room(size_t grammar_bytes, size_t mask_bytes) {
  for (;;) {
    size_t grammars = grammar_bytes, masks = mask_bytes;
    size_t answers = 0;
    auto idle = known_.end(), oldest = known_.end();  // those used longest ago
    auto largest = known_.end();
    for (auto it = known_.begin(); it != known_.end(); ++it) {
      const Known& known = it->second;
      const size_t own = known.masks->bytes();
      grammars += known.bytes, masks += own, answers += known.answers();
      const auto is_older = [&](auto other) {
        return other == known_.end() || known.masks->used() < other->second.masks->used();
      };
      if (known.is_idle() && is_older(idle)) idle = it;
      if (own > 0 && is_older(oldest)) oldest = it;
      if (own > 0 && (largest == known_.end() || own > largest->second.masks->bytes())) largest = it;
    }
    const bool is_full = grammars > bytes_max_ / 2 || grammars + masks > bytes_max_;
    const bool are_many = grammar_bytes > 0 && known_.size() >= kGrammarsMax;
    if (idle != known_.end() && (is_full || are_many))
      known_.erase(idle);
    else if (!is_full)
      return true;
    else if (grammars > bytes_max_ / 2 || oldest == known_.end())
      return false;
    else if (uses() - oldest->second.masks->used() > 2 * answers)
      oldest->second.masks->clear();
    else
      largest->second.masks->clear();
  }
}

Result<std::unique_ptr<Constraint>> Constraints::begin(const wire::Sampling& sampling,
                                                       std::span<const uint32_t> answer) {
  MC_ASSERT(!sampling.grammar.empty());
  if (!cache_) return Error{Code::unsupported, missing_};
  MC_TRY(masks, cache_->masks_of(sampling.grammar));
  auto out = std::make_unique<Constraint>(std::move(masks), sampling.end_ids);
  for (const uint32_t token : answer) MC_CHECK(out->accept(token));
  return out;
}

}  // namespace mc::host
