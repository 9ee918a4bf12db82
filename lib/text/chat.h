// Chat templates: messages to a prompt, as a list of parts so that what a user wrote can never become a
// control token. A model's template is Jinja source and runs in our interpreter (jinja.h) with the
// variables that transformers' apply_chat_template gives it; each character of the result knows whether
// it came from a message, a tool or an argument, or from the template itself.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/tokenizer.h"

namespace mc::text {

/// What is empty or null is not there for the template, except that a message without content and
/// without tool calls has an empty one.
struct ChatMessage {
  std::string role;  // system, developer, user, assistant, tool: known ones count as the template's text
  std::string content;
  std::string name = {};
  std::string tool_call_id = {};
  std::string reasoning_content = {};
  Json tool_calls = {};  // array or null; arguments that are JSON text become the object it says
};

struct ChatOptions {
  bool add_generation_prompt = true;    // end with the start of the assistant's turn
  bool continue_final_message = false;  // end within the last message
  Json tools = {};                      // array or null
  Json kwargs = {};                     // object or null: more variables, enable_thinking for one
  std::optional<std::tm> now = {};      // for templates that state the date
};

class ChatTemplate {
 public:
  /// The model's template, or, with `name` other than "auto", the form of that name (--chat-template).
  /// unsupported: MC3008, the model has none, it cannot be parsed (with line and column), or the name is
  /// unknown; the error's `next` lists the names and the way out.
  static Result<std::unique_ptr<const ChatTemplate>> open(const TokenizerConfig& config,
                                                          std::string_view name = "auto");
  /// The names `open` takes beside "auto", in the order of the table.
  static std::vector<std::string_view> names();
  ~ChatTemplate();

  /// The template renders tools.
  bool knows_tools() const;
  /// The prompt, BOS included where the template writes it. Any thread.
  /// invalid: MC4002, no messages, or the template refuses them or fails on them; names line and column.
  Result<std::vector<Part>> render(std::span<const ChatMessage> messages, const ChatOptions& options = {}) const;

 private:
  struct Parsed;
  explicit ChatTemplate(std::unique_ptr<const Parsed> parsed);
  std::unique_ptr<const Parsed> parsed_;
};

/// The parts put together: what transformers' apply_chat_template(tokenize=False) returns.
std::string to_string(std::span<const Part> parts);

}  // namespace mc::text
