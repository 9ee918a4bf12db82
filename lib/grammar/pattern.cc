// Regular expressions of string schemas. A pattern is parsed to a tree and then written into the automaton, each
// character in the form that it has inside a JSON string.
#include <algorithm>
#include <bitset>
#include <cctype>
#include <optional>

#include "base/assert.h"
#include "base/units.h"
#include "grammar/schema.h"

namespace mc::grammar {
namespace {

constexpr size_t kPatternBytesMax = 2000;
constexpr int kGroupsMax = 32;  // groups inside each other
constexpr uint32_t kTimesMax = 1000;

/// Characters of ASCII, and whether those beyond it belong, all of them or none.
struct CharacterSet {
  std::bitset<128> ascii;
  bool wide = false;

  void add(uint32_t low, uint32_t high) {
    for (uint32_t c = low; c <= high; ++c) ascii.set(c);
  }
  void invert() { ascii.flip(), wide = !wide; }
};

struct Tree {
  enum class Kind : uint8_t { set, text, sequence, choice, times };
  Kind kind = Kind::sequence;
  CharacterSet set;
  std::string text;  // a character beyond ASCII
  std::vector<Tree> parts;
  uint32_t low = 0, high = kUnbounded;
};

class PatternParser {
 public:
  PatternParser(std::string_view pattern, const std::string& place) : rest_(pattern), place_(place) {}

  Result<Tree> parse() {
    MC_TRY(tree, choice(0));
    if (!rest_.empty()) return fail("a ) without its (");
    return tree;
  }

 private:
  Error fail(const std::string& what) const { return schema_error(place_, what); }
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  Tree any_text() const {
    Tree all;
    all.kind = Tree::Kind::set;
    all.set.invert();
    Tree out;
    out.kind = Tree::Kind::times;
    out.parts.push_back(std::move(all));
    return out;
  }

  Result<Tree> choice(int depth) {
    if (depth > kGroupsMax) return fail("groups are nested deeper than " + std::to_string(kGroupsMax));
    Tree out;
    out.kind = Tree::Kind::choice;
    do {
      MC_TRY(one, sequence(depth));
      out.parts.push_back(std::move(one));
    } while (take("|"));
    return out;
  }

  // A pattern may match anywhere in the string unless ^ and $ hold it.
  Result<Tree> sequence(int depth) {
    Tree out;
    if (depth == 0 && !take("^")) out.parts.push_back(any_text());
    bool is_held = false;
    while (!rest_.empty() && rest_[0] != '|' && rest_[0] != ')') {
      if (is_held) return fail("$ is supported at the end alone");
      if (depth == 0 && take("$")) {
        is_held = true;
        continue;
      }
      MC_TRY(one, repeated(depth));
      out.parts.push_back(std::move(one));
    }
    if (depth == 0 && !is_held) out.parts.push_back(any_text());
    return out;
  }

  Result<Tree> repeated(int depth) {
    MC_TRY(one, atom(depth));
    Tree out;
    out.kind = Tree::Kind::times;
    if (take("*"))
      out.low = 0;
    else if (take("+"))
      out.low = 1;
    else if (take("?"))
      out.high = 1;
    else if (take("{"))
      MC_CHECK(counts(out));
    else
      return one;
    (void)take("?");  // greedy or not, the same texts match
    if (!rest_.empty() && std::string_view("*+?{").find(rest_[0]) != std::string_view::npos)
      return fail("nothing can be repeated before " + std::string(1, rest_[0]));
    out.parts.push_back(std::move(one));
    return out;
  }

  Result<void> counts(Tree& out) {
    const size_t end = rest_.find('}');
    if (end == std::string_view::npos) return fail("a { without its }");
    const std::string_view inside = rest_.substr(0, end);
    const size_t comma = inside.find(',');
    const auto low = parse_u64(inside.substr(0, comma), 0, kTimesMax);
    const bool is_open = comma != std::string_view::npos && comma + 1 == inside.size();
    const auto high = is_open                           ? Result<uint64_t>(kUnbounded)
                      : comma == std::string_view::npos ? low
                                                        : parse_u64(inside.substr(comma + 1), 0, kTimesMax);
    if (!low || !high || *low > *high)
      return fail("{" + std::string(inside.substr(0, 20)) + "} is no count up to " + std::to_string(kTimesMax));
    out.low = static_cast<uint32_t>(*low), out.high = static_cast<uint32_t>(*high);
    rest_.remove_prefix(end + 1);
    return {};
  }

