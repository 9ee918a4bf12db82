// The place of a parser in the tokens of one template: it looks at tokens, passes over them, and makes the error
// of a token that does not fit, in the words of jinja2's parser.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "jinja/lex.h"

namespace mc::jinja {

class TokenCursor {
 public:
  explicit TokenCursor(std::string_view source) : tokens_(tokenize(source)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  /// The last token, `end` or `error`, stays current.
  void next() { at_ = std::min(at_ + 1, tokens_.size() - 1); }

  bool is(TokenType type) const { return current().type == type; }
  bool is_op(std::string_view text) const { return is(TokenType::op) && current().text == text; }
  bool is_name(std::string_view text) const { return is(TokenType::name) && current().text == text; }
  /// Passes over the token when it is this one.
  bool skip_op(std::string_view text);
  bool skip_name(std::string_view text);
  /// Passes over the token; invalid when it is another one.
  Result<void> expect(TokenType type);
  Result<void> expect_op(std::string_view text);
  Result<void> expect_name(std::string_view text);
  Result<std::string> expect_name();

  /// The lexer's error takes the place of `message` where the parser has reached it.
  Error fail(std::string message) const { return fail(std::move(message), current().at); }
  Error fail(std::string message, Position at) const;

 private:
  Error expected(std::string_view what) const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace mc::jinja
