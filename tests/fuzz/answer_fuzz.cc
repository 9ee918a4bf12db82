// links: text grammar base
// The first byte picks a form and how the text is cut. The rest is an answer, read in two ways that must give the same
// parts, and a grammar, which compiles or is refused; what a compiled grammar allows must lead on.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/json.h"
#include "fuzz_target.h"
#include "grammar/grammar.h"
#include "text/text.h"

namespace mc::answer_fuzz {
namespace {

void check(bool condition) {
  if (!condition) std::abort();
}

std::vector<text::AnswerPart> read(const text::AnswerReader::Options& options, std::string_view answer, size_t step) {
  text::AnswerReader reader(options);
  std::vector<text::AnswerPart> parts, out;
  while (!answer.empty()) {
    size_t size = std::min(step, answer.size());
    while (size < answer.size() && (static_cast<uint8_t>(answer[size]) & 0xC0) == 0x80) ++size;
    reader.push(answer.substr(0, size), parts);
    answer.remove_prefix(size);
  }
  reader.flush(parts);
  for (auto& part : parts) {
    check(!find_invalid_utf8(part.text));
    if (part.kind == text::AnswerPart::Kind::call)
      check(Json::parse(part.call.arguments).has_value() && !part.call.name.empty());
    if (!out.empty() && out.back().kind == part.kind && part.kind != text::AnswerPart::Kind::call)
      out.back().text += part.text;
    else
      out.push_back(std::move(part));
  }
  return out;
}

void follow(const std::shared_ptr<const grammar::Grammar>& compiled, uint8_t choice) {
  static const std::vector<std::string> texts = [] {
    std::vector<std::string> bytes;
    for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
    for (const char* piece : {"{\"", "\":", "},", "true", " \"", "12"}) bytes.emplace_back(piece);
    return bytes;
  }();
  static const auto vocabulary = grammar::Vocabulary::build(texts, std::vector<bool>(texts.size()));
  if (!vocabulary.check(*compiled)) return;
  static grammar::MaskStore shared;  // of the rules that all grammars have
  grammar::Masks masks(compiled, vocabulary, shared);
  grammar::Matcher matcher(masks);
  std::vector<uint64_t> mask((texts.size() + 63) / 64);
  for (int step = 0; step < 30; ++step) {
    matcher.fill(mask);
    std::vector<uint32_t> allowed;
    for (uint32_t id = 0; id < texts.size(); ++id)
      if (grammar::is_allowed(mask, id)) allowed.push_back(id);
    check(!allowed.empty() || matcher.is_complete());
    if (allowed.empty()) return;
    choice = static_cast<uint8_t>(choice * 37 + 11);
    check(matcher.accept(allowed[choice % allowed.size()]));
  }
}

}  // namespace

FUZZ_TARGET(answer) {
  if (size == 0) return 0;
  const uint8_t first = data[0];
  std::string input(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (find_invalid_utf8(input))  // the detokenizer gives whole characters alone
    for (char& c : input) c = static_cast<char>(c & 0x7F);
  text::AnswerReader::Options options;
  options.form = {static_cast<text::CallForm>(first & 3), (first & 4) != 0};
  options.is_thinking = (first & 12) == 12;
  options.tools = {"f"};
  check(read(options, input, 1 + (first >> 4)) == read(options, input, input.size()));
  for (const std::string& grammar : {input, "{\"schema\":" + input + "}"})
    if (auto compiled = grammar::Grammar::compile(grammar)) follow(*compiled, first);
  return 0;
}

}  // namespace mc::answer_fuzz
