#include "verbs/operators.h"

#include <unistd.h>

#include <cstdlib>

#include "base/assert.h"
#include "base/errors.h"
#include "base/foreign_text.h"
#include "ctl/ctl.h"
#include "host/conductor_process.h"
#include "verbs/ask.h"

namespace mc::verbs {

Result<std::string> conductor_place(const cli::Args& args) {
  if (args.present(flags::kUrl)) return args.text(flags::kUrl);
  MC_TRY(directory, ctl::run_dir([](const char* name) -> const char* { return std::getenv(name); }));
  return "unix:" + directory + "/" + std::string(host::kOperatorsSocket);
}

Result<Json> ask_conductor(const cli::Args& args, http::Method method, const std::string& path, std::string body,
                           TimePoint deadline) {
  MC_ASSERT(path.starts_with('/') && deadline != kNever);
  MC_TRY(place, conductor_place(args));
  const std::string url = place + path;
  MC_TRY(headers, key_headers(args));
  if (!body.empty()) headers.push_back({"Content-Type", "application/json"});
  auto response = http::fetch(method, place, path, headers, std::move(body), deadline);
  if (!response) return unreachable(place, path, std::move(response).error());
  auto json = Json::parse(response->body);
  if (!json) return user_error(err::kPeerGarbage, "the answer is not JSON: " + json.error().what, url);
  if (response->status >= 300)
    return with_key_advice(args, told_error(*json, response->status, url),
                           "leave --url out: the verb uses the socket in MCT_RUN_DIR");
  // Nodes choose some of these texts. JSON escapes them when it is printed.
  if (!(args.has(flags::kJson) && args.on(flags::kJson)) && ::isatty(1) == 1) return show_controls_in(*json);
  return std::move(*json);
}

TimePoint soon(Duration d) {
  return SystemClock::instance().now() + d;
}

}  // namespace mc::verbs
