#include "gpu/ptx/lexer.h"

#include <algorithm>
#include <charconv>

namespace mc::gpu::ptx {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == '$' || c == '%' ||
         c == '.';
}

}  // namespace

/// False at a comment that does not end.
bool Lexer::skip_space() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == '\n') ++line_;
    if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
      ++at_;
    } else if (text_.substr(at_, 2) == "//") {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (text_.substr(at_, 2) == "/*") {
      const size_t end = text_.find("*/", at_ + 2);
      if (end == std::string_view::npos) return false;
      line_ += static_cast<uint32_t>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                                text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
      at_ = end + 2;
    } else {
      break;
    }
  }
  return true;
}

char Lexer::peek() {
  skip_space();
  return at_ < text_.size() ? text_[at_] : '\0';
}

Token Lexer::next() {
  Token out;
  const bool sound = skip_space();
  out.line = line_;
  if (!sound) {
    out.kind = Token::Kind::bad;
    out.text = text_.substr(at_, 20);
    return out;
  }
  if (at_ == text_.size()) return out;
  const char c = text_[at_];
  size_t end = at_ + 1;
  if (c == '"') {
    end = std::min(text_.find_first_of("\"\n", end), text_.size());
    const bool closed = end < text_.size() && text_[end] == '"';
    out.kind = closed ? Token::Kind::text : Token::Kind::bad;
    if (closed) ++end;
  } else if (is_word(c)) {
    // Modifiers may hold "::", as in cp.async.bulk.shared::cluster. A single colon ends a label.
    while (end < text_.size() &&
           (is_word(text_[end]) || (text_.substr(end, 2) == "::" && end + 2 < text_.size() && is_word(text_[end + 2]))))
      end += text_[end] == ':' ? 2 : 1;
    out.kind = is_digit(c) ? Token::Kind::number : Token::Kind::word;
  } else {
    static constexpr std::string_view kMarks = "{}[](),;:@!<>+-|=";
    out.kind = kMarks.find(c) == std::string_view::npos ? Token::Kind::bad : Token::Kind::mark;
  }
  out.text = text_.substr(at_, end - at_);
  at_ = end;
  return out;
}

bool read_integer(std::string_view text, int64_t& out) {
  uint64_t value = 0;
  const bool hex = text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
  if (hex) text.remove_prefix(2);
  if (!text.empty() && text.back() == 'U') text.remove_suffix(1);
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value, hex ? 16 : 10);
  if (text.empty() || read.ec != std::errc{} || read.ptr != text.data() + text.size()) return false;
  out = static_cast<int64_t>(value);
  return true;
}

}  // namespace mc::gpu::ptx
