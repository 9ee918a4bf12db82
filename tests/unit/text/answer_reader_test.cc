#include "text/answer_reader.h"

#include <algorithm>
#include <iterator>

#include "base/clock.h"
#include "base/json.h"
#include "base/rng.h"
#include "test.h"

namespace mc::text::answer_reader_test {
namespace {

using Kind = AnswerPart::Kind;
using Parts = std::vector<AnswerPart>;

AnswerReader::Options options(CallForm calls, bool thinks = false, bool is_thinking = false) {
  return {{calls, thinks}, is_thinking, {"f", "g", "get_weather"}};
}

/// Joins neighbours of one kind: how an answer was cut does not matter.
Parts joined(const Parts& parts) {
  Parts out;
  for (const AnswerPart& part : parts)
    if (!out.empty() && part.kind != Kind::call && out.back().kind == part.kind)
      out.back().text += part.text;
    else
      out.push_back(part);
  return out;
}

Parts read(const AnswerReader::Options& options, std::string_view text, Rng* rng = nullptr) {
  AnswerReader reader(options);
  Parts out;
  while (!text.empty()) {
    size_t size = rng ? 1 + rng->below(12) : text.size();
    size = std::min(size, text.size());
    while (size < text.size() && (static_cast<uint8_t>(text[size]) & 0xC0) == 0x80) ++size;
    const size_t before = out.size();
    reader.push(text.substr(0, size), out);
    for (size_t i = before; i < out.size(); ++i) CHECK_FALSE(find_invalid_utf8(out[i].text).has_value());
    text.remove_prefix(size);
  }
  reader.flush(out);
  return joined(out);
}

AnswerPart content(std::string text) {
  return {Kind::content, std::move(text)};
}
AnswerPart reasoning(std::string text) {
  return {Kind::reasoning, std::move(text)};
}
AnswerPart call(std::string name, std::string arguments) {
  return {Kind::call, {}, {std::move(name), std::move(arguments)}};
}

TEST_CASE("text: tagged calls are taken out of the content, one or several") {
  const auto tagged = options(CallForm::tagged);
  CHECK(read(tagged, "Sure.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1.0}}\n</tool_call>") ==
        Parts{content("Sure."), call("f", "{\"x\": 1.0}")});
  CHECK(read(tagged,
             "<tool_call>{\"name\":\"f\"}</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>\n") ==
        Parts{call("f", "{}"), call("g", "{}")});
  CHECK(
      read(tagged,
           R"(<tool_call>[{"name":"f","arguments":{"a":[1,"]"]}},{"name":"g","arguments":"{\"b\":2}"}]</tool_call>)") ==
      Parts{call("f", R"({"a":[1,"]"]})"), call("g", R"({"b":2})")});
  CHECK(read(tagged, R"(<tool_call>{"name":"f","arguments":{"s":"</tool_call> \" {"}})") ==
        Parts{call("f", R"({"s":"</tool_call> \" {"})")});
}

TEST_CASE("text: a broken call stays content with all its text") {
  const auto tagged = options(CallForm::tagged);
  for (const char* text :
       {"<tool_call>no json</tool_call>", "<tool_call>{\"name\":\"f\",\"arguments\":{}",
        "<tool_call>{\"name\":1}</tool_call>", "<tool_call>{\"name\":\"f\",\"arguments\":3}</tool_call>",
        "<tool_call>{\"name\":\"f\",}</tool_call>", "<tool_call>", "<tool_c", "<tool_call>{\"name\":\"f\"} tail",
        "<tool_call>[]</tool_call>", "<tool_call>{\"name\":\"f\",\"name\":\"g\"}</tool_call>", "a < b",
        "<tool_call>[{\"name\":\"f\"},2]</tool_call>"})
    CHECK(read(tagged, text) == Parts{content(text)});
  CHECK(read(tagged, "<tool_call>x <tool_call>{\"name\":\"f\"}</tool_call>") ==
        Parts{content("<tool_call>x"), call("f", "{}")});
}

TEST_CASE("text: a bare object is a call of a known tool, and the whole answer") {
  const auto llama = options(CallForm::llama);
  CHECK(read(llama, "{\"name\": \"f\", \"parameters\": {\"x\": \"\xC3\xA9\"}}") ==
        Parts{call("f", "{\"x\": \"\xC3\xA9\"}")});
  CHECK(read(llama,
             "<|python_tag|>{\"type\":\"function\",\"name\":\"f\",\"parameters\":{}}; "
             "{\"name\":\"g\",\"parameters\":{}}") == Parts{call("f", "{}"), call("g", "{}")});
  for (const char* text :
       {"{\"name\": \"other\", \"parameters\": {}}", "{\"x\": 1}", "Here: {\"name\": \"f\", \"parameters\": {}}",
        "{\"name\": \"f\", ", "[1, 2]", "<|python_tag|>print(1)", "  plain"})
    CHECK(read(llama, text) == Parts{content(text)});
}

