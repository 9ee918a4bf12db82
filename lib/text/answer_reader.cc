#include "text/answer_reader.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/json.h"

namespace mc::text {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";
constexpr size_t kNameBytesMax = 128;

size_t blanks_in_front(std::string_view text) {
  return std::min(text.find_first_not_of(kBlanks), text.size());
}

size_t without_blanks_behind(std::string_view text) {
  const size_t last = text.find_last_not_of(kBlanks);
  return last == std::string_view::npos ? 0 : last + 1;
}

/// The number of bytes of `text` that are certain: blanks at its end wait for what follows them, up to a bound, because
/// every push reads all blanks that wait.
size_t certain_bytes(std::string_view text) {
  const size_t end = without_blanks_behind(text);
  return text.size() - end > AnswerReader::kBlanksMax ? text.size() : end;
}

/// The number of bytes at the end of `text` with which `mark` may begin.
size_t partial_mark(std::string_view text, std::string_view mark) {
  for (size_t size = std::min(text.size(), mark.size() - 1); size > 0; --size)
    if (mark.starts_with(text.substr(text.size() - size))) return size;
  return 0;
}

/// Whether `text` is the beginning of `mark`, and more may come.
bool may_become(std::string_view text, std::string_view mark) {
  return text.size() < mark.size() && mark.starts_with(text);
}

/// The text of a member of an object that is valid JSON; empty when there is none. The number and order of its bytes
/// are the model's: 1.0 stays 1.0.
std::string_view member_text(std::string_view object, std::string_view key) {
  size_t depth = 0, begin = 0;
  bool in_string = false, is_wanted = false;
  size_t string_begin = 0;
  for (size_t i = 0; i < object.size(); ++i) {
    const char c = object[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true, string_begin = i;
    if (c == '{' || c == '[') ++depth;
    const bool ends = depth == 1 && (c == ',' || c == '}');
    if (ends && is_wanted) {
      const std::string_view value = object.substr(begin, i - begin);
      const size_t front = blanks_in_front(value);
      return value.substr(front, without_blanks_behind(value) - front);
    }
    if (c == '}' || c == ']') --depth;
    if (c == ':' && depth == 1) {
      const std::string_view name =
          object.substr(string_begin, without_blanks_behind(object.substr(0, i)) - string_begin);
      const auto parsed = Json::parse("[" + std::string(name) + "]");
      is_wanted = parsed && (*parsed)[0].as_string() == key;
      begin = i + 1;
    }
  }
  return {};
}

Result<Json> parse_value(std::string_view text) {
  return Json::parse(text, {.bytes = AnswerReader::kCallBytesMax, .depth = 64, .values = size_t{1} << 17});
}

/// The arguments of a call: an object, or the text of one. Nothing when they are of another kind.
std::optional<std::string> arguments_of(const Json& call, std::string_view text) {
  for (const char* key : {"arguments", "parameters"}) {
    const Json* value = call.find(key);
    if (!value) continue;
    if (value->is_object()) return std::string(member_text(text, key));
    if (!value->is_string()) return std::nullopt;
    const auto inner = parse_value(value->as_string());
    if (!inner || !inner->is_object()) return std::nullopt;
    return std::string(value->as_string());
  }
  return "{}";
}

/// The texts of the elements of a list that is valid JSON.
std::vector<std::string_view> elements_of(std::string_view list) {
  std::vector<std::string_view> out;
  size_t depth = 0, begin = 1;
  bool in_string = false;
  for (size_t i = 0; i < list.size(); ++i) {
    const char c = list[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    in_string = c == '"';
    if (c == '{' || c == '[') ++depth;
    if ((c == ',' && depth == 1) || (c == ']' && depth == 1))
      out.push_back(list.substr(begin, i - begin)), begin = i + 1;
    if (c == '}' || c == ']') --depth;
  }
  return out;
}

}  // namespace

AnswerForm form_of_template(std::string_view source) {
  const auto has = [&](std::string_view text) { return source.find(text) != std::string_view::npos; };
  AnswerForm out;
  out.thinks = has(kThinkStart) || has(kThinkEnd);
  if (has(kMistralStart))
    out.calls = CallForm::mistral;
  else if (has(kTagStart))
    out.calls = CallForm::tagged;
  else if (has(kPythonTag) || (has("\"parameters\"") && has("ipython")))
    out.calls = CallForm::llama;
  else if (has("tools"))
    out.calls = CallForm::tagged;
  return out;
}

bool opens_thinking(std::span<const Part> prompt) {
  if (prompt.empty() || prompt.back().user) return false;
  const std::string_view text = prompt.back().text;
  return text.substr(0, without_blanks_behind(text)).ends_with(kThinkStart);
}

AnswerReader::AnswerReader(Options options)
    : options_(std::move(options)), phase_(options_.is_thinking ? Phase::thinking : Phase::start) {}

bool AnswerReader::is_mark(std::string_view token) const {
  if (options_.form.thinks && (token == kThinkStart || token == kThinkEnd)) return true;
  switch (options_.form.calls) {
    case CallForm::none: return false;
    case CallForm::tagged: return token == kTagStart || token == kTagEnd;
    case CallForm::llama: return token == kPythonTag;
    case CallForm::mistral: break;
  }
  return token == kMistralStart || token == kMistralArguments;
}

void AnswerReader::push(std::string_view text, std::vector<AnswerPart>& out) {
  held_ += text;
  while (advance(false, out)) {
  }
}

void AnswerReader::flush(std::vector<AnswerPart>& out) {
  while (advance(true, out)) {
  }
  held_.insert(0, std::exchange(opening_, {}));
  const bool is_blank = blanks_in_front(held_) == held_.size();
  if (!(is_blank && (calls_ > 0 || drops_blanks_))) put_content(held_, out);
  held_.clear();
}

/// One step; false when more text is needed, or none is left.
bool AnswerReader::advance(bool is_last, std::vector<AnswerPart>& out) {
  switch (phase_) {
    case Phase::start: return begin(is_last);
    case Phase::thinking: return think(is_last, out);
    case Phase::body: return options_.form.calls == CallForm::llama ? read_bare(is_last, out) : read_body(is_last, out);
    case Phase::call: break;
  }
  return read_call(is_last, out);
}

bool AnswerReader::begin(bool is_last) {
  const std::string_view text = std::string_view(held_).substr(blanks_in_front(held_));
  if (options_.form.thinks && text.starts_with(kThinkStart)) {
    held_.erase(0, held_.size() - text.size() + kThinkStart.size());
    phase_ = Phase::thinking;
    return true;
  }
  const bool waits = !is_last && held_.size() - text.size() <= kBlanksMax;
  if (options_.form.thinks && waits && may_become(text, kThinkStart)) return false;
  phase_ = Phase::body;
  return true;
}

// Blanks at both ends of the reasoning are the template's.
bool AnswerReader::think(bool is_last, std::vector<AnswerPart>& out) {
  if (at_begin_) held_.erase(0, blanks_in_front(held_));
  const size_t end = held_.find(kThinkEnd);
  const bool has_ended = end != std::string::npos;
  size_t shown = has_ended ? end : held_.size() - (is_last ? 0 : partial_mark(held_, kThinkEnd));
  const std::string_view text = std::string_view(held_).substr(0, shown);
  if (has_ended) shown = without_blanks_behind(text);
  if (!has_ended && !is_last) shown = certain_bytes(text);
  if (shown > 0) out.push_back({AnswerPart::Kind::reasoning, held_.substr(0, shown)});
  at_begin_ = at_begin_ && shown == 0;
  held_.erase(0, has_ended ? end + kThinkEnd.size() : shown);
  if (!has_ended) return false;
  phase_ = Phase::body;
  at_begin_ = drops_blanks_ = true;
  return true;
}

void AnswerReader::put_content(std::string_view text, std::vector<AnswerPart>& out) {
  if (text.empty()) return;
  at_begin_ = drops_blanks_ = false;
  if (!out.empty() && out.back().kind == AnswerPart::Kind::content)
    out.back().text += text;
  else
    out.push_back({AnswerPart::Kind::content, std::string(text)});
}

bool AnswerReader::read_body(bool is_last, std::vector<AnswerPart>& out) {
  if (drops_blanks_) held_.erase(0, blanks_in_front(held_));
  if (options_.form.calls == CallForm::none || given_up_ > kGivenUpMax) {
    put_content(held_, out);
    held_.clear();
    return false;
  }
  const size_t start = held_.find(mark());
  if (start == std::string::npos) {
    if (is_last) return false;  // flush() gives the rest
    // Blanks in front of a call belong to nothing, so they wait.
    const size_t certain = held_.size() - partial_mark(held_, mark());
    const size_t shown = certain_bytes(std::string_view(held_).substr(0, certain));
    put_content(std::string_view(held_).substr(0, shown), out);
    held_.erase(0, shown);
    return false;
  }
  const std::string_view before = std::string_view(held_).substr(0, start);
  put_content(before.substr(0, without_blanks_behind(before)), out);
  held_.erase(0, start + mark().size());
  opening_ = mark();
  name_.clear();
  scan_ = {};
  phase_ = Phase::call;
  return true;
}

// The whole answer must be calls: the first other text makes the rest content.
bool AnswerReader::read_bare(bool is_last, std::vector<AnswerPart>& out) {
  size_t front = at_begin_ ? blanks_in_front(held_) : 0;
  if (at_begin_ && calls_ > 0 && front < held_.size() && held_[front] == ';') ++front;
  front += blanks_in_front(std::string_view(held_).substr(front));
  const std::string_view text = std::string_view(held_).substr(std::min(front, held_.size()));
  if (at_begin_ && !is_last && front <= kBlanksMax && (text.empty() || may_become(text, kPythonTag))) return false;
  if (at_begin_ && text.starts_with(kPythonTag) && opening_ != kPythonTag) {
    opening_ = kPythonTag;
    held_.erase(0, held_.size() - text.size() + kPythonTag.size());
    return true;
  }
  if (at_begin_ && text.starts_with('{')) {
    opening_ += held_.substr(0, front);
    held_.erase(0, front);
    scan_ = {};
    phase_ = Phase::call;
    return true;
  }
  if (at_begin_ && is_last && text.empty()) return false;
  if (at_begin_) held_.insert(0, std::exchange(opening_, {}));
  put_content(held_, out);
  held_.clear();
  return false;
}

/// Looks for the end of the JSON object or list that begins at the front. False while it is open.
bool AnswerReader::read_value() {
  for (; scan_.end == 0 && scan_.at < held_.size(); ++scan_.at) {
    const char c = held_[scan_.at];
    if (scan_.in_string) {
      if (!scan_.is_escaped && c == '"') scan_.in_string = false;
      scan_.is_escaped = !scan_.is_escaped && c == '\\';
      continue;
    }
    if (c == '"') scan_.in_string = true;
    if (c == '{' || c == '[') ++scan_.depth;
    if ((c == '}' || c == ']') && --scan_.depth == 0) scan_.end = scan_.at + 1;
  }
  MC_ASSERT_LE(scan_.end, held_.size());
  return scan_.end != 0;
}

bool AnswerReader::is_known(std::string_view name) const {
  return std::find(options_.tools.begin(), options_.tools.end(), name) != options_.tools.end();
}

/// Appends the calls of a JSON value, an object or a list. False, and nothing is appended, unless all are calls.
bool AnswerReader::take_calls(std::string_view value, std::vector<AnswerPart>& out) {
  const auto parsed = parse_value(value);
  if (!parsed) return false;
  std::vector<AnswerPart> calls;
  const auto take = [&](const Json& call, std::string_view text) {
    const std::string_view name = call["name"].as_string();
    auto arguments = arguments_of(call, text);
    if (!call.is_object() || name.empty() || name.size() > kNameBytesMax || !arguments) return false;
    if (options_.form.calls == CallForm::llama && !is_known(name)) return false;
    calls.push_back({AnswerPart::Kind::call, {}, {std::string(name), std::move(*arguments)}});
    return true;
  };
  if (!name_.empty()) {
    if (!parsed->is_object()) return false;
    calls.push_back({AnswerPart::Kind::call, {}, {name_, std::string(value)}});
  } else if (parsed->is_array()) {
    const auto texts = elements_of(value);
    if (parsed->size() == 0 || texts.size() != parsed->size()) return false;
    for (size_t i = 0; i < texts.size(); ++i)
      if (!take((*parsed)[i], texts[i])) return false;
  } else if (!take(*parsed, value)) {
    return false;
  }
  calls_ += calls.size();
  std::move(calls.begin(), calls.end(), std::back_inserter(out));
  return true;
}

void AnswerReader::give_up_call(std::vector<AnswerPart>& out) {
  put_content(std::exchange(opening_, {}), out);
  ++given_up_;
  at_begin_ = drops_blanks_ = false;  // what is held is content, even without an opening in front
  phase_ = Phase::body;
}

bool AnswerReader::read_call(bool is_last, std::vector<AnswerPart>& out) {
  const auto give_up = [&] {
    give_up_call(out);
    return true;
  };
  if (held_.size() > kCallBytesMax) return give_up();
  if (scan_.at == 0) {  // in front of the value
    const size_t blanks = blanks_in_front(held_);
    opening_ += held_.substr(0, blanks);
    held_.erase(0, blanks);
    if (held_.empty()) return is_last && give_up();
    if (options_.form.calls == CallForm::mistral && name_.empty() && held_[0] != '[') {
      const size_t end = held_.find_first_of("[{");
      if (end == std::string::npos && !is_last && held_.size() <= kNameBytesMax) return false;
      if (end == std::string::npos || end == 0 || end > kNameBytesMax) return give_up();
      if (may_become(std::string_view(held_).substr(end), kMistralArguments) && !is_last) return false;
      const bool has_mark = std::string_view(held_).substr(end).starts_with(kMistralArguments);
      if (!has_mark && held_[end] == '[') return give_up();
      name_ = held_.substr(0, without_blanks_behind(std::string_view(held_).substr(0, end)));
      const size_t taken = end + (has_mark ? kMistralArguments.size() : 0);
      opening_ += held_.substr(0, taken);
      held_.erase(0, taken);
      return true;
    }
    const bool is_list = held_[0] == '[' && name_.empty() && options_.form.calls != CallForm::llama;
    if (held_[0] != '{' && !is_list) return give_up();
  }
  if (!read_value()) return is_last && give_up();
  const std::string value = held_.substr(0, scan_.end);
  size_t taken = scan_.end;
  if (options_.form.calls == CallForm::tagged) {
    taken += blanks_in_front(std::string_view(held_).substr(taken));
    const std::string_view behind = std::string_view(held_).substr(taken);
    if (behind.starts_with(kTagEnd))
      taken += kTagEnd.size();
    else if (!is_last && may_become(behind, kTagEnd))
      return false;
    else if (!behind.empty())
      return give_up();
  }
  if (!take_calls(value, out)) return give_up();
  held_.erase(0, taken);
  opening_.clear();
  phase_ = Phase::body;
  at_begin_ = true;
  return true;
}

}  // namespace mc::text
