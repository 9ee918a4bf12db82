// Reads a chat answer as its text arrives: the reasoning in front (<think>), tool calls, and the content that is left.
// The chat template tells the forms that a model writes. A call is passed on when it is complete and valid; text that
// turns out to be no call is content, so no text is lost. Text arrives in whole characters, and no character is split.
//
//   tagged    <tool_call>{"name": "f", "arguments": {...}}</tool_call>, also with a list of calls inside (Hermes, Qwen,
//             SmolLM)
//   llama     {"name": "f", "parameters": {...}} as the whole answer, several with ; between, also behind
//             <|python_tag|> (Llama 3.x)
//   mistral   [TOOL_CALLS][{"name": "f", "arguments": {...}}], or [TOOL_CALLS]f[ARGS]{...} for each call
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace mc::text {

enum class CallForm : uint8_t { none, tagged, llama, mistral };

/// The parts of an answer that a model may write beside content.
struct AnswerForm {
  CallForm calls = CallForm::none;
  bool thinks = false;
  bool operator==(const AnswerForm&) const = default;
};
/// The forms that the source of a chat template shows.
AnswerForm form_of_template(std::string_view source);
/// Whether the prompt ends with an open <think>, so that the answer begins with reasoning.
bool opens_thinking(std::span<const Part> prompt);

inline constexpr std::string_view kThinkStart = "<think>", kThinkEnd = "</think>";
inline constexpr std::string_view kTagStart = "<tool_call>", kTagEnd = "</tool_call>";
inline constexpr std::string_view kMistralStart = "[TOOL_CALLS]", kMistralArguments = "[ARGS]";
inline constexpr std::string_view kPythonTag = "<|python_tag|>";

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON text of an object, as the model wrote it
  bool operator==(const ToolCall&) const = default;
};

struct AnswerPart {
  enum class Kind : uint8_t { content, reasoning, call };
  Kind kind = Kind::content;
  std::string text;
  ToolCall call = {};
  bool operator==(const AnswerPart&) const = default;
};

class AnswerReader {
 public:
  /// Calls are held back up to this size; longer ones are content.
  static constexpr size_t kCallBytesMax = size_t{1} << 20;
  /// Blanks that may belong to a mark behind them are held back up to this size; more are part of the answer.
  static constexpr size_t kBlanksMax = 4096;
  /// Each call that turns out to be none is read again as content, so behind this many of them no more are looked for.
  static constexpr size_t kGivenUpMax = 16;

  struct Options {
    AnswerForm form;                      // calls: none where the request has no tools
    bool is_thinking = false;             // the prompt has opened <think>
    std::vector<std::string> tools = {};  // names; a bare JSON object is a call only of one of them
  };
  explicit AnswerReader(Options options);

  /// Takes more text and appends the parts that are certain now.
  void push(std::string_view text, std::vector<AnswerPart>& out);
  /// Ends the answer.
  void flush(std::vector<AnswerPart>& out);

  /// Whether a special token with this text belongs to the form, so that its text must be pushed.
  bool is_mark(std::string_view token) const;
  bool is_thinking() const { return phase_ == Phase::thinking; }
  size_t calls() const { return calls_; }

 private:
  enum class Phase : uint8_t { start, thinking, body, call };
  /// How far the JSON value at the front of held_ has been read.
  struct Scan {
    size_t at = 0;
    size_t end = 0;  // one past the value; 0 while it is open
    size_t depth = 0;
    bool in_string = false, is_escaped = false;
  };

  bool advance(bool is_last, std::vector<AnswerPart>& out);
  bool begin(bool is_last);
  bool think(bool is_last, std::vector<AnswerPart>& out);
  bool read_body(bool is_last, std::vector<AnswerPart>& out);
  bool read_bare(bool is_last, std::vector<AnswerPart>& out);
  bool read_call(bool is_last, std::vector<AnswerPart>& out);
  bool read_value();
  std::string_view mark() const { return options_.form.calls == CallForm::mistral ? kMistralStart : kTagStart; }
  bool take_calls(std::string_view value, std::vector<AnswerPart>& out);
  bool is_known(std::string_view name) const;
  void give_up_call(std::vector<AnswerPart>& out);
  void put_content(std::string_view text, std::vector<AnswerPart>& out);

  Options options_;
  Phase phase_;
  std::string held_;
  std::string opening_;  // of a call: the text in front of held_, which is content if it is no call
  std::string name_;     // of Mistral's form with [ARGS]
  Scan scan_;
  size_t calls_ = 0;
  size_t given_up_ = 0;        // calls that turned out to be none
  bool at_begin_ = true;       // nothing but blanks since the answer, its reasoning or a call
  bool drops_blanks_ = false;  // the blanks behind reasoning belong to neither
};

}  // namespace mc::text
