// Chat templates make a prompt of messages. The prompt is a list of parts, so a user's text can never become a control
// token. A model's template is Jinja source and runs in our interpreter (jinja/jinja.h) with the variables of
// transformers' apply_chat_template. Each character of the result carries a bit that says whether it came from a
// message, a tool or an argument, or from the template itself.
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
#include "text/answer_reader.h"
#include "text/tokenizer.h"

namespace mc::text {

/// One message of a conversation. The template does not see fields that are empty or null, except that a message
/// without content and without tool calls has an empty content.
struct ChatMessage {
  std::string role;  // system, developer, user, assistant, tool; these names count as the template's text
  std::string content;
  std::string name = {};
  std::string tool_call_id = {};
  std::string reasoning_content = {};
  Json tool_calls = {};  // array or null; arguments that are JSON text are parsed into an object
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
  /// Opens the model's template, or the built-in template that `name` selects (--chat-template). unsupported: MC3008,
  /// the model has no template, the template cannot be parsed (with line and column), or the name is unknown. The
  /// error's `next` lists the names.
  static Result<std::unique_ptr<const ChatTemplate>> open(const TokenizerConfig& config,
                                                          std::string_view name = "auto");
  /// The names `open` takes beside "auto", in the order of the table.
  static std::vector<std::string_view> names();
  ~ChatTemplate();

  /// Whether the template renders tools.
  bool knows_tools() const;
  /// The form of the answers that the model writes, by the source of its template.
  const AnswerForm& form() const;
  /// Renders the prompt, with BOS where the template writes it. Any thread may call it. invalid: MC4002, there are no
  /// messages, or the template fails on them; the text names line and column.
  Result<std::vector<Part>> render(std::span<const ChatMessage> messages, const ChatOptions& options = {}) const;

 private:
  struct Parsed;
  explicit ChatTemplate(std::unique_ptr<const Parsed> parsed);
  std::unique_ptr<const Parsed> parsed_;
};

/// The joined text of the parts, which equals transformers' apply_chat_template(tokenize=False).
std::string to_string(std::span<const Part> parts);

}  // namespace mc::text
