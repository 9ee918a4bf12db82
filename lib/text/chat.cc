#include "text/chat.h"

#include <algorithm>

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

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
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

}  // namespace

std::string normal_source(std::string_view source) {
  std::string out;
  size_t text_begin = 0;
  for (size_t at = 0; at <= source.size();) {
    const std::string_view rest = source.substr(at);
    const bool tag = rest.starts_with("{{") || rest.starts_with("{%") || rest.starts_with("{#");
    if (!tag && at < source.size()) {
      ++at;
      continue;
    }
    std::string_view text = source.substr(text_begin, at - text_begin);
    while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
    out += text;
    if (at == source.size()) break;
    if (rest.starts_with("{#")) {
      const size_t end = source.find("#}", at + 2);
      at = end == std::string_view::npos ? source.size() : end + 2;
    } else {
      at = copy_tag(source, at, out);
    }
    text_begin = at;
  }
  for (std::string_view key : {"role", "content"})
    replace_all(out, "['" + std::string(key) + "']", "." + std::string(key));
  replace_all(out, "'+'", "");
  return out;
}

bool contains(std::string_view source, std::string_view word) {
  return source.find(word) != std::string_view::npos;
}

bool lacks(std::string_view source, std::initializer_list<std::string_view> words) {
  return std::none_of(words.begin(), words.end(), [&](std::string_view word) { return contains(source, word); });
}

std::string_view between(std::string_view source, std::string_view before, std::string_view after) {
  const size_t begin = source.find(before);
  if (begin == std::string_view::npos) return {};
  source.remove_prefix(begin + before.size());
  const size_t end = source.find(after);
  return end == std::string_view::npos ? std::string_view() : source.substr(0, end);
}

Result<void> check_messages(std::span<const ChatMessage> messages) {
  if (messages.empty()) return Error{Code::invalid, "chat: messages is empty"};
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant")
      return Error{Code::invalid, "chat: message " + std::to_string(i) + " has role \"" + role +
                                      "\"; this template takes system, user and assistant"};
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
    return Error{Code::unsupported, "chat: no template is named \"" + std::string(name) + "\"; " + way_out()};
  }
  if (config.chat_template.empty())
    return Error{Code::unsupported, "chat: the model has no chat template; " + way_out()};
  if (config.chat_template.size() > kSourceBytesMax)
    return Error{Code::unsupported, "chat: the model's chat template has " +
                                        std::to_string(config.chat_template.size()) + " bytes; the most is " +
                                        std::to_string(kSourceBytesMax) + "; " + way_out()};
  const std::string source = normal_source(config.chat_template);
  for (const ChatForm* form : kChatTemplates)
    if (auto found = form->recognise(source, config)) return found;
  return Error{Code::unsupported,
               "chat: the model's chat template is none of the known forms (ChatML, Llama 3, mc); " + way_out()};
}

}  // namespace mc::text
