#include "jinja/lex.h"

#include <charconv>
#include <cstdlib>

#include "unicode/unicode.h"
#include "unicode/utf8.h"

namespace mc::jinja {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// The source with \n for every line break, without the line break at its end.
std::string normal_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normal_lines(source)) {}

  std::vector<Token> run() {
    while (!failed_ && at_ < source_.size()) root();
    if (!failed_) push(TokenType::end, {});
    return std::move(tokens_);
  }

 private:
  struct Opening {
    char kind = 0;  // '{' variable, '%' block, '#' comment, 'r' raw
    size_t begin = 0, end = 0;
    char sign = 0;
  };

  bool starts(size_t at, std::string_view text) const { return std::string_view(source_).substr(at).starts_with(text); }
  size_t skip_space(size_t at) const {
    while (at < source_.size()) {
      const unicode::CodePoint c = unicode::decode_utf8(std::string_view(source_).substr(at));
      if (!is_python_space(c.value)) break;
      at += c.bytes;
    }
    return at;
  }

  /// Tokens are made in order, so the count goes on from the position of the last token.
  Position position(size_t at) {
    for (; counted_ < at; ++counted_) {
      const auto byte = static_cast<uint8_t>(source_[counted_]);
      if (byte == '\n')
        position_ = {position_.line + 1, 1};
      else if ((byte & 0xC0) != 0x80)
        ++position_.column;
    }
    return position_;
  }
  Token& push(TokenType type, std::string text) { return push(type, std::move(text), at_); }
  Token& push(TokenType type, std::string text, size_t at) {
    tokens_.push_back({type, std::move(text), position(at)});
    return tokens_.back();
  }
  void fail(std::string message) { fail(std::move(message), at_); }
  void fail(std::string message, size_t at) {
    push(TokenType::error, std::move(message), at);
    failed_ = true;
  }

  /// The end of the tag {% raw %} (or {% endraw %}) that begins at `at`, or 0 when there is none.
  size_t raw_end(size_t at, std::string_view word, char& sign) const {
    size_t i = at + 2;
    sign = 0;
    if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) sign = source_[i++];
    i = skip_space(i);
    if (!starts(i, word)) return 0;
    i = skip_space(i + word.size());
    if (starts(i, "-%}")) return skip_space(i + 3);
    if (word == "endraw" && starts(i, "+%}")) return i + 3;
    if (!starts(i, "%}")) return 0;
    i += 2;
    return word == "endraw" && starts(i, "\n") ? i + 1 : i;
  }

  Opening next_opening() const {
    for (size_t i = source_.find('{', at_); i != std::string::npos; i = source_.find('{', i + 1)) {
      const char kind = i + 1 < source_.size() ? source_[i + 1] : '\0';
      if (kind != '{' && kind != '%' && kind != '#') continue;
      Opening out{kind, i, i + 2};
      if (kind == '%')
        if (const size_t end = raw_end(i, "raw", out.sign)) return {'r', i, end, out.sign};
      out.sign = 0;
      if (out.end < source_.size() && (source_[out.end] == '-' || source_[out.end] == '+'))
        out.sign = source_[out.end++];
      return out;
    }
    return {};
  }

  /// The text in front of a tag without the white space that lstrip_blocks or the tag's sign drops.
  std::string_view stripped(std::string_view text, char sign, bool variable) const {
    if (sign == '-') {
      while (!text.empty()) {
        const unicode::CodePoint c = unicode::decode_utf8_back(text);
        if (!is_python_space(c.value)) break;
        text.remove_suffix(c.bytes);
      }
      return text;
    }
    if (sign == '+' || variable) return text;
    const size_t line = text.rfind('\n') + 1;  // 0 when there is none
    if (line == 0 && !line_starting_) return text;
    for (size_t i = line; i < text.size();) {
      const unicode::CodePoint c = unicode::decode_utf8(text.substr(i));
      if (!is_python_space(c.value)) return text;
      i += c.bytes;
    }
    return text.substr(0, line);
  }

  void add_data(std::string_view text, size_t at) {
    if (!text.empty()) push(TokenType::data, std::string(text), at);
  }
  void move_to(size_t end) {
    line_starting_ = end > 0 && source_[end - 1] == '\n';
    at_ = end;
  }

  void root() {
    const Opening opening = next_opening();
    if (opening.kind == 0) {
      add_data(std::string_view(source_).substr(at_), at_);
      at_ = source_.size();
      return;
    }
    const std::string_view text = std::string_view(source_).substr(at_, opening.begin - at_);
    add_data(stripped(text, opening.sign, opening.kind == '{'), at_);
    const size_t begin = opening.begin;
    if (opening.kind == '{') push(TokenType::variable_begin, "{{", begin);
    if (opening.kind == '%') push(TokenType::block_begin, "{%", begin);
    move_to(opening.end);
    if (opening.kind == '#') return comment();
    if (opening.kind == 'r') return raw();
    tag(opening.kind == '{');
  }

  void comment() {
    const size_t close = source_.find("#}", at_);
    if (close == std::string::npos) return fail("Missing end of comment tag");
    size_t end = close + 2;
    const char sign = close > at_ ? source_[close - 1] : '\0';
    if (sign == '-')
      end = skip_space(end);
    else if (sign != '+' && starts(end, "\n"))
      ++end;
    move_to(end);
  }

  void raw() {
    for (size_t i = source_.find("{%", at_); i != std::string::npos; i = source_.find("{%", i + 1)) {
      char sign = 0;
      const size_t end = raw_end(i, "endraw", sign);
      if (end == 0) continue;
      add_data(stripped(std::string_view(source_).substr(at_, i - at_), sign, false), at_);
      return move_to(end);
    }
    fail("Missing end of raw directive");
  }

  /// The position behind a tag's end when the tag ends here, or 0.
  size_t tag_end(bool variable) const {
    if (variable) {
      if (starts(at_, "-}}")) return skip_space(at_ + 3);
      return starts(at_, "}}") ? at_ + 2 : 0;
    }
    if (starts(at_, "+%}")) return at_ + 3;
    if (starts(at_, "-%}")) return skip_space(at_ + 3);
    if (!starts(at_, "%}")) return 0;
    return starts(at_ + 2, "\n") ? at_ + 3 : at_ + 2;
  }

  void tag(bool variable) {
    std::string open;  // brackets that are still open
    while (!failed_ && at_ < source_.size()) {
      if (open.empty())
        if (const size_t end = tag_end(variable)) {
          push(variable ? TokenType::variable_end : TokenType::block_end, variable ? "}}" : "%}");
          return move_to(end);
        }
      if (const size_t next = skip_space(at_); next != at_) {
        at_ = next;
      } else if (is_digit(source_[at_])) {
        number();
      } else if (const size_t end = name_end(at_); end != at_) {
        if (unicode::is_decimal(unicode::decode_utf8(std::string_view(source_).substr(at_)).value))
          return fail("Invalid character in identifier");
        push(TokenType::name, source_.substr(at_, end - at_));
        at_ = end;
      } else if ((source_[at_] != '\'' && source_[at_] != '"') || !string()) {
        if (!failed_) op(open);
      }
    }
  }

  size_t name_end(size_t at) const {
    while (at < source_.size()) {
      const unicode::CodePoint c = unicode::decode_utf8(std::string_view(source_).substr(at));
      if (!unicode::is_word(c.value)) break;
      at += c.bytes;
    }
    return at;
  }

  /// Digits with single underscores between them, from `at` to the returned end.
  size_t digits_end(size_t at, bool (*allowed)(char)) const {
    if (at >= source_.size() || !allowed(source_[at])) return at;
    while (at < source_.size()) {
      if (allowed(source_[at]))
        ++at;
      else if (source_[at] == '_' && at + 1 < source_.size() && allowed(source_[at + 1]))
        at += 2;
      else
        break;
    }
    return at;
  }

  void number() {
    size_t end = digits_end(at_, is_digit);
    bool real = false;
    // "1.2" is a number. In "x.2.3" each dot is an attribute access, so "2.3" is none.
    if (at_ == 0 || source_[at_ - 1] != '.') {
      if (end < source_.size() && source_[end] == '.')
        if (const size_t fraction = digits_end(end + 1, is_digit); fraction != end + 1) {
          end = fraction;
          real = true;
        }
      if (end < source_.size() && (source_[end] | 32) == 'e') {
        size_t power = end + 1;
        if (power < source_.size() && (source_[power] == '+' || source_[power] == '-')) ++power;
        if (const size_t stop = digits_end(power, is_digit); stop != power) {
          end = stop;
          real = true;
        }
      }
    }
    if (!real) return integer();
    std::string text;
    for (const char c : source_.substr(at_, end - at_))
      if (c != '_') text += c;
    push(TokenType::real, text).real = std::strtod(text.c_str(), nullptr);
    at_ = end;
  }

  void integer() {
    int base = 10;
    size_t begin = at_, end = at_;
    if (source_[at_] == '0') {
      const char letter = at_ + 1 < source_.size() ? static_cast<char>(source_[at_ + 1] | 32) : '\0';
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
      const auto allowed = base == 16  ? [](char c) { return is_digit(c) || ((c | 32) >= 'a' && (c | 32) <= 'f'); }
                           : base == 8 ? [](char c) { return c >= '0' && c <= '7'; }
                           : base == 2 ? [](char c) { return c == '0' || c == '1'; }
                                       : [](char c) { return c == '0'; };
      begin = base == 10 ? at_ : at_ + 2;
      if (base != 10 && begin < source_.size() && source_[begin] == '_') ++begin;
      end = digits_end(begin, allowed);
      if (end == begin) {  // "0x" alone is a zero and a name
        base = 10;
        begin = at_;
        end = at_ + 1;
      }
    } else {
      end = digits_end(at_, is_digit);
    }
    std::string text;
    for (const char c : source_.substr(begin, end - begin))
      if (c != '_') text += c;
    int64_t value = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), value, base).ec != std::errc{})
      return fail("integer " + text.substr(0, 40) + " is outside 64 bits");
    push(TokenType::integer, text).integer = value;
    at_ = end;
  }

  bool string();
  void op(std::string& open);

  std::string source_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  size_t counted_ = 0;
  Position position_;
  bool line_starting_ = true;
  bool failed_ = false;
};

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  const char lower = static_cast<char>(c | 32);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/// One escape of Python's "unicode-escape"; `at` is behind the backslash. Returns an error or "".
std::string unescape(std::string_view text, size_t& at, std::string& out) {
  constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
  const char c = text[at++];
  if (c == '\n') return {};
  if (const size_t simple = kFrom.find(c); simple != std::string_view::npos) {
    out += kTo[simple];
    return {};
  }
  char32_t value = 0;
  if (c >= '0' && c <= '7') {
    --at;
    for (int i = 0; i < 3 && at < text.size() && text[at] >= '0' && text[at] <= '7'; ++i)
      value = value * 8 + static_cast<char32_t>(text[at++] - '0');
  } else if (c == 'x' || c == 'u' || c == 'U') {
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
    for (size_t i = 0; i < digits; ++i, ++at) {
      const int digit = at < text.size() ? hex_digit(text[at]) : -1;
      if (digit < 0) return std::string("truncated \\") + c + std::string(digits, 'X') + " escape";
      value = value * 16 + static_cast<char32_t>(digit);
    }
    if (value > 0x10FFFF) return "illegal Unicode character";
  } else if (c == 'N') {
    return "\\N{...} names are not supported";
  } else {
    (out += '\\') += c;
    return {};
  }
  unicode::append_utf8(out, value >= 0xD800 && value < 0xE000 ? 0xFFFD : value);
  return {};
}

