// ChatML and its Qwen dialects: each message is <|im_start|>role, a line break, the content, <|im_end|>.
//   Qwen2, 2.5   a default system message, put in front when the first message is not a system one
//   Qwen3        <think> blocks: past reasoning is cut out of answers before the last question, and
//                enable_thinking=false closes an empty block in front of the answer
// The default text is read from the template, so other models with this shape work as well.
#include "text/chat_form.h"

namespace mc::text {
namespace {

enum class Thinking : uint8_t {
  none,        // the template does not know <think>
  history,     // only past answers are treated (Qwen3 Instruct 2507)
  switchable,  // and enable_thinking exists (Qwen3)
  always,      // and the answer always starts inside <think> (Qwen3 Thinking 2507)
};

struct Dialect {
  std::string default_system;
  Thinking thinking = Thinking::none;
};

std::string_view strip_breaks_left(std::string_view text) {
  while (text.starts_with('\n')) text.remove_prefix(1);
  return text;
}
std::string_view strip_breaks_right(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

class ChatmlTemplate : public ChatTemplate {
 public:
  explicit ChatmlTemplate(Dialect dialect) : dialect_(std::move(dialect)) {}
  std::string_view name() const override { return kChatml.name; }

  Result<std::vector<Part>> render(std::span<const ChatMessage> messages, const ChatOptions& options) const override {
    MC_CHECK(check_messages(messages));
    PartList parts;
    if (!dialect_.default_system.empty() && messages[0].role != "system")
      parts.add_template("<|im_start|>system\n" + dialect_.default_system + "<|im_end|>\n");
    const size_t last_query = last_query_of(messages);
    for (size_t i = 0; i < messages.size(); ++i) {
      const bool answer = messages[i].role == "assistant";
      parts.add_template("<|im_start|>" + messages[i].role + "\n");
      if (answer && dialect_.thinking != Thinking::none)
        add_answer(messages[i].content, i > last_query, i + 1 == messages.size(), parts);
      else
        parts.add_user(messages[i].content);
      parts.add_template("<|im_end|>\n");
    }
    if (options.add_generation_prompt) {
      parts.add_template("<|im_start|>assistant\n");
      if (dialect_.thinking == Thinking::switchable && !options.enable_thinking)
        parts.add_template("<think>\n\n</think>\n\n");
      if (dialect_.thinking == Thinking::always) parts.add_template("<think>\n");
    }
    return parts.take();
  }

 private:
  /// The last question: a user's message that is not a tool's answer in disguise.
  static size_t last_query_of(std::span<const ChatMessage> messages) {
    for (size_t i = messages.size(); i-- > 0;) {
      const ChatMessage& message = messages[i];
      if (message.role == "user" &&
          !(message.content.starts_with("<tool_response>") && message.content.ends_with("</tool_response>")))
        return i;
    }
    return messages.size() - 1;
  }

  /// content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') is the reasoning, and
  /// content.split('</think>')[-1].lstrip('\n') the rest; the reasoning is only shown after the last question.
  static void add_answer(std::string_view content, bool after_query, bool last, PartList& parts) {
    constexpr std::string_view kOpen = "<think>", kClose = "</think>";
    std::string_view reasoning;
    if (const size_t first = content.find(kClose); first != std::string_view::npos) {
      reasoning = strip_breaks_right(content.substr(0, first));
      if (const size_t open = reasoning.rfind(kOpen); open != std::string_view::npos)
        reasoning.remove_prefix(open + kOpen.size());
      reasoning = strip_breaks_left(reasoning);
      content = strip_breaks_left(content.substr(content.rfind(kClose) + kClose.size()));
    }
    if (after_query && (last || !reasoning.empty())) {
      parts.add_template("<think>\n");
      parts.add_user(strip_breaks_right(reasoning));
      parts.add_template("\n</think>\n\n");
      content = strip_breaks_left(content);
    }
    parts.add_user(content);
  }

  Dialect dialect_;
};

std::unique_ptr<const ChatTemplate> plain(const TokenizerConfig&) {
  return std::make_unique<ChatmlTemplate>(Dialect{});
}

/// The \n, \' and \\ of a quoted Jinja text.
std::string unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char c = text[++i];
    out += c == 'n' ? '\n' : c == 't' ? '\t' : c;
  }
  return out;
}

/// The text of the system message that the template itself writes; empty when it writes none.
std::string default_system_of(std::string_view source) {
  constexpr std::string_view kStart = R"(<|im_start|>system\n)";
  while (true) {
    const size_t at = source.find(kStart);
    if (at == std::string_view::npos) return {};
    source.remove_prefix(at + kStart.size());
    constexpr size_t kSystemBytesMax = 8192;
    const std::string_view head = source.substr(0, kSystemBytesMax);
    const std::string_view text = head.substr(0, head.find("<|im_end|>"));
    // A quote ends the literal before the message does: what follows is a user's content.
    bool literal = !text.empty() && text.size() < head.size();
    for (size_t i = 0; literal && i < text.size(); ++i) {
      if (text[i] == '\\')
        ++i;
      else if (text[i] == '\'')
        literal = false;
    }
    if (literal) return unescape(text);
  }
}

std::unique_ptr<const ChatTemplate> recognise(std::string_view source, const TokenizerConfig&) {
  for (std::string_view marker : {R"(<|im_start|>assistant\n)", "<|im_end|>", "<|im_start|>", "add_generation_prompt"})
    if (!contains(source, marker)) return nullptr;
  // Words of templates that look alike and write something else.
  if (!lacks(source, {kPlainText, "<|im_sep|>", "strftime_now", "|trim", "bos_token", "eos_token", "default_system",
                      "system_message", "reasoning_effort", "thinking_budget", "|upper", "|lower", "|replace(",
                      ".replace(", ".upper(", ".lower(", "<|start_header_id|>", "[INST]"}))
    return nullptr;
  if (!always_before(source, "<|im_end|>", "\\n")) return nullptr;
  if (!contains(source, R"(<|im_start|>'+message.role+'\n)") && !contains(source, R"(<|im_start|>user\n)"))
    return nullptr;
  Dialect dialect{.default_system = default_system_of(source)};
  if (contains(source, "think>")) {
    // Only Qwen3's treatment of past reasoning is known.
    for (std::string_view marker : {"last_query_index", R"(reasoning_content.strip('\n'))", R"(content.lstrip('\n'))",
                                    R"(content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n'))"})
      if (!contains(source, marker)) return nullptr;
    if (contains(source, R"({{'<|im_start|>assistant\n<think>\n'}})"))
      dialect.thinking = Thinking::always;
    else if (contains(source, R"(enable_thinking is false%}{{'<think>\n\n</think>\n\n'}})"))
      dialect.thinking = Thinking::switchable;
    else if (lacks(source, {"enable_thinking"}))
      dialect.thinking = Thinking::history;
    else
      return nullptr;
  } else if (!lacks(source, {".strip(", ".lstrip(", ".rstrip(", ".split(", "enable_thinking"})) {
    return nullptr;
  }
  return std::make_unique<ChatmlTemplate>(std::move(dialect));
}

}  // namespace

const ChatForm kChatml = {"chatml", recognise, plain};

}  // namespace mc::text
