// What the files chat_*.cc share: the entry each gives to the table in chat.cc, and how a prompt grows.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat.h"

namespace mc::text {

struct ChatForm {
  std::string_view name;
  /// The template, if `source` (see normal_source) is of this form; nullptr if it is another.
  std::unique_ptr<const ChatTemplate> (*recognise)(std::string_view source, const TokenizerConfig& config);
  /// The form without a model's template: --chat-template <name>.
  std::unique_ptr<const ChatTemplate> (*plain)(const TokenizerConfig& config);
};

extern const ChatForm kChatml, kLlama3, kMc;

/// Jinja source with what does not matter taken out, so that spellings of one template compare equal:
/// comments and white-space control, white space within tags, double quotes, message['role'] for
/// message.role, 'a' + 'b' for 'ab'. Text in quotes stays as it is; what remains of the text between
/// tags becomes {{"text"}}, the only place where double quotes are left.
std::string normal_source(std::string_view source);
constexpr std::string_view kPlainText = "{{\"";

/// True when `source` holds none of the words.
bool lacks(std::string_view source, std::initializer_list<std::string_view> words);
bool contains(std::string_view source, std::string_view word);
/// True when every `word` in `source` is followed by `next`.
bool always_before(std::string_view source, std::string_view word, std::string_view next);
/// What stands between `before` and the next `after`; empty when either is not there.
std::string_view between(std::string_view source, std::string_view before, std::string_view after);

/// invalid: none, or a role other than system, user, assistant.
Result<void> check_messages(std::span<const ChatMessage> messages);

/// Grows a prompt; neighbours of one kind become one part.
class PartList {
 public:
  void add_template(std::string_view text) { add(text, false); }
  void add_user(std::string_view text) { add(text, true); }
  std::vector<Part> take() { return std::move(parts_); }

 private:
  void add(std::string_view text, bool user);
  std::vector<Part> parts_;
};

}  // namespace mc::text
