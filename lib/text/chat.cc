#include "text/chat.h"

#include <algorithm>

#include "base/errors.h"
#include "text/chat_form.h"

namespace mc::text {
namespace {

constexpr const ChatForm* kChatTemplates[] = {&kMc, &kChatml, &kLlama3};

// A longer source is no template anybody wrote; recognising one is linear, but it is logged and kept.
constexpr size_t kSourceBytesMax = 1 << 20;

std::string way_out() {
  std::string names;
  for (const ChatForm* form : kChatTemplates) names += (names.empty() ? "" : "|") + std::string(form->name);
  return "use /v1/completions, or --chat-template " + names;
}

bool is_word_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}
bool is_blank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from)) {
    out += text.substr(0, at);
    out += to;
    text.remove_prefix(at + from.size());
  }
  out += text;
  return out;
}

/// Copies the quoted text that starts at `at`, in single quotes; returns where it ends.
size_t copy_quoted(std::string_view source, size_t at, std::string& out) {
  const char quote = source[at++];
  out += '\'';
  for (; at < source.size() && source[at] != quote; ++at) {
    if (source[at] == '\\' && at + 1 < source.size()) {
      const char escaped = source[++at];
      if (escaped == quote && quote == '"')
        out += '"';
      else
        (out += '\\') += escaped;
    } else if (source[at] == '\n') {
      out += "\\n";  // a line break in quotes means the same as its escape
    } else if (source[at] == '\'') {
      out += "\\'";
    } else {
      out += source[at];
    }
  }
  out += '\'';
  return std::min(at + 1, source.size());
}

/// Copies one tag {% %} or {{ }} that starts at `at`; returns where it ends.
size_t copy_tag(std::string_view source, size_t at, std::string& out) {
  const char close = source[at + 1] == '{' ? '}' : '%';
  out += source.substr(at, 2);
  at += 2;
  if (at < source.size() && (source[at] == '-' || source[at] == '+')) ++at;
  bool blank = false;
  while (at < source.size()) {
    const char c = source[at];
    if (c == close && at + 1 < source.size() && source[at + 1] == '}') {
      if (out.ends_with('-') || out.ends_with('+')) out.pop_back();
      (out += close) += '}';
      return at + 2;
    }
    if (is_blank(c)) {
      blank = true;
      ++at;
      continue;
    }
    if (blank && is_word_byte(c) && is_word_byte(out.back())) out += ' ';
    blank = false;
    if (c == '\'' || c == '"') {
      at = copy_quoted(source, at, out);
    } else {
      out += c;
      ++at;
    }
  }
  return at;
}

/// Adds text that stands between two tags, after Jinja's rules with trim_blocks and lstrip_blocks, as a
/// tag that prints it. `closed` is as in normal_source, `opened` the next tag from its second character.
void add_text(std::string_view text, char closed, std::string_view opened, std::string& out) {
  bool line_start = closed == 0;
  if (closed == '-') {
    while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  } else if ((closed == '%' || closed == '#') && text.starts_with('\n')) {
    text.remove_prefix(1);
    line_start = true;
  }
  if (opened.size() == 2 && opened[1] == '-') {
    while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  } else if (opened.starts_with('%') || opened.starts_with('#')) {
    const size_t line = text.rfind('\n') + 1;  // 0 when there is none
    if ((line > 0 || line_start) && text.find_first_not_of(" \t", line) == std::string_view::npos)
      text = text.substr(0, line);
  }
  if (!text.empty()) ((out += kPlainText) += text) += "\"}}";
}

}  // namespace

