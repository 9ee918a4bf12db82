#include "door/bearer.h"

#include <unistd.h>

#include <filesystem>
#include <set>

#include "base/errors.h"
#include "base/secret_file.h"
#include "test.h"

using namespace mc;
using namespace mc::door;

namespace {

struct File {
  explicit File(std::string_view text)
      : path(std::filesystem::temp_directory_path() / ("mct-bearer-" + std::to_string(::getpid()))) {
    REQUIRE_OK(create_secret_file(path, text, "-o"));
  }
  ~File() { std::filesystem::remove(path); }
  std::string path;
};

http::Request with(std::string authorization) {
  http::Request request;
  request.headers = {{"authorization", std::move(authorization)}};
  return request;
}

}  // namespace

TEST_CASE("door/bearer: a lock without a key opens to its user's socket alone, and to all when asked for") {
  const PageLock closed(false), open(true);
  http::Request request;
  CHECK_FALSE(closed.admits(request));
  CHECK_FALSE(closed.admits(with("Bearer ")));
  CHECK(open.admits(request));
  CHECK_FALSE(open.admits_to_kv(request));
  request.over_socket = true;
  CHECK(open.admits_to_kv(request));
  CHECK(closed.admits(request));
  CHECK(closed.refusal("/cluster").mc == err::kForbidden);
  CHECK(closed.refusal("/cluster").what.find("this program has no admin key") != std::string::npos);
  CHECK(closed.refusal("/cluster").next == kNoAdminKeyStep);
}

TEST_CASE("door/bearer: the admin key opens the lock, and what resembles it does not") {
  const auto key = new_admin_key();
  REQUIRE_OK(key);
  const File file(*key + "\n");
  PageLock lock(false);
  REQUIRE_OK(lock.load(file.path));
  CHECK(lock.has_key());
  CHECK(lock.admits(with("Bearer " + *key)));
  CHECK(lock.admits(with("bearer " + *key)));
  for (const std::string& text : {*key, "Basic " + *key, "Bearer  " + *key, "Bearer " + *key + "0", "Bearer" + *key,
                                  "Bearer " + key->substr(0, key->size() - 1), std::string(), "Bearer " + *key + " "}) {
    CAPTURE(text);
    CHECK_FALSE(lock.admits(with(text)));
  }
}

TEST_CASE("door/bearer: a key that cannot be read changes nothing") {
  PageLock lock(false);
  {
    const File file("first-key-1\n");
    REQUIRE_OK(lock.load(file.path));
  }
  CHECK_FALSE(lock.load("/nonexistent"));
  for (const char* text : {"", "\n", "short\n", "two lines\nof text\n", "with space in it\n"}) {
    const File file(text);
    const auto refused = lock.load(file.path);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().mc == err::kKeyFile);
    CHECK(refused.error().what.find("first") == std::string::npos);
  }
  CHECK(lock.admits(with("Bearer first-key-1")));
}

TEST_CASE("door/bearer: admin keys are long and never the same") {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const auto key = new_admin_key();
    REQUIRE_OK(key);
    CHECK(is_bearer_key(*key));
    CHECK(key->size() == 8 + 64);
    CHECK(seen.insert(*key).second);
  }
}
