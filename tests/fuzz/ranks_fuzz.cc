// links: text
// A rank file, its side file or tekken.json, and a text, with 0xFF between them (no UTF-8 text holds it); a first part
// that begins with { is tekken.json. A tokenizer that opens must encode every valid text, give only ids it has, decode
// them to the text, and never make a control token of a user's text.
#include <cstdlib>
#include <string_view>

#include "fuzz_target.h"
#include "text/text.h"

namespace mc::ranks_fuzz {

using namespace mc::text;

namespace {

void check(bool condition) {
  if (!condition) std::abort();
}

void use(const Tokenizer& tokenizer, std::string_view text) {
  const auto user = tokenizer.encode(text, {.add_special = false, .parse_special = false});
  if (mc::find_invalid_utf8(text)) check(!user);
  if (!user) return;
  for (uint32_t id : *user) check(id < tokenizer.vocab_size() && !tokenizer.is_special(id));
  // NFC is the only step that changes a text.
  if (text.find_first_of("\xCC\xCD\xE0\xE1\xE2\xE3\xEA\xEF\xF0") == text.npos)
    check(tokenizer.decode(*user, false) == text);
}

}  // namespace

FUZZ_TARGET(ranks) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t first = input.find('\xFF');
  const size_t second = first == input.npos ? input.npos : input.find('\xFF', first + 1);
  TokenizerFiles files;
  const std::string_view head = input.substr(0, first);
  if (head.starts_with('{')) {
    files.tekken = head;
  } else {
    files.ranks = head;
    files.ranks_name = "cl100k_base.tiktoken";
    if (first != input.npos)
      files.ranks_side = input.substr(first + 1, second == input.npos ? input.npos : second - first - 1);
  }
  const std::string_view text =
      second == input.npos ? std::string_view("It's 12 <|end|>\n  ok") : input.substr(second + 1);
  const auto tokenizer = Tokenizer::parse(files);
  if (!tokenizer) {
    check(tokenizer.error().mc != 0 && !tokenizer.error().what.empty());
    return 0;
  }
  use(*tokenizer, text);
  return 0;
}

}  // namespace mc::ranks_fuzz
