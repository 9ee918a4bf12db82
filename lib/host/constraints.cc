#include "host/constraints.h"

#include <algorithm>

#include "base/assert.h"
#include "text/text.h"

namespace mc::host {
namespace {

constexpr size_t kGrammarsMax = 32;  // kept compiled, with their masks

}  // namespace

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
  out.bytes_max_ = bytes_max;
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
  out.words_ = std::make_shared<Words>(Words{grammar::Vocabulary::build(texts, special), {}});
  MC_ASSERT_EQ(out.words_->vocabulary.size(), vocab);
  return out;
}

Result<std::shared_ptr<grammar::Masks>> Constraints::masks_of(const std::string& text) {
  const auto known = known_.find(text);
  if (known != known_.end()) {
    known->second.used = ++uses_;
    auto masks = known->second.masks;
    make_room();
    return masks;
  }
  MC_TRY(grammar, grammar::Grammar::compile(text));
  MC_CHECK(words_->vocabulary.check(*grammar));
  auto masks = std::make_shared<grammar::Masks>(std::move(grammar), words_->vocabulary, words_->shared);
  known_[text] = {masks, ++uses_};
  make_room();
  return masks;
}

void Constraints::make_room() {
  size_t bytes = 0;
  for (const auto& [text, known] : known_) bytes += text.size() + known.masks->bytes();
  while (known_.size() > 1 && (bytes > bytes_max_ || known_.size() > kGrammarsMax)) {
    const auto oldest = std::min_element(known_.begin(), known_.end(),
                                         [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
    bytes -= oldest->first.size() + oldest->second.masks->bytes();
    known_.erase(oldest);
  }
}

Result<std::unique_ptr<Constraint>> Constraints::begin(const wire::Sampling& sampling,
                                                       std::span<const uint32_t> answer) {
  MC_ASSERT(!sampling.grammar.empty());
  if (!words_) return Error{Code::unsupported, missing_};
  MC_TRY(masks, masks_of(sampling.grammar));
  auto out = std::make_unique<Constraint>(std::move(masks), sampling.end_ids);
  for (const uint32_t token : answer) MC_CHECK(out->accept(token));
  return out;
}

}  // namespace mc::host
