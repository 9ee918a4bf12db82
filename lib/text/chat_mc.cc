// mc-tiny's own form: BOS, then for each message <|role|>, a line break, the content, <|end|>.
#include "text/chat_form.h"

namespace mc::text {
namespace {

class McTemplate : public ChatTemplate {
 public:
  explicit McTemplate(std::string bos) : bos_(std::move(bos)) {}
  std::string_view name() const override { return kMc.name; }

  Result<std::vector<Part>> render(std::span<const ChatMessage> messages, const ChatOptions& options) const override {
    MC_CHECK(check_messages(messages));
    PartList parts;
    parts.add_template(bos_);
    for (const ChatMessage& message : messages) {
      parts.add_template("<|" + message.role + "|>\n");
      parts.add_user(message.content);
      parts.add_template("<|end|>\n");
    }
    if (options.add_generation_prompt) parts.add_template("<|assistant|>\n");
    return parts.take();
  }

 private:
  std::string bos_;
};

std::unique_ptr<const ChatTemplate> plain(const TokenizerConfig& config) {
  return std::make_unique<McTemplate>(config.bos_token);
}

std::unique_ptr<const ChatTemplate> recognise(std::string_view source, const TokenizerConfig& config) {
  constexpr std::string_view kBos = "{{bos_token}}";
  constexpr std::string_view kBody =
      R"({%for message in messages%}{{'<|'+message.role+'|>\n'+message.content+'<|end|>\n'}}{%endfor%})"
      R"({%if add_generation_prompt%}{{'<|assistant|>\n'}}{%endif%})";
  const bool with_bos = source.starts_with(kBos);
  if (with_bos) source.remove_prefix(kBos.size());
  if (source != kBody) return nullptr;
  return std::make_unique<McTemplate>(with_bos ? config.bos_token : std::string());
}

}  // namespace

const ChatForm kMc = {"mc", recognise, plain};

}  // namespace mc::text
