#include "host/profile.h"

#include "base/choice.h"
#include "base/errors.h"
#include "base/fd.h"
#include "host/daemon_flags.h"

namespace mc::host {

Result<sched::Profile> open_profile(const std::string& name) {
  constexpr size_t kProfileBytesMax = size_t{4} << 20;
  if (name.find('/') == std::string::npos && !name.ends_with(".toml")) {
    auto profile = sched::builtin_profile(name);
    if (!profile)
      return user_error(err::kBadValue, profile.error().what, name,
                        "a file is named with its .toml or a slash, as ./" + name);
    return profile;
  }
  auto text = read_file(name, kProfileBytesMax);
  if (!text)
    return user_error(err::kFileAccess, std::move(text).error().what, name,
                      "name a TOML file that can be read (mc-profile(5)), or a built-in profile: a800-llama3-70b");
  auto profile = sched::parse_profile(*text, name);
  if (profile) return profile;
  Error error = std::move(profile).error();
  error.next = "mc-profile(5) has the tables and keys of a profile";
  return error;
}

Result<std::optional<sched::Profile>> runner_profile(const cli::Args& args) {
  constexpr std::string_view kCosted = "costed:";
  if (is_word(args, flags::kRunner)) return std::optional<sched::Profile>();
  const std::string& runner = args.text(flags::kRunner);
  if (!runner.starts_with(kCosted))
    return user_error(err::kBadValue, "--runner " + runner + " is neither model nor costed:PROFILE", "--runner");
  MC_TRY(profile, open_profile(runner.substr(kCosted.size())));
  return std::optional<sched::Profile>(std::move(profile));
}

}  // namespace mc::host