  Result<Tree> atom(int depth) {
    if (take("(")) {
      if (take("?:")) {
      } else if (take("?")) {
        return fail("groups that begin with (? are not supported, except (?:");
      }
      MC_TRY(inside, choice(depth + 1));
      if (!take(")")) return fail("a ( without its )");
      return inside;
    }
    Tree out;
    out.kind = Tree::Kind::set;
    if (take("[")) {
      MC_CHECK(character_class(out.set));
      return out;
    }
    if (take(".")) {
      out.set.add(0, 127), out.set.wide = true;
      out.set.ascii.reset(0x0A), out.set.ascii.reset(0x0D);
      return out;
    }
    if (std::string_view("*+?{^$").find(rest_[0]) != std::string_view::npos)
      return fail(std::string(1, rest_[0]) + " is not supported here");
    if (static_cast<uint8_t>(rest_[0]) >= 0x80) {
      size_t size = 1;
      while (size < rest_.size() && (static_cast<uint8_t>(rest_[size]) & 0xC0) == 0x80) ++size;
      out.kind = Tree::Kind::text;
      out.text = rest_.substr(0, size);
      rest_.remove_prefix(size);
      return out;
    }
    MC_CHECK(member(out.set));
    return out;
  }

  Result<void> character_class(CharacterSet& out) {
    const bool inverted = take("^");
    while (!take("]")) {
      if (rest_.empty()) return fail("a [ without its ]");
      MC_TRY(low, member(out));
      if (!low || rest_.size() < 2 || rest_[0] != '-' || rest_[1] == ']') continue;
      rest_.remove_prefix(1);
      CharacterSet end;
      MC_TRY(high, member(end));
      if (!high || *high < *low) return fail("a range in [] ends before it begins");
      out.add(*low, *high);
    }
    if (inverted) out.invert();
    return {};
  }

  /// Adds one character or class of characters; the character, if it was one.
  Result<std::optional<uint32_t>> member(CharacterSet& out) {
    if (rest_.empty()) return fail("the pattern ends too early");
    auto c = static_cast<uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    if (c >= 0x80) return fail("characters beyond ASCII are not supported in []");
    if (c == '\\') {
      if (rest_.empty()) return fail("the pattern ends with a \\");
      c = static_cast<uint8_t>(rest_[0]);
      rest_.remove_prefix(1);
      CharacterSet named;
      switch (c) {
        case 'd':
        case 'D': named.add('0', '9'); break;
        case 'w':
        case 'W': named.add('0', '9'), named.add('a', 'z'), named.add('A', 'Z'), named.add('_', '_'); break;
        case 's':
        case 'S': named.add('\t', '\r'), named.add(' ', ' '); break;
        case 't': c = '\t'; break;
        case 'n': c = '\n'; break;
        case 'r': c = '\r'; break;
        default:
          if (c >= 0x80 || std::isalnum(c)) return fail(std::string("\\") + static_cast<char>(c) + " is not supported");
      }
      if (named.ascii.any()) {
        if (c == 'D' || c == 'W' || c == 'S') named.invert();
        out.ascii |= named.ascii;
        out.wide = out.wide || named.wide;
        return std::optional<uint32_t>();
      }
    }
    out.add(c, c);
    return std::optional<uint32_t>(c);
  }

  std::string_view rest_;
  const std::string& place_;
};

class PatternWriter {
 public:
  PatternWriter(Builder& builder, const std::string& place) : builder_(builder), place_(place) {}

  Result<NodeId> write(const Tree& tree, NodeId from) {
    if (builder_.is_full()) return schema_error(place_, "the pattern is too large");
    switch (tree.kind) {
      case Tree::Kind::set: return write_set(tree.set, from);
      case Tree::Kind::text: return builder_.text(from, tree.text);
      case Tree::Kind::sequence:
        for (const Tree& part : tree.parts) {
          MC_TRY(next, write(part, from));
          from = next;
        }
        return from;
      case Tree::Kind::choice: {
        const NodeId to = builder_.node();
        for (const Tree& part : tree.parts) {
          MC_TRY(end, write(part, from));
          builder_.jump(end, to);
        }
        return to;
      }
      case Tree::Kind::times: break;
    }
    return write_times(tree, from);
  }

