// links: text
// A chat template's source and messages, with 0xFF between them; the first byte of a message picks its
// role. Whatever is recognised must render every conversation, and keep what users wrote as user text.
#include <cstdlib>
#include <string_view>
#include <vector>

#include "text/text.h"
#include "text/unicode.h"

using namespace mc::text;

namespace {

void check(bool condition) {
  if (!condition) std::abort();
}

void render(const ChatTemplate& chat, const std::vector<ChatMessage>& messages) {
  for (bool prompt : {false, true}) {
    const auto parts = chat.render(messages, {.add_generation_prompt = prompt, .enable_thinking = prompt});
    check(parts.has_value() == !messages.empty());
    if (!parts) continue;
    size_t user_bytes = 0, message_bytes = 0;
    for (const Part& part : *parts) user_bytes += part.user ? part.text.size() : 0;
    for (const ChatMessage& message : messages) message_bytes += message.content.size();
    check(user_bytes <= message_bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto next = [&] {
    const size_t end = input.find('\xFF');
    const std::string_view piece = input.substr(0, end);
    input.remove_prefix(end == input.npos ? input.size() : end + 1);
    return piece;
  };
  TokenizerConfig config{.bos_token = "<s>", .chat_template = std::string(next())};
  std::vector<ChatMessage> messages;
  while (!input.empty() && messages.size() < 16) {
    const std::string_view message = next();
    if (mc::find_invalid_utf8(message)) return 0;  // the caller's check, before any template
    const char* roles[] = {"user", "assistant", "system"};
    messages.push_back({roles[message.empty() ? 0 : static_cast<uint8_t>(message[0]) % 3], std::string(message)});
  }
  const auto chat = ChatTemplate::open(config);
  if (chat) render(**chat, messages);
  for (std::string_view name : ChatTemplate::names()) render(**ChatTemplate::open(config, name), messages);
  return 0;
}
