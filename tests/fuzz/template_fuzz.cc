// links: text jinja base
// A chat template's source and messages, with 0xFF between them; the first byte of a message picks its
// role. Whatever is parsed must render or fail within its limits, twice the same way, and no character of a
// user may lose its mark.
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "fuzz_target.h"
#include "jinja/jinja.h"
#include "text/text.h"

namespace mc::template_fuzz {

using namespace mc::text;

namespace {

void check(bool condition) {
  if (!condition) std::abort();
}

void render(const ChatTemplate& chat, const std::vector<ChatMessage>& messages, bool prompt) {
  ChatOptions options{.add_generation_prompt = prompt, .continue_final_message = !prompt};
  if (prompt) options.tools = mc::Json::array({mc::Json::object({{"name", "f"}, {"n", 1.5}})});
  options.kwargs = mc::Json::object({{"enable_thinking", prompt}, {"x", 5}, {"s", "Hello World"}, {"n", nullptr}});
  options.now.emplace().tm_mday = 1;
  const auto parts = chat.render(messages, options);
  const auto again = chat.render(messages, options);
  check(parts.has_value() == again.has_value());
  check(parts ? *parts == *again : parts.error().what == again.error().what);
  if (!parts) return;
  for (const Part& part : *parts) check(!part.text.empty() && !mc::find_invalid_utf8(part.text));
}

/// Under small limits, with users who write characters that no template has: wherever one of those turns
/// up, it has to be a user's.
void render_limited(std::string_view source, const std::vector<ChatMessage>& messages) {
  const auto tree = jinja::parse(source);
  if (!tree) return;
  jinja::Context context;
  jinja::Values list;
  const std::string foreign = "\U000F1234a \U000F1235";
  for (const ChatMessage& message : messages)
    list.push_back(jinja::Value::from_json(
        mc::Json::object({{"role", message.role}, {"content", foreign + message.content}, {foreign, 1}}), true));
  context.variables.emplace_back("messages", jinja::Value::list(list, true));
  context.variables.emplace_back("s", jinja::widen(foreign + "Hello " + foreign, true));
  const auto text = jinja::render(*tree, context,
                                  {.steps = 20'000, .work = 1 << 20, .chars = 1 << 18, .output = 1 << 16, .depth = 50});
  if (!text || source.find("\xF3\xB1\x88") != source.npos) return;
  for (const char32_t c : *text) check((c & ~1u) != 0xF1234);
}

}  // namespace

FUZZ_TARGET(template) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto next = [&] {
    const size_t end = input.find('\xFF');
    const std::string_view piece = input.substr(0, end);
    input.remove_prefix(end == input.npos ? input.size() : end + 1);
    return piece;
  };
  const std::string source(next());
  if (mc::find_invalid_utf8(source)) return 0;  // refused before the parser sees it
  std::vector<ChatMessage> messages;
  while (!input.empty() && messages.size() < 16) {
    const std::string_view message = next();
    if (mc::find_invalid_utf8(message)) return 0;  // the caller's check, before any template
    const char* roles[] = {"user", "assistant", "system"};
    messages.push_back({roles[message.empty() ? 0 : static_cast<uint8_t>(message[0]) % 3], std::string(message)});
  }
  render_limited(source, messages);
  // Full limits are for templates that end soon; the fuzzer finds the others, and they take a second each.
  if (source.find("range") != source.npos || source.find("recursive") != source.npos) return 0;
  const auto chat = ChatTemplate::open({.bos_token = "<s>", .chat_template = source});
  if (chat)
    for (bool prompt : {false, true}) render(**chat, messages, prompt);
  return 0;
}

}  // namespace mc::template_fuzz