 private:
  Result<NodeId> write_times(const Tree& tree, NodeId from) {
    const Tree& part = tree.parts.front();
    for (uint32_t i = 0; i < tree.low; ++i) {
      MC_TRY(next, write(part, from));
      from = next;
    }
    if (tree.high == kUnbounded) {
      const NodeId loop = builder_.node();
      builder_.jump(from, loop);
      MC_TRY(again, write(part, loop));
      builder_.jump(again, loop);
      const NodeId to = builder_.node();
      builder_.jump(loop, to);
      return to;
    }
    const NodeId to = builder_.node();
    builder_.jump(from, to);
    for (uint32_t i = tree.low; i < tree.high; ++i) {
      MC_TRY(next, write(part, from));
      builder_.jump(next, to);
      from = next;
    }
    return to;
  }

  Result<NodeId> write_set(const CharacterSet& set, NodeId from) {
    const NodeId to = builder_.node();
    std::bitset<128> plain;
    bool any = false;
    for (size_t c = 0; c < 128; ++c) {
      if (!set.ascii.test(c)) continue;
      if (c >= 0x20 && c < 0x7F && c != '"' && c != '\\')
        plain.set(c);
      else if (c == '"' || c == '\\' || c == '\n' || c == '\r' || c == '\t')
        builder_.text(from, c == '"' ? "\\\"" : c == '\\' ? "\\\\" : c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t", to);
      else
        continue;  // another control character: a text without it matches as well
      any = true;
    }
    if (!any) return schema_error(place_, "a class of characters has none that is printable ASCII");
    builder_.characters(from, plain, to);
    if (set.wide) builder_.wide_character(from, to);
    return to;
  }

  Builder& builder_;
  const std::string& place_;
};

}  // namespace

Result<void> add_pattern(Builder& builder, std::string_view pattern, const std::string& place, NodeId from, NodeId to) {
  if (pattern.size() > kPatternBytesMax)
    return schema_error(place, "a pattern has at most " + std::to_string(kPatternBytesMax) + " bytes");
  MC_TRY(tree, PatternParser(pattern, place).parse());
  MC_TRY(end, PatternWriter(builder, place).write(tree, builder.text(from, "\"")));
  builder.text(end, "\"", to);
  return {};
}

namespace {

/// Adds the numbers of the digits [low, high], which have equal counts of digits.
void add_digits(Builder& builder, std::string_view low, std::string_view high, NodeId from, NodeId to) {
  MC_ASSERT(low.size() == high.size() && low <= high);
  if (low.empty()) return builder.jump(from, to);
  const auto digit = [&](char first, char last, std::string_view low_rest, std::string_view high_rest) {
    const NodeId next = builder.node();
    builder.bytes(from, static_cast<uint8_t>(first), static_cast<uint8_t>(last), next);
    add_digits(builder, low_rest, high_rest, next, to);
  };
  const std::string zeros(low.size() - 1, '0'), nines(low.size() - 1, '9');
  if (low[0] == high[0]) return digit(low[0], low[0], low.substr(1), high.substr(1));
  char first = low[0], last = high[0];
  if (low.substr(1) != zeros) digit(first, first, low.substr(1), nines), ++first;
  const bool cut = high.substr(1) != nines;
  if (cut) digit(last, last, zeros, high.substr(1)), --last;
  if (first <= last) digit(first, last, zeros, nines);
}

void add_naturals(Builder& builder, uint64_t low, uint64_t high, NodeId from, NodeId to) {
  while (low <= high) {
    std::string first = std::to_string(low);
    const std::string nines(first.size(), '9');
    const uint64_t last = std::min(high, static_cast<uint64_t>(std::stoull(nines)));
    add_digits(builder, first, std::to_string(last), from, to);
    low = last + 1;
  }
}

}  // namespace

void add_integers(Builder& builder, int64_t low, int64_t high, NodeId from, NodeId to) {
  MC_ASSERT_LE(low, high);
  if (high >= 0)
    add_naturals(builder, static_cast<uint64_t>(std::max<int64_t>(low, 0)), static_cast<uint64_t>(high), from, to);
  if (low >= 0) return;
  const auto nearest = static_cast<uint64_t>(-std::min<int64_t>(high, -1));
  add_naturals(builder, nearest, static_cast<uint64_t>(-low), builder.text(from, "-"), to);
}

}  // namespace mc::grammar