TEST_CASE("text: calls of Mistral's both forms are read") {
  const auto mistral = options(CallForm::mistral);
  CHECK(read(mistral, R"([TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}, {"name":"g","arguments":{}}])") ==
        Parts{call("f", R"({"x": 1})"), call("g", "{}")});
  CHECK(read(mistral, R"(Yes.[TOOL_CALLS]get_weather[ARGS]{"at":"Rome"}[TOOL_CALLS]g{"y":2})") ==
        Parts{content("Yes."), call("get_weather", R"({"at":"Rome"})"), call("g", R"({"y":2})")});
  for (const char* text : {"[TOOL_CALLS]", "[TOOL_CALLS]{\"a\":1}", "[TOOL_CALLS] [ARGS]{}", "[TOOL_CALLS]f[ARGS]",
                           "[TOOL_CALLS][{\"name\":\"f\"", "[TOOL_CALLS]f[ARGS][1]", "[1]"})
    CHECK(read(mistral, text) == Parts{content(text)});
}

TEST_CASE("text: blanks that wait for a mark are given out after 4 KiB, one by one as they come") {
  constexpr size_t kCount = AnswerReader::kBlanksMax + 2000;
  const AnswerReader::Options all[] = {options(CallForm::tagged),     options(CallForm::llama),
                                       options(CallForm::mistral),    options(CallForm::tagged, true),
                                       options(CallForm::none, true), options(CallForm::tagged, true, true)};
  for (size_t form = 0; form < std::size(all); ++form)
    for (const std::string start : {"", "x"}) {
      CAPTURE(form);
      CAPTURE(start);
      AnswerReader reader(all[form]);
      Parts out;
      if (!start.empty()) reader.push(start, out);
      for (size_t i = 0; i < kCount; ++i) reader.push(i % 7 == 0 ? "\n" : " ", out);
      size_t given = 0;
      for (const AnswerPart& part : out) given += part.text.size();
      const bool drops = form == 5 && start.empty();  // reasoning begins behind its blanks, so none is kept
      CHECK(given + (drops ? kCount : 0) + AnswerReader::kBlanksMax >= kCount);
      reader.push("y", out);
      reader.flush(out);
      given = 0;
      for (const AnswerPart& part : out) given += part.text.size();
      CHECK(given == start.size() + (drops ? 0 : kCount) + 1);
    }
}

TEST_CASE("text: an answer of marks without calls is read once, not once from every mark") {
  for (const auto& [form, mark] :
       {std::pair{CallForm::tagged, "<tool_call>{"}, {CallForm::mistral, "[TOOL_CALLS][{"}}) {
    std::string text;
    while (text.size() < 800'000) text += mark;
    const TimePoint begin = SystemClock::instance().now();
    CHECK(read(options(form), text) == Parts{content(text)});
    // Behind the largest call every token comes on its own.
    AnswerReader reader(options(form));
    Parts parts;
    for (int i = 0; i < 3; ++i) reader.push(text, parts);
    for (int i = 0; i < 3000; ++i) reader.push(mark, parts);
    CHECK(reader.is_mark(form == CallForm::tagged ? kTagStart : kMistralStart));
    reader.flush(parts);
    size_t bytes = 0;
    for (const AnswerPart& part : parts) bytes += part.text.size();
    CHECK(bytes == 3 * text.size() + 3000 * std::string_view(mark).size());
    CHECK(SystemClock::instance().now() - begin < 5s);  // scans from every mark take a minute
  }
}

TEST_CASE("text: calls are found behind some that are none") {
  std::string text;
  for (size_t i = 0; i < AnswerReader::kGivenUpMax; ++i) text += "<tool_call>no";
  const std::string good = "<tool_call>{\"name\":\"f\"}</tool_call>";
  CHECK(read(options(CallForm::tagged), text + good) == Parts{content(text), call("f", "{}")});
  text += "<tool_call>no" + good;
  CHECK(read(options(CallForm::tagged), text) == Parts{content(text)});
}

TEST_CASE("text: reasoning is split from the content, opened by the answer or by the prompt") {
  const auto opens = options(CallForm::tagged, true), opened = options(CallForm::tagged, true, true);
  const std::string rest = "\n<tool_call>{\"name\":\"f\"}</tool_call>";
  CHECK(read(opens, "<think>\nA < b.\n</think>\n\nDone." + rest) ==
        Parts{reasoning("A < b."), content("Done."), call("f", "{}")});
  CHECK(read(opened, "A.\n\nB.\n</think>\n\nDone.") == Parts{reasoning("A.\n\nB."), content("Done.")});
  CHECK(read(opened, "cut <tool_call> off </thi") == Parts{reasoning("cut <tool_call> off </thi")});
  CHECK(read(opens, "No <think> inside</think>") == Parts{content("No <think> inside</think>")});
  CHECK(read(opens, "<think></think>x") == Parts{content("x")});
  CHECK(read(options(CallForm::none), "<think>x</think>") == Parts{content("<think>x</think>")});
}

std::string random_value(Rng& rng, int depth) {
  static constexpr std::string_view kTexts[] = {
      "\"a\"", "\"</tool_call>\"", "\"\xE2\x82\xAC {[\"", R"("q\"\\")", "-1.50", "true", "null", "\"[ARGS]\""};
  if (depth > 2 || rng.below(2)) return std::string(kTexts[rng.below(std::size(kTexts))]);
  std::string out = "{";
  for (uint64_t i = 0; i < rng.below(4); ++i)
    out += (i ? ", \"k" : "\"k") + std::to_string(i) + "\": " + random_value(rng, depth + 1);
  return out + "}";
}

