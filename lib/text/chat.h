// Chat templates: messages to a prompt, as a list of parts so that what a user wrote can never become a
// control token. A model's template is Jinja source; until there is an interpreter, the forms in
// kChatTemplates (chat.cc) are recognised by their content, and any other is refused with the way out.
// The interpreter will be one more implementation of ChatTemplate and one more line of that table.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace mc::text {

struct ChatMessage {
  std::string role;  // system, user or assistant
  std::string content;
};

struct ChatOptions {
  bool add_generation_prompt = true;  // end with the start of the assistant's turn
  bool enable_thinking = true;        // where the template knows it (Qwen3)
  std::string today;                  // "26 Jul 2024", for templates that state the date; empty: their default
};

class ChatTemplate {
 public:
  /// The model's template, or, with `name` other than "auto", the form of that name (--chat-template).
  /// unsupported: MC3008, the model has none, or an unknown one, or the name is unknown; the error's
  /// `next` lists the names and the way out.
  static Result<std::unique_ptr<const ChatTemplate>> open(const TokenizerConfig& config,
                                                          std::string_view name = "auto");
  /// The names `open` takes beside "auto", in the order of the table.
  static std::vector<std::string_view> names();

  virtual ~ChatTemplate() = default;
  virtual std::string_view name() const = 0;
  /// The prompt, BOS included where the template writes it. Any thread.
  /// invalid: MC4002, no messages, or a role the template does not have; names the message by its index.
  virtual Result<std::vector<Part>> render(std::span<const ChatMessage> messages,
                                           const ChatOptions& options = {}) const = 0;
};

/// The parts put together: what transformers' apply_chat_template(tokenize=False) returns.
std::string to_string(std::span<const Part> parts);

}  // namespace mc::text
