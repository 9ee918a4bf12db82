#include "text/chat.h"

#include <algorithm>

#include "base/errors.h"
#include "jinja/jinja.h"

namespace mc::text {
namespace {

using jinja::Str;
using jinja::Value;
using Entries = std::vector<std::pair<Value, Value>>;

struct NamedForm {
  std::string_view name, source;
};
// Built-in templates, for models that have none.
constexpr NamedForm kForms[] = {
    {"mc",
     "{{ bos_token }}{% for message in messages %}{{ '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}"
     "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"},
    {"chatml",
     "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
     "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"},
    {"llama3",
     "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' "
     "+ "
     "message.content | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
     "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"},
};

// The mark of the place where continue_final_message ends the prompt. It is no Unicode character, so no text contains
// it.
constexpr char32_t kEndMark = 0x110001;

std::string way_out() {
  std::string names;
  for (const NamedForm& form : kForms) names += (names.empty() ? "" : "|") + std::string(form.name);
  return "use /v1/completions, or --chat-template " + names;
}

Error refuse(std::string what) {
  return user_error(err::kTemplateUnsupported, std::move(what), {}, way_out());
}

Error bad_request(std::string what, std::string field) {
  return user_error(err::kInvalidField, "chat: " + std::move(what), std::move(field));
}

/// A template writes roles into its control sequences, so the known roles count as template text.
bool is_known_role(std::string_view role) {
  for (std::string_view known : {"system", "developer", "user", "assistant", "tool", "function", "ipython"})
    if (role == known) return true;
  return false;
}

Value key(std::string_view name) {
  return Value(name);
}

/// Parses the arguments of calls, which requests hold as JSON text and templates expect as objects.
Json with_arguments(const Json& calls) {
  Json out = calls;
  if (!calls.is_array()) return out;
  out = Json::array();
  for (const Json& call : calls.items()) {
    Json changed = call;
    const Json& arguments = call["function"]["arguments"];
    if (arguments.is_string()) {
      auto parsed = Json::parse(arguments.as_string(), {.bytes = 1 << 20, .depth = 32, .values = 1 << 16});
      if (parsed && parsed->is_object()) {
        Json function = call["function"];
        function.set("arguments", std::move(*parsed));
        changed.set("function", std::move(function));
      }
    }
    out.push(std::move(changed));
  }
  return out;
}

Value message_value(const ChatMessage& message, bool marked) {
  Entries entries;
  entries.emplace_back(key("role"), jinja::widen(message.role, !is_known_role(message.role)));
  Str content = jinja::widen(message.content, true);
  if (marked) content.append({kEndMark, U' '});
  const bool absent = content.empty() && message.tool_calls.size() > 0;
  entries.emplace_back(key("content"), absent ? Value(nullptr) : Value(std::move(content)));
  const auto add = [&](std::string_view name, const std::string& text) {
    if (!text.empty()) entries.emplace_back(key(name), jinja::widen(text, true));
  };
  add("name", message.name);
  add("tool_call_id", message.tool_call_id);
  add("reasoning_content", message.reasoning_content);
  if (message.tool_calls.size() > 0)
    entries.emplace_back(key("tool_calls"), Value::from_json(with_arguments(message.tool_calls), true));
  return Value::dict(std::move(entries));
}

std::vector<Part> parts_of(const Str& text) {
  std::vector<Part> out;
  for (size_t at = 0; at < text.size();) {
    const char32_t mark = text[at] & jinja::kUserBit;
    size_t end = at;
    while (end < text.size() && (text[end] & jinja::kUserBit) == mark) ++end;
    out.push_back({jinja::narrow(jinja::StrView(text).substr(at, end - at)), mark != 0});
    at = end;
  }
  return out;
}

/// Cuts the text at the mark. Where the template trims the message, the blanks in front of the mark go too.
Result<void> end_at_mark(Str& text) {
  size_t at = text.size();
  while (at > 0 && jinja::code_of(text[at - 1]) != kEndMark) --at;
  if (at == 0) return bad_request("continue_final_message: the template does not write the last message", "messages");
  const bool spaced = at < text.size() && text[at] == (U' ' | (text[at - 1] & jinja::kUserBit));
  text.resize(at - 1);
  const auto blank = [](char32_t c) { return c == U' ' || (c >= U'\t' && c <= U'\r'); };
  while (!spaced && !text.empty() && blank(jinja::code_of(text.back()))) text.pop_back();
  return {};
}

/// The limits of a rendering grow with the size of the conversation.
jinja::Limits limits_for(std::span<const ChatMessage> messages, const ChatOptions& options) {
  size_t bytes = options.tools.dump().size() + options.kwargs.dump().size();
  for (const ChatMessage& m : messages)
    bytes += m.content.size() + m.reasoning_content.size() + m.tool_calls.dump().size();
  jinja::Limits limits;
  limits.steps += messages.size() * 10'000 + bytes * 4;
  limits.chars += bytes * 64;
  limits.work += bytes * 256;
  return limits;
}

}  // namespace

struct ChatTemplate::Parsed {
  jinja::Tree tree;
  std::optional<jinja::Tree> tool_tree;  // the model's own template for requests with tools, where it has one
  std::vector<std::pair<std::string, Value>> tokens;
  AnswerForm form;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}
ChatTemplate::~ChatTemplate() = default;

std::string to_string(std::span<const Part> parts) {
  std::string out;
  for (const Part& part : parts) out += part.text;
  return out;
}

std::vector<std::string_view> ChatTemplate::names() {
  std::vector<std::string_view> out;
  for (const NamedForm& form : kForms) out.push_back(form.name);
  return out;
}

Result<std::unique_ptr<const ChatTemplate>> ChatTemplate::open(const TokenizerConfig& config, std::string_view name) {
  std::string_view source = config.chat_template, tool_source = config.tool_template;
  if (name != "auto") {
    const auto* form =
        std::find_if(std::begin(kForms), std::end(kForms), [&](const NamedForm& f) { return f.name == name; });
    if (form == std::end(kForms)) return refuse("chat: no template is named \"" + std::string(name) + "\"");
    source = form->source;
    tool_source = {};
  }
  if (source.empty()) return refuse("chat: the model has no chat template");
  auto parsed = std::make_unique<Parsed>();
  parsed->form = form_of_template(std::string(source) + std::string(tool_source));
  for (std::string_view text : {source, tool_source}) {
    if (text.empty()) continue;
    if (const auto offset = find_invalid_utf8(text))
      return refuse("chat: the model's chat template is not valid UTF-8 at byte " + std::to_string(*offset));
    auto tree = jinja::parse(text);
    if (!tree) return refuse("chat: the model's chat template: " + tree.error().what);
    (text.data() == source.data() ? parsed->tree : parsed->tool_tree.emplace()) = std::move(*tree);
  }
  const auto token = [&](const char* variable, const std::string& text) {
    if (!text.empty()) parsed->tokens.emplace_back(variable, Value(std::string_view(text)));
  };
  token("bos_token", config.bos_token);
  token("eos_token", config.eos_token);
  token("pad_token", config.pad_token);
  jinja::Values more;
  for (const std::string& text : config.additional_special_tokens) more.push_back(Value(std::string_view(text)));
  if (!more.empty()) parsed->tokens.emplace_back("additional_special_tokens", Value::list(std::move(more)));
  return std::unique_ptr<const ChatTemplate>(new ChatTemplate(std::move(parsed)));
}

bool ChatTemplate::knows_tools() const {
  return parsed_->tool_tree || parsed_->tree.id_of("tools") != jinja::kNoName;
}

const AnswerForm& ChatTemplate::form() const {
  return parsed_->form;
}

Result<std::vector<Part>> ChatTemplate::render(std::span<const ChatMessage> messages,
                                               const ChatOptions& options) const {
  if (messages.empty()) return bad_request("messages is empty", "messages");
  const bool tools = options.tools.size() > 0;
  jinja::Context context;
  context.now = options.now;
  jinja::Values list;
  for (const ChatMessage& message : messages)
    list.push_back(message_value(message, options.continue_final_message && &message == &messages.back()));
  context.variables = parsed_->tokens;
  for (const auto& [name, value] : options.kwargs.members()) {
    for (std::string_view own : {"messages", "tools", "documents", "add_generation_prompt"})
      if (name == own) return bad_request(name + " is a field of its own", "chat_template_kwargs." + name);
    context.variables.emplace_back(name, Value::from_json(value, true));
  }
  context.variables.emplace_back("messages", Value::list(std::move(list)));
  context.variables.emplace_back("tools", tools ? Value::from_json(options.tools, true) : Value(nullptr));
  context.variables.emplace_back("documents", nullptr);
  context.variables.emplace_back("add_generation_prompt", options.add_generation_prompt);
  const jinja::Tree& tree = tools && parsed_->tool_tree ? *parsed_->tool_tree : parsed_->tree;
  auto text = jinja::render(tree, context, limits_for(messages, options));
  context = {};  // frees all messages, at four bytes a character, before the prompt is copied
  if (!text) return bad_request("the template, " + text.error().what, "messages");
  if (options.continue_final_message) MC_CHECK(end_at_mark(*text));
  return parts_of(*text);
}

}  // namespace mc::text