/// An answer of a form with the parts it holds; some of its calls are damaged, and stay content.
TEST_CASE("text: 500 random answers are read alike however they are cut, and lose no call") {
  Rng rng(mc::test::seed());
  INFO("seed " << mc::test::seed());
  for (int i = 0; i < 500; ++i) {
    const CallForm form = i % 2 ? CallForm::tagged : CallForm::mistral;
    std::string text;
    Parts expected;
    if (rng.below(2)) text += "Well \xF0\x9F\x98\x80 <b>", expected.push_back(content(text));
    for (uint64_t calls = rng.below(4), n = 0; n < calls; ++n) {
      const std::string arguments = "{\"v\": " + random_value(rng, 0) + "}";
      const std::string whole = "{\"name\": \"f\", \"arguments\": " + arguments + "}";
      text +=
          form == CallForm::tagged ? "<tool_call>\n" + whole + "\n</tool_call>\n" : "[TOOL_CALLS]f[ARGS]" + arguments;
      expected.push_back(call("f", arguments));
    }
    INFO(text);
    CHECK(read(options(form), text) == expected);
    for (int cut = 0; cut < 3; ++cut) CHECK(read(options(form), text, &rng) == expected);
    // Damaged in the middle: read alike in all cuts, and every byte of a call that was no call is content.
    std::string damaged = text.substr(0, rng.below(text.size() + 1));
    while (find_invalid_utf8(damaged)) damaged.pop_back();
    for (const CallForm any : {CallForm::tagged, CallForm::llama, CallForm::mistral, CallForm::none}) {
      const Parts whole = read(options(any, true, rng.below(2) == 0), damaged);
      INFO("damaged: " << damaged);
      for (const AnswerPart& part : whole)
        if (part.kind == Kind::call) CHECK(Json::parse(part.call.arguments).has_value());
    }
    const auto again = options(CallForm::tagged, true);
    CHECK(read(again, damaged, &rng) == read(again, damaged));
    const auto bare = options(CallForm::llama, true, true);
    CHECK(read(bare, damaged, &rng) == read(bare, damaged));
  }
}

TEST_CASE("text: the form of an answer is the template's") {
  CHECK(form_of_template("... <tool_call> ... {% if enable_thinking %}<think>") == AnswerForm{CallForm::tagged, true});
  CHECK(form_of_template("[TOOL_CALLS] [") == AnswerForm{CallForm::mistral, false});
  CHECK(form_of_template("<|python_tag|> tools") == AnswerForm{CallForm::llama, false});
  CHECK(form_of_template("{{ messages }}") == AnswerForm{CallForm::none, false});
  CHECK(opens_thinking(std::vector<Part>{{"<|assistant|>\n<think>\n", false}}));
  CHECK_FALSE(opens_thinking(std::vector<Part>{{"<think>", true}}));
  CHECK_FALSE(opens_thinking(std::vector<Part>{{"<think>\n\n</think>", false}}));
}

}  // namespace
}  // namespace mc::text::answer_reader_test
