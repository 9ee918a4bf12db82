// Tokens of PTX text (PTX ISA 9.0, section 4): words (%r1, .reg, ld.global.u32, $L__BB0_2), numbers, quoted text and
// single marks; comments and white space lie between them.
#pragma once

#include <cstdint>
#include <string_view>

namespace mc::gpu::ptx {

struct Token {
  enum class Kind : uint8_t { end, word, number, text, mark, bad };
  Kind kind = Kind::end;
  std::string_view text;
  uint32_t line = 1;
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}
  Token next();
  /// The next character that is not white space, or 0.
  char peek();

 private:
  bool skip_space();

  std::string_view text_;
  size_t at_ = 0;
  uint32_t line_ = 1;
};

/// Decimal or 0x; false when it is none or does not fit 64 bits.
bool read_integer(std::string_view text, int64_t& out);

}  // namespace mc::gpu::ptx
