#include "base/choice.h"

#include "base/cli_builder.h"

namespace mc {

bool is_word(const cli::Args& args, const Flag& flag) {
  return cli::is_choice(flag, args.text(flag));
}

}  // namespace mc
