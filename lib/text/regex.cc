// The fence around PCRE2.
#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/assert.h"
#include "unicode/unicode.h"
#include "unicode/utf8.h"

namespace mc::text {
namespace {

constexpr size_t kPatternBytesMax = 16 << 10;
constexpr uint32_t kParensMax = 100;
// A match is tried in a window of kWindowBytes with kStepsPerByte steps (backtracking points) for each byte. Both grow
// fourfold when they do not suffice. Released patterns take at most two steps a byte.
constexpr size_t kWindowBytes = 64, kStepsPerByte = 4, kGrowth = 4;
constexpr size_t kStepsMax = 20'000'000;  // besides the steps for each byte
// A match with these sizes or more is timed by two readings of the clock.
constexpr size_t kTimedWindow = 4096, kTimedSteps = 1 << 16;
constexpr uint32_t kHeapLimitKib = 256 << 10;
constexpr size_t kHeapKeptWindow = 1 << 16;  // after a longer subject the stack is freed, so that no thread keeps it
constexpr size_t kJitStackBytes = 1 << 20;

// Members of a character class. Oniguruma's \s is Unicode's White_Space, PCRE2's adds U+180E; its \w is
// UTS #18's (letters, marks, decimal digits, connectors, and the Alphabetic symbols) with the superscripts and
// fractions of Latin-1, PCRE2 10.42's lacks the marks and the Alphabetic symbols.
constexpr std::string_view kSpaceClass = "\\t-\\r\\x{85}\\p{Z}";
constexpr std::string_view kWordClass =
    "\\p{L}\\p{M}\\p{Nl}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{"
    "1f150}-\\x{1f169}\\x{1f170}-\\x{"
    "1f189}";

Error refuse(size_t offset, std::string_view what) {
  return {Code::unsupported,
          "text: pre-tokenizer pattern, offset " + std::to_string(offset) + ": " + std::string(what)};
}

/// Groups that mean the same in both syntaxes: plain, non-capturing (with i and x), look-around, atomic.
bool known_group(std::string_view group) {
  if (!group.starts_with("(?")) return !group.starts_with("(*");
  for (std::string_view start : {"(?=", "(?!", "(?<=", "(?<!", "(?>"})
    if (group.starts_with(start)) return true;
  const size_t end = group.find_first_not_of("ix-", 2);
  return end != std::string_view::npos && (group[end] == ':' || group[end] == ')');
}

/// Rewrites constructs that PCRE2 reads differently. Refuses those that have no equal in PCRE2.
Result<std::string> translate(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  size_t class_begin = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const std::string_view rest = pattern.substr(i);
    if (c == '\\') {
      if (i + 1 == pattern.size()) return refuse(i, "a backslash at the end");
      const char e = pattern[++i];
      if (e == 's' || e == 'w') {
        const std::string_view members = e == 's' ? kSpaceClass : kWordClass;
        out += in_class ? std::string(members) : "[" + std::string(members) + "]";
      } else if (e == 'S' || e == 'W') {
        // A negated class inside a class has no spelling as members; PCRE2's own differs in U+180E only.
        out += in_class ? std::string{'\\', e} : "[^" + std::string(e == 'S' ? kSpaceClass : kWordClass) + "]";
      } else if (std::string_view("hHRXKCGgkyYO").find(e) != std::string_view::npos) {
        return refuse(i - 1, std::string("\\") + e + " is not supported");
      } else {
        out += {c, e};
      }
    } else if (in_class) {
      if (c == '[' && !rest.starts_with("[:")) return refuse(i, "a class inside a class is not supported");
      if (rest.starts_with("&&")) return refuse(i, "an intersection of classes is not supported");
      if (rest.starts_with("[:")) {
        const size_t close = rest.find(":]");
        if (close == std::string_view::npos) return refuse(i, "an unfinished [: in a class");
        out += rest.substr(0, close + 2);
        i += close + 1;
        continue;
      }
      if (c == ']' && i > class_begin) in_class = false;
      out += c;
    } else if (c == '[') {
      in_class = true;
      out += c;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      class_begin = i + 1;  // a ] right here would be a member
    } else if (c == '(' && !known_group(rest)) {
      return refuse(i, "the group " + std::string(rest.substr(0, 3)) + " is not supported");
    } else {
      out += c;
    }
  }
  return out;
}

/// Characters that a pattern names, one by one or as a range.
struct Named {
  char32_t first = 0, last = 0;
  bool holds(char32_t c) const { return first <= c && c <= last; }
};

/// The character that the pattern names at `at`, which moves behind it; 0 for a property, an escape and an operator.
char32_t read_named(std::string_view pattern, size_t& at) {
  const std::string_view rest = pattern.substr(at);
  if (rest[0] != '\\') {
    const unicode::CodePoint c = unicode::decode_utf8(rest);
    at += c.bytes;
    return c.value;
  }
  const size_t close = rest.starts_with("\\x{") ? rest.find('}') : std::string_view::npos;
  at += close == std::string_view::npos ? std::min<size_t>(2, rest.size()) : close + 1;
  if (close == std::string_view::npos) return 0;
  uint32_t value = 0;
  (void)std::from_chars(rest.data() + 3, rest.data() + close, value, 16);
  return value;
}

std::vector<Named> named_characters(std::string_view pattern) {
  std::vector<Named> out;
  bool in_class = false;
  for (size_t at = 0; at < pattern.size();) {
    const char c = pattern[at];
    const char32_t first = read_named(pattern, at);
    if (c == '[' || c == ']') in_class = c == '[';
    char32_t last = first;
    if (in_class && at + 1 < pattern.size() && pattern[at] == '-' && pattern[at + 1] != ']')
      last = read_named(pattern, ++at);
    if (last >= unicode::recent_ranges().front().first) out.push_back({first, last});
  }
  return out;
}

/// By row of unicode::recent_ranges(): whether the characters may be matched as their stand-in. They may not where the
/// pattern names some of them, or the stand-in alone.
std::vector<bool> allowed_stand_ins(std::string_view pattern) {
  const std::vector<Named> named = named_characters(pattern);
  std::vector<bool> out;
  for (const unicode::RecentRange& range : unicode::recent_ranges())
    out.push_back(std::none_of(named.begin(), named.end(), [&](const Named& n) {
      const bool all = n.holds(range.first) && n.holds(range.last);
      const bool none = n.last < range.first || range.last < n.first;
      return n.holds(range.stand_in) ? !all : !none;
    }));
  return out;
}

/// The first bytes of the characters in unicode::recent_ranges().
std::array<bool, 256> recent_leads() {
  std::array<bool, 256> out{};
  for (const unicode::RecentRange& range : unicode::recent_ranges())
    for (char32_t c : {range.first, range.last}) {
      std::string spelt;
      unicode::append_utf8(spelt, c);
      out[static_cast<uint8_t>(spelt[0])] = true;
    }
  return out;
}

struct MatchDataFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct ContextFree {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};

/// The buffers of a match. Each thread has one set, because creating it costs more than a short match. The buffers
/// hold no part of a subject between calls.
struct Workspace {
  std::unique_ptr<pcre2_match_context, ContextFree> context{pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, ContextFree> stack{pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr)};
  std::unique_ptr<pcre2_match_data, MatchDataFree> data{pcre2_match_data_create(1, nullptr)};

