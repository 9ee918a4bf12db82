#include "door/api_keys.h"

#include "base/errors.h"
#include "test.h"

using namespace mc;
using namespace mc::door;

namespace {
constexpr const char* kFile = R"(
[tenant.search]
keys = ["sk-search-1", "sk-search-2"]
weight = 2.5
priority = -1
tokens_per_s = 2000
burst_tokens = 5000
requests_max = 7
[tenant.chat]
keys = ["sk-chat-001"]
salt = ""
admin = true
)";
}

TEST_CASE("door/api_keys: a key names its tenant, its salt and whether it may operate") {
  const auto keys = ApiKeys::parse(kFile, "keys.toml");
  REQUIRE_OK(keys);
  REQUIRE(keys->tenants().size() == 2);
  const sched::Tenant& search = keys->tenants()[0];
  CHECK(search.name == "search");
  CHECK(search.weight == 2.5);
  CHECK(search.priority == -1);
  CHECK(search.tokens_per_s == 2000);
  CHECK(search.burst() == 5000);
  CHECK(search.requests_max == 7);
  const auto* grant = keys->find("Bearer sk-search-2");
  REQUIRE(grant != nullptr);
  CHECK(grant->tenant == "search");
  CHECK(grant->salt == "search");
  CHECK_FALSE(grant->admin);
  REQUIRE(keys->find("bearer sk-chat-001") != nullptr);
  CHECK(keys->find("bearer sk-chat-001")->salt.empty());
  CHECK(keys->find("bearer sk-chat-001")->admin);
}

TEST_CASE("door/api_keys: nobody else gets in") {
  const auto keys = ApiKeys::parse(kFile, "keys.toml");
  REQUIRE_OK(keys);
  for (const std::string text : {"", "Bearer", "Bearer ", "sk-search-1", "Basic sk-search-1", "Bearer sk-search-11",
                                 "Bearer sk-search-1 ", "Bearer  sk-search-1", "Bearer SK-SEARCH-1"}) {
    CAPTURE(text);
    CHECK(keys->find(text) == nullptr);
  }
  CHECK(keys->find("Bearer " + std::string(100000, 'x')) == nullptr);
}

TEST_CASE("door/api_keys: what is wrong is named with its line") {
  const std::pair<const char*, const char*> cases[] = {
      {"[tenant.a]\nkeys = [\"sk-00000001\"]\nweight = 0\n", "keys.toml:3"},
      {"[tenant.a]\nkeys = [\"sk-00000001\"]\npriority = 1.5\n", "integer from -100 to 100"},
      {"[tenant.a]\nkeys = [\"sk-00000001\"]\nburst_tokens = 5\n", "without tokens_per_s"},
      {"[tenant.\"a b\"]\nkeys = [\"sk-00000001\"]\n", "[tenant.NAME]"},
      {"[tenant.a]\nkeys = \"sk-00000001\"\n", "must be a list"},
      {"[tenant.a]\nkeys = []\n", "must be a list"},
      {"[tenant.a.b]\nkeys = [\"sk-00000001\"]\n", "[tenant.NAME]"},
      {"[tenant]\nx = 1\n", "[tenant.NAME]"},
  };
  for (const auto& [text, what] : cases) {
    CAPTURE(text);
    const auto keys = ApiKeys::parse(text, "keys.toml");
    REQUIRE_FALSE(keys);
    INFO(keys.error().what);
    CHECK(one_line(keys.error()).find(what) != std::string::npos);
  }
}
