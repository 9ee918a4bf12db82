#include "node/answer_tokens.h"

#include "base/assert.h"

namespace mc::node {

void AnswerTokens::put(Token token, Finish finish) {
  if (token.index < given_.size()) return;
  if (finish != Finish::none) finish_ = finish, last_index_ = token.index;
  const uint32_t index = token.index;
  early_.emplace(index, std::move(token));
}

std::optional<AnswerTokens::Token> AnswerTokens::take(bool first_with_second) {
  if (first_with_second && given_.empty() && early_.size() < 2 && finish_ == Finish::none) return std::nullopt;
  if (early_.empty() || early_.begin()->first != given_.size()) return std::nullopt;
  auto next = early_.extract(early_.begin());
  MC_ASSERT_EQ(next.mapped().index, given_.size());
  given_.push_back(next.mapped().token);
  return std::move(next.mapped());
}

void AnswerTokens::restart() {
  early_.clear();
  finish_ = Finish::none;
  last_index_ = 0;
}

}  // namespace mc::node
