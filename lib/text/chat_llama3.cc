// Llama 3: BOS, then for each message a header with the role, an empty line, the content without white
// space around it, <|eot_id|>.
//   3      just that
//   3.1    always a system message, which starts with the knowledge cut-off and a fixed date
//   3.2    the same with today's date
#include "text/chat_form.h"
#include "text/unicode.h"

namespace mc::text {
namespace {

struct Dialect {
  std::string bos;
  std::string cutoff;     // "Cutting Knowledge Date: December 2023\n"; empty: Llama 3
  std::string date;       // stated after it
  bool date_now = false;  // unless the caller knows today's
  bool trims = true;
  bool always_prompts = false;  // the first Llama 3 ignored add_generation_prompt
};

class Llama3Template : public ChatTemplate {
 public:
  explicit Llama3Template(Dialect dialect) : dialect_(std::move(dialect)) {}
  std::string_view name() const override { return kLlama3.name; }

  Result<std::vector<Part>> render(std::span<const ChatMessage> messages, const ChatOptions& options) const override {
    MC_CHECK(check_messages(messages));
    PartList parts;
    parts.add_template(dialect_.bos);
    if (!dialect_.cutoff.empty()) {
      const bool given = dialect_.date_now && !options.today.empty();
      parts.add_template("<|start_header_id|>system<|end_header_id|>\n\n" + dialect_.cutoff +
                         "Today Date: " + (given ? options.today : dialect_.date) + "\n\n");
      if (messages[0].role == "system") {
        add_content(messages[0].content, parts);
        messages = messages.subspan(1);
      }
      parts.add_template("<|eot_id|>");
    }
    for (const ChatMessage& message : messages) {
      parts.add_template("<|start_header_id|>" + message.role + "<|end_header_id|>\n\n");
      add_content(message.content, parts);
      parts.add_template("<|eot_id|>");
    }
    if (options.add_generation_prompt || dialect_.always_prompts)
      parts.add_template("<|start_header_id|>assistant<|end_header_id|>\n\n");
    return parts.take();
  }

 private:
  void add_content(std::string_view content, PartList& parts) const {
    parts.add_user(dialect_.trims ? strip(content) : content);
  }

  Dialect dialect_;
};

std::unique_ptr<const ChatTemplate> plain(const TokenizerConfig& config) {
  return std::make_unique<Llama3Template>(Dialect{.bos = config.bos_token});
}

std::unique_ptr<const ChatTemplate> recognise(std::string_view source, const TokenizerConfig& config) {
  for (std::string_view marker : {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
                                  R"(<|start_header_id|>assistant<|end_header_id|>\n\n)"})
    if (!contains(source, marker)) return nullptr;
  if (!lacks(source, {kPlainText, "<|im_start|>", "has_system_message", "think", "reasoning", "|upper", "|lower",
                      "replace(", "[INST]"}))
    return nullptr;
  if (!always_before(source, "<|end_header_id|>", R"(\n\n)") || !always_before(source, "<|eot_id|>", "'"))
    return nullptr;
  Dialect dialect{.bos = contains(source, "bos_token") ? config.bos_token : std::string(),
                  .trims = contains(source, "|trim"),
                  .always_prompts = !contains(source, "add_generation_prompt")};
  const std::string_view cutoff = between(source, "{{'Cutting Knowledge Date: ", R"(\n'}})");
  if (!cutoff.empty()) {
    const std::string_view date = between(source, "set date_string='", "'");
    if (date.empty() || !contains(source, R"({{'Today Date: '+date_string+'\n\n'}})") ||
        !contains(source, R"({{'<|start_header_id|>system<|end_header_id|>\n\n'}})") || contains(cutoff, "'") ||
        !contains(source, "{{system_message}}{{'<|eot_id|>'}}"))
      return nullptr;
    dialect.cutoff = "Cutting Knowledge Date: " + std::string(cutoff) + "\n";
    dialect.date = date;
    dialect.date_now = contains(source, "strftime_now");
  } else if (!lacks(source, {"date_string", "strftime_now", "system_message", "Cutting Knowledge"})) {
    return nullptr;
  }
  return std::make_unique<Llama3Template>(std::move(dialect));
}

}  // namespace

const ChatForm kLlama3 = {"llama3", recognise, plain};

}  // namespace mc::text
