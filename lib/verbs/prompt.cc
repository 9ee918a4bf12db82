#include "verbs/prompt.h"

#include "base/assert.h"
#include "base/errors.h"
#include "base/fd.h"
#include "base/units.h"
#include "verbs/once_flags.h"

namespace mc::verbs {
namespace {

Result<std::vector<uint32_t>> parse_ids(const std::vector<std::string>& words, uint32_t vocab) {
  std::vector<uint32_t> ids;
  for (const auto& word : words) {
    auto id = parse_count(word);
    if (!id || *id >= vocab)
      return user_error(err::kBadValue, "token id " + word + " is not a number below " + std::to_string(vocab),
                        "--prompt-ids");
    ids.push_back(static_cast<uint32_t>(*id));
  }
  return ids;
}

}  // namespace

Result<std::vector<uint32_t>> read_prompt(const cli::Args& args, const text::Tokenizer* tokenizer, uint32_t vocab) {
  const int given = args.given(flags::kPrompt) + args.given(flags::kPromptFile) + args.given(flags::kPromptIds);
  if (given != 1) return user_error(err::kUsage, "give exactly one of -p TEXT, -f FILE and --prompt-ids");
  if (args.given(flags::kPromptIds)) {
    MC_TRY(ids, parse_ids(args.list(flags::kPromptIds), vocab));
    if (ids.empty())
      return user_error(err::kBadValue, "the prompt has no tokens", "--prompt-ids", "give at least one token id");
    return ids;
  }
  MC_ASSERT(args.given(flags::kPrompt) != args.given(flags::kPromptFile));
  std::string text = args.text(flags::kPrompt);
  if (args.given(flags::kPromptFile)) {
    auto file = read_file(args.text(flags::kPromptFile), text::Tokenizer::kTextBytesMax);
    if (!file) return as_user_error(err::kFileAccess, std::move(file).error());
    text = std::move(*file);
  }
  MC_ASSERT(tokenizer != nullptr);
  auto ids = tokenizer->encode(text);
  if (!ids) return as_user_error(err::kInputTooLarge, std::move(ids).error());
  if (ids->empty()) return user_error(err::kBadValue, "the prompt has no tokens", "-p, -f", "give some text");
  return std::move(*ids);
}

}  // namespace mc::verbs
