// The lexer: template source to tokens, by jinja2's rules with trim_blocks and lstrip_blocks. The line break behind a
// tag and the blanks in front of it are dropped, unless - or + in the tag changes that. The tokens of a malformed
// source end with one of type `error`, which the parser reports when it reaches it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mc::jinja {

struct Position {
  uint32_t line = 1;
  uint32_t column = 1;  // in characters
};

enum class TokenType : uint8_t {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  real,
  op,
  error,  // text: the message
  end,
};

struct Token {
  TokenType type = TokenType::end;
  std::string text;  // the source text of data, names and operators; the value of a string
  Position at;
  int64_t integer = 0;
  double real = 0;
};

/// `source` is valid UTF-8. The last token is `end` or `error`.
std::vector<Token> tokenize(std::string_view source);
/// White space as Python has it: of Unicode, and four control characters.
bool is_python_space(char32_t c);
/// A token's name in jinja2's messages: "end of print statement".
std::string describe(const Token& token);

}  // namespace mc::jinja