  Workspace() {
    MC_ASSERT(context && stack && data);
    pcre2_set_heap_limit(context.get(), kHeapLimitKib);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

Workspace& workspace() {
  thread_local Workspace workspace;
  return workspace;
}

std::string pcre2_text(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Regex::Program {
  pcre2_code* code = nullptr;
  std::vector<bool> stand_ins;  // allowed_stand_ins()
  bool jit = false;  // false where the architecture or a kernel policy forbids it; matching is slower then, but right
  ~Program() { pcre2_code_free(code); }
  int attempt(PCRE2_SPTR subject, size_t end, size_t from, bool is_whole, size_t steps) const;
  int match(PCRE2_SPTR subject, size_t length, size_t from, Work& work) const;
};

/// Tries one match without reading beyond `end`. PCRE2_ERROR_PARTIAL when `end` is not the subject's end and the match
/// reaches it.
int Regex::Program::attempt(PCRE2_SPTR subject, size_t end, size_t from, bool is_whole, size_t steps) const {
  Workspace& work = workspace();
  const uint32_t partial = is_whole ? 0 : PCRE2_PARTIAL_HARD;
  pcre2_set_match_limit(work.context.get(), static_cast<uint32_t>(steps));
  int rc = PCRE2_ERROR_JIT_STACKLIMIT;
  if (jit) rc = pcre2_jit_match(code, subject, end, from, partial, work.data.get(), work.context.get());
  if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
  // The interpreter keeps its stack on the heap, within its limit.
  rc = pcre2_match(code, subject, end, from, partial | PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, work.data.get(),
                   work.context.get());
  if (end - from > kHeapKeptWindow && rc < 0) work.data.reset(pcre2_match_data_create(1, nullptr));
  return rc;
}

/// The first match at or after `from`, PCRE2_ERROR_NOMATCH, or PCRE2_ERROR_MATCHLIMIT when it would take too long.
int Regex::Program::match(PCRE2_SPTR subject, size_t length, size_t from, Work& work) const {
  size_t window = kWindowBytes, steps_per_byte = kStepsPerByte;
  while (true) {
    size_t end = std::min(length, from + window);
    while (end < length && (subject[end] & 0xC0) == 0x80) ++end;
    const bool is_whole = end == length;
    const size_t steps = (end - from + kWindowBytes) * steps_per_byte;
    const bool is_timed = window >= kTimedWindow || steps >= kTimedSteps;
    const Duration began = is_timed ? work.spent() : Duration{};
    const int rc = attempt(subject, end, from, is_whole, steps);
    // A match that ends at the window's end might be longer in a larger window.
    const bool touches_end = rc >= 0 && !is_whole && pcre2_get_ovector_pointer(workspace().data.get())[1] >= end;
    const bool is_short = rc == PCRE2_ERROR_PARTIAL || (rc == PCRE2_ERROR_NOMATCH && !is_whole) || touches_end;
    if (!is_short && (rc != PCRE2_ERROR_MATCHLIMIT || steps * kGrowth > kStepsMax)) return rc;
    // A step looks at no more than the window, so the next attempt takes at most kGrowth times as long for each of the
    // two that grows, squared for the window, which bounds the steps as well.
    const int64_t factor = is_short ? kGrowth * kGrowth : kGrowth;
    const bool may_go_on = is_timed ? work.may_spend((work.spent() - began) * factor) : work.may_match(steps);
    if (!may_go_on) return PCRE2_ERROR_MATCHLIMIT;
    (is_short ? window : steps_per_byte) *= kGrowth;
  }
}

Regex::Regex(std::unique_ptr<const Program> program) : program_(std::move(program)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::compile(std::string_view pattern, PatternSyntax syntax) {
  if (pattern.size() > kPatternBytesMax)
    return refuse(
        0, "it has " + std::to_string(pattern.size()) + " bytes; the most is " + std::to_string(kPatternBytesMax));
  MC_TRY(translated, translate(pattern));
  std::unique_ptr<pcre2_compile_context, ContextFree> context(pcre2_compile_context_create(nullptr));
  MC_ASSERT(context != nullptr);
  pcre2_set_parens_nest_limit(context.get(), kParensMax);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // MULTILINE because ^ and $ mean lines in Ruby's syntax. Without it $ also matches before a line feed at the end.
  const uint32_t lines = syntax == PatternSyntax::ruby ? PCRE2_MULTILINE : PCRE2_DOLLAR_ENDONLY;
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | lines;
  auto program = std::make_unique<Program>();
  program->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options, &error,
                                &offset, context.get());
  if (program->code == nullptr)
    return Error{Code::unsupported, "text: pre-tokenizer pattern: " + pcre2_text(error) + ": " + std::string(pattern)};
  program->stand_ins = allowed_stand_ins(translated);
  program->jit = pcre2_jit_compile(program->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
  return Regex(std::move(program));
}

std::string Regex::quote(std::string_view literal) {
  std::string out;
  for (char c : literal) {
    if (std::string_view("\\^$.[]|()?*+{}-#&~ ").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string_view Regex::subject(std::string_view text, std::string& buffer) const {
  static const std::array<bool, 256> kLeads = recent_leads();
  const auto ranges = unicode::recent_ranges();
  bool is_changed = false;
  std::string spelt;
  for (size_t at = 0; at < text.size();) {
    if (!kLeads[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    const unicode::CodePoint c = unicode::decode_utf8(text.substr(at));
    const unicode::RecentRange* range = unicode::recent_range(c.value);
    if (range && program_->stand_ins[static_cast<size_t>(range - ranges.data())]) {
      if (!is_changed) buffer = text;
      is_changed = true;
      spelt.clear();
      unicode::append_utf8(spelt, range->stand_in);
      MC_ASSERT_EQ(spelt.size(), c.bytes);
      buffer.replace(at, c.bytes, spelt);
    }
    at += c.bytes;
  }
  return is_changed ? std::string_view(buffer) : text;
}

Result<void> Regex::split_some(std::string_view text, Cursor& cursor, size_t spans, std::vector<Span>& out,
                               Work& work) const {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data()) + cursor.begin;
  const uint32_t begin = cursor.begin, length = cursor.end - cursor.begin;
  uint32_t from = cursor.from - begin, last_end = cursor.last_end - begin;
  const size_t enough = out.size() + spans;
  while (from <= length && out.size() < enough) {
    const int rc = work.may_match() ? program_->match(subject, length, from, work) : PCRE2_ERROR_MATCHLIMIT;
    if (rc == PCRE2_ERROR_NOMATCH) {
      from = length + 1;
      break;
    }
    if (rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_HEAPLIMIT) return work.match_error(begin + from);
    if (rc < 0)
      return Error{Code::unsupported, "text: pre-tokenizer pattern gave up at byte " + std::to_string(begin + from) +
                                          ": " + pcre2_text(rc)};
    const PCRE2_SIZE* where = pcre2_get_ovector_pointer(workspace().data.get());
    const auto match_begin = static_cast<uint32_t>(where[0]), match_end = static_cast<uint32_t>(where[1]);
    if (match_begin > match_end)  // \K in a look-ahead could do this, but translate() refuses \K, so this is a bug
      return Error{Code::unsupported, "text: pre-tokenizer pattern matched backwards"};
    // An empty match right after a match does not count, as in Oniguruma's iterator.
    if (match_begin == match_end && cursor.any && match_end == last_end) {
      ++from;
      while (from < length && (subject[from] & 0xC0) == 0x80) ++from;
      continue;
    }
    if (match_begin > last_end) out.push_back({begin + last_end, begin + match_begin, false});
    out.push_back({begin + match_begin, begin + match_end, true});
    from = last_end = match_end;
    cursor.any = true;
  }
  cursor.done = from > length;
  if (cursor.done && last_end < length) out.push_back({begin + last_end, cursor.end, false});
  cursor.from = begin + from;
  cursor.last_end = begin + last_end;
  return {};
}

Result<void> Regex::split(std::string_view text, uint32_t begin, uint32_t end, std::vector<Span>& out,
                          Work& work) const {
  Cursor cursor(begin, end);
  return split_some(text, cursor, text.size() * 2 + 2, out, work);
}

Result<void> Regex::split(std::string_view text, uint32_t begin, uint32_t end, std::vector<Span>& out) const {
  const EncodeLimits limits;
  Work work(end - begin, 1, limits);
  std::string buffer;
  return split(subject(text, buffer), begin, end, out, work);
}

}  // namespace mc::text
