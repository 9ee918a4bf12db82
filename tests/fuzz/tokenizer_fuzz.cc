// links: text
// A tokenizer.json, a tokenizer_config.json and a text, with 0xFF between them (no UTF-8 text holds it).
// A tokenizer that opens must encode every valid text, give only ids it has, decode without a crash,
// and never make a control token of a user's text.
#include <cstdlib>
#include <string_view>

#include "fuzz_target.h"
#include "text/text.h"

namespace mc::tokenizer_fuzz {

using namespace mc::text;

namespace {

void check(bool condition) {
  if (!condition) std::abort();
}

void use(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text);
  const auto user = tokenizer.encode(text, {.add_special = false, .parse_special = false});
  if (mc::find_invalid_utf8(text)) check(!ids && !user);
  if (ids) {
    for (uint32_t id : *ids) check(id < tokenizer.vocab_size());
    Detokenizer detokenizer(tokenizer, false);
    std::string pieces;
    for (uint32_t id : *ids) pieces += detokenizer.push(id);
    check(pieces + detokenizer.flush() == tokenizer.decode(*ids, false));
  }
  if (user)
    for (uint32_t id : *user)
      check(!tokenizer.is_special(id) || tokenizer.token_bytes(id).size() == 1 || id == tokenizer.unk_id());
}

}  // namespace

FUZZ_TARGET(tokenizer) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t first = input.find('\xFF');
  const size_t second = first == input.npos ? input.npos : input.find('\xFF', first + 1);
  TokenizerFiles files;
  files.tokenizer = input.substr(0, first);
  if (first != input.npos)
    files.config = input.substr(first + 1, second == input.npos ? input.npos : second - first - 1);
  const std::string_view text =
      second == input.npos ? std::string_view("It's 12 <|eos|>\n  ok") : input.substr(second + 1);
  auto tokenizer = Tokenizer::parse(files);
  if (!tokenizer) {
    check(!tokenizer.error().what.empty());
    return 0;
  }
  use(*tokenizer, text);
  return 0;
}

}  // namespace mc::tokenizer_fuzz