std::string normal_source(std::string_view source) {
  if (source.ends_with('\n')) source.remove_suffix(1);  // Jinja drops one
  std::string out;
  size_t text_begin = 0;
  char closed = 0;  // the last tag's kind, '{', '%' or '#'; '-' when it takes the white space behind it
  for (size_t at = 0; at <= source.size();) {
    const bool tag = at + 1 < source.size() && source[at] == '{' && std::string_view("{%#").find(source[at + 1]) < 3;
    if (!tag && at < source.size()) {
      ++at;
      continue;
    }
    const std::string_view opened = source.substr(std::min(at + 1, source.size()), 2);
    add_text(source.substr(text_begin, at - text_begin), closed, opened, out);
    if (at == source.size()) break;
    const char kind = source[at + 1];
    if (kind == '#') {
      const size_t end = source.find("#}", at + 2);
      at = end == std::string_view::npos ? source.size() : end + 2;
    } else {
      at = copy_tag(source, at, out);
    }
    closed = at >= 3 && source[at - 3] == '-' ? '-' : kind;
    text_begin = at;
  }
  for (std::string_view key : {"role", "content"})
    out = replace_all(out, "['" + std::string(key) + "']", "." + std::string(key));
  return replace_all(out, "'+'", "");
}

bool contains(std::string_view source, std::string_view word) {
  return source.find(word) != std::string_view::npos;
}

bool lacks(std::string_view source, std::initializer_list<std::string_view> words) {
  return std::none_of(words.begin(), words.end(), [&](std::string_view word) { return contains(source, word); });
}

bool always_before(std::string_view source, std::string_view word, std::string_view next) {
  for (size_t at = source.find(word); at != std::string_view::npos; at = source.find(word, at + 1))
    if (!source.substr(at + word.size()).starts_with(next)) return false;
  return true;
}

std::string_view between(std::string_view source, std::string_view before, std::string_view after) {
  const size_t begin = source.find(before);
  if (begin == std::string_view::npos) return {};
  source.remove_prefix(begin + before.size());
  const size_t end = source.find(after);
  return end == std::string_view::npos ? std::string_view() : source.substr(0, end);
}

Result<void> check_messages(std::span<const ChatMessage> messages) {
  if (messages.empty()) return user_error(err::kInvalidField, "chat: messages is empty", "messages");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string role = messages[i].role.substr(0, 32);  // no role we know is longer
    if (role != "system" && role != "user" && role != "assistant")
      return user_error(err::kInvalidField,
                        "chat: message " + std::to_string(i) + " has role \"" + role +
                            "\"; this template takes system, user and assistant",
                        "messages");
  }
  return {};
}

void PartList::add(std::string_view text, bool user) {
  if (text.empty()) return;
  if (!parts_.empty() && parts_.back().user == user)
    parts_.back().text += text;
  else
    parts_.push_back({std::string(text), user});
}

std::string to_string(std::span<const Part> parts) {
  std::string out;
  for (const Part& part : parts) out += part.text;
  return out;
}

std::vector<std::string_view> ChatTemplate::names() {
  std::vector<std::string_view> out;
  for (const ChatForm* form : kChatTemplates) out.push_back(form->name);
  return out;
}

Result<std::unique_ptr<const ChatTemplate>> ChatTemplate::open(const TokenizerConfig& config, std::string_view name) {
  if (name != "auto") {
    for (const ChatForm* form : kChatTemplates)
      if (form->name == name) return form->plain(config);
    return user_error(err::kTemplateUnsupported, "chat: no template is named \"" + std::string(name) + "\"", {},
                      way_out());
  }
  const auto refuse = [](const std::string& what) {
    return user_error(err::kTemplateUnsupported, what, {}, way_out());
  };
  const std::string& template_source = config.chat_template;
  if (template_source.empty()) return refuse("chat: the model has no chat template");
  if (template_source.size() > kSourceBytesMax)
    return refuse("chat: the model's chat template has " + std::to_string(template_source.size()) +
                  " bytes; the most is " + std::to_string(kSourceBytesMax));
  const std::string source = normal_source(template_source);
  for (const ChatForm* form : kChatTemplates)
    if (auto found = form->recognise(source, config)) return found;
  return refuse("chat: the model's chat template is none of the known forms (ChatML, Llama 3, mc)");
}

}  // namespace mc::text
