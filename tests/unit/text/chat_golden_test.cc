// Chat templates of five families against Python's jinja2 as transformers configures it, with conversations,
// tools and errors. scripts/make-template-goldens writes the expected prompts.
#include <fstream>

#include "test.h"
#include "text/chat.h"

using namespace mc;
using namespace mc::text;

namespace {

std::vector<Json> read_lines(const std::string& name) {
  std::vector<Json> out;
  std::ifstream file(test::source_dir() + "/tests/golden/text/" + name);
  for (std::string line; std::getline(file, line);) {
    auto parsed = Json::parse(line);
    REQUIRE_OK(parsed);
    out.push_back(std::move(*parsed));
  }
  REQUIRE(out.size() > 1);
  return out;
}

/// The golden clock: 2031-02-05 07:08:09, a Wednesday.
std::tm now() {
  std::tm out{};
  out.tm_year = 131, out.tm_mon = 1, out.tm_mday = 5, out.tm_hour = 7, out.tm_min = 8, out.tm_sec = 9;
  out.tm_wday = 3, out.tm_yday = 35;
  return out;
}

/// Errors say where ("line 3, column 7: "), then what jinja2 would say; of Python's own errors, whose
/// words are its own, only the class is compared.
void check_error(const Json& row, std::string_view what) {
  const std::string expected = std::string(row["error"].as_string()) + ": " + std::string(row["message"].as_string());
  const size_t at = what.find("line ");
  REQUIRE(at != what.npos);
  const std::string_view got = what.substr(what.find(": ", at) + 2);
  if (row.has("message"))
    CHECK(got == expected);
  else
    CHECK(got.starts_with(expected));
}

}  // namespace

TEST_CASE("text/chat: templates of every family give Jinja's prompt, or Jinja's error") {
  const auto rows = read_lines("chat.jsonl");
  for (size_t i = 1; i < rows.size(); ++i) {
    const Json& row = rows[i];
    INFO("template " << row["template"].as_string() << ", conversation " << row["conversation"].as_int());
    const TokenizerConfig config{
        .bos_token = "<s>",
        .eos_token = "</s>",
        .chat_template = std::string(rows[0]["templates"][row["template"].as_string()].as_string())};
    const auto chat = ChatTemplate::open(config);
    REQUIRE_OK(chat);
    const Json& conversation = rows[0]["conversations"][static_cast<size_t>(row["conversation"].as_int())];
    std::vector<ChatMessage> messages;
    for (const Json& m : conversation["messages"].items())
      messages.push_back({std::string(m["role"].as_string()), std::string(m["content"].as_string()),
                          std::string(m["name"].as_string()), std::string(m["tool_call_id"].as_string()),
                          std::string(m["reasoning_content"].as_string()), m["tool_calls"]});
    ChatOptions options{.add_generation_prompt = row["options"]["add_generation_prompt"].as_bool(),
                        .tools = conversation["tools"],
                        .now = now()};
    if (row["options"].has("enable_thinking")) options.kwargs = Json::object({{"enable_thinking", false}});
    const auto parts = (*chat)->render(messages, options);
    if (row.has("text")) {
      REQUIRE_OK(parts);
      CHECK(to_string(*parts) == row["text"].as_string());
    } else if (parts) {
      FAIL_CHECK("gives a prompt, where Jinja has " << row["error"].as_string());
    } else {
      check_error(row, parts.error().what);
    }
  }
}