bool Lexer::string() {
  const char quote = source_[at_];
  size_t end = at_ + 1;
  while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
  if (end >= source_.size()) return false;  // the string is not closed
  const std::string_view body = std::string_view(source_).substr(at_ + 1, end - at_ - 1);
  std::string value;
  for (size_t i = 0; i < body.size();) {
    if (body[i] != '\\') {
      value += body[i++];
      continue;
    }
    ++i;
    if (std::string error = unescape(body, i, value); !error.empty()) {
      fail(std::move(error));
      return true;
    }
  }
  push(TokenType::string, std::move(value));
  at_ = end + 1;
  return true;
}

void Lexer::op(std::string& open) {
  constexpr std::string_view kPairs[] = {"//", "**", "==", "!=", ">=", "<="};
  std::string_view found;
  for (std::string_view pair : kPairs)
    if (starts(at_, pair)) found = pair;
  if (found.empty() && std::string_view("+-/*%~[](){}><=.:|,;").find(source_[at_]) != std::string_view::npos)
    found = std::string_view(source_).substr(at_, 1);
  if (found.empty()) {
    const unicode::CodePoint c = unicode::decode_utf8(std::string_view(source_).substr(at_));
    const std::string character = source_.substr(at_, c.bytes);
    size_t offset = 0;
    for (size_t i = 0; i < at_; ++i) offset += (static_cast<uint8_t>(source_[i]) & 0xC0) != 0x80;
    return fail("unexpected char " + (character == "'" ? "\"'\"" : "'" + character + "'") + " at " +
                std::to_string(offset));
  }
  const char c = found[0];
  if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
  if (c == ')' || c == ']' || c == '}') {
    if (open.empty()) return fail(std::string("unexpected '") + c + "'");
    const char expected = open.back();
    open.pop_back();
    if (expected != c) return fail(std::string("unexpected '") + c + "', expected '" + expected + "'");
  }
  push(TokenType::op, std::string(found));
  at_ += found.size();
}

}  // namespace

bool is_python_space(char32_t c) {
  return unicode::is_space(c) || (c >= 0x1C && c <= 0x1F);
}

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(source).run();
}

std::string describe(const Token& token) {
  switch (token.type) {
    case TokenType::data: return "template data / text";
    case TokenType::variable_begin: return "begin of print statement";
    case TokenType::variable_end: return "end of print statement";
    case TokenType::block_begin: return "begin of statement block";
    case TokenType::block_end: return "end of statement block";
    case TokenType::string: return "string";
    case TokenType::integer: return "integer";
    case TokenType::real: return "float";
    case TokenType::end: return "end of template";
    default: return token.text;
  }
}

}  // namespace mc::jinja
