#include "jinja/token_cursor.h"

#include "jinja/tree.h"

namespace mc::jinja {

bool TokenCursor::skip_op(std::string_view text) {
  const bool found = is_op(text);
  if (found) next();
  return found;
}
bool TokenCursor::skip_name(std::string_view text) {
  const bool found = is_name(text);
  if (found) next();
  return found;
}

Error TokenCursor::fail(std::string message, Position at) const {
  if (is(TokenType::error)) return placed(current().at, failure("TemplateSyntaxError", current().text));
  return placed(at, failure("TemplateSyntaxError", std::move(message)));
}

Error TokenCursor::expected(std::string_view what) const {
  if (is(TokenType::end)) return fail("unexpected end of template, expected '" + std::string(what) + "'.");
  return fail("expected token '" + std::string(what) + "', got '" + describe(current()) + "'");
}

Result<void> TokenCursor::expect(TokenType type) {
  if (!is(type)) return expected(describe(Token{type}));
  next();
  return {};
}
Result<void> TokenCursor::expect_op(std::string_view text) {
  if (!skip_op(text)) return expected(text);
  return {};
}
Result<void> TokenCursor::expect_name(std::string_view text) {
  if (!skip_name(text)) return expected(text);
  return {};
}
Result<std::string> TokenCursor::expect_name() {
  if (!is(TokenType::name)) return expected("name");
  std::string name = current().text;
  next();
  return name;
}

}  // namespace mc::jinja
