// Template source to tokens, after jinja2's rules with trim_blocks and lstrip_blocks: a tag's line break
// and the blanks in front of it do not count, - and + in a tag say otherwise. A malformed source ends
// in a token of type `error`, which the parser reports when it gets there.
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
  std::string text;  // data, name, operator; string: its value
  Position at;
  int64_t integer = 0;
  double real = 0;
};

/// `source` is valid UTF-8. The last token is `end` or `error`.
std::vector<Token> tokenize(std::string_view source);
/// As jinja2's messages name a token: "end of print statement".
std::string describe(const Token& token);

}  // namespace mc::jinja
