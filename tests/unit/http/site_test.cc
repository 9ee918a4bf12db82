#include "http/site.h"

#include "base/json.h"
#include "test.h"

using namespace mc;
using namespace mc::http;

namespace {

Request request(Headers headers, bool http11 = true) {
  Request r;
  r.headers = std::move(headers);
  r.http11 = http11;
  return r;
}

bool passes(const SitePolicy& policy, Headers headers) {
  return !refuse_foreign(request(std::move(headers)), policy);
}

}  // namespace

TEST_CASE("http/site: loopback's own names pass with any port, and no other name does") {
  const SitePolicy policy{.checks_host = true, .own_hosts = {"chat.example"}, .own_origins = {}};
  for (const char* host : {"localhost", "LocalHost:8000", "127.0.0.1", "127.1.2.3:1", "[::1]", "[::1]:8000",
                           "chat.example", "CHAT.example:443"}) {
    CAPTURE(host);
    CHECK(passes(policy, {{"host", host}}));
  }
  for (const char* host :
       {"", ":8000", "evil.example", "127.evil.example", "127.0.0.1.evil.example", "localhost.evil.example",
        "localhost.", "127.1", "0x7f000001", "2130706433", "0.0.0.0", "[::2]", "[::1", "[::ffff:127.0.0.1]",
        "chat.example.evil", "localhost@evil.example", "10.0.0.1"}) {
    CAPTURE(host);
    CHECK_FALSE(passes(policy, {{"host", host}}));
    CHECK(passes({}, {{"host", host}}));  // an address beyond loopback: clients use names that we do not know
  }
}

TEST_CASE("http/site: HTTP/1.0 may leave Host out") {
  const SitePolicy policy{.checks_host = true, .own_hosts = {}, .own_origins = {}};
  CHECK_FALSE(refuse_foreign(request({}, false), policy));
  CHECK(refuse_foreign(request({{"host", "evil.example"}}, false), policy));
}

TEST_CASE("http/site: only pages of this very place, or of a listed origin, may send") {
  const SitePolicy policy{.checks_host = false, .own_hosts = {}, .own_origins = {"https://chat.example"}};
  const std::pair<const char*, const char*> same[] = {
      {"localhost:8000", "http://localhost:8000"}, {"localhost", "http://LOCALHOST"},
      {"localhost:80", "http://localhost"},        {"mc.example", "https://mc.example"},
      {"mc.example", "https://mc.example:443"},    {"[::1]:8000", "http://[::1]:8000"},
      {"localhost:8000", "https://chat.example"}};
  for (const auto& [host, origin] : same) {
    CAPTURE(origin);
    CHECK(passes(policy, {{"host", host}, {"origin", origin}}));
  }
  for (const char* origin :
       {"null", "", "https://evil.example", "http://localhost", "http://localhost:8001", "https://localhost",
        "http://127.0.0.1:8000", "http://localhost:8000.evil.example", "http://chat.example", "localhost:8000"}) {
    CAPTURE(origin);
    CHECK_FALSE(passes(policy, {{"host", "localhost:8000"}, {"origin", origin}}));
  }
  // A second Origin does not hide behind a good one.
  CHECK_FALSE(passes(policy, {{"host", "localhost:8000"}, {"origin", "http://localhost:8000"}, {"origin", "null"}}));
}

TEST_CASE("http/site: the refusal is OpenAI's error form, and shows no bytes that a terminal would obey") {
  const SitePolicy policy{.checks_host = true, .own_hosts = {}, .own_origins = {}};
  const auto refusal = refuse_foreign(request({{"host", "evil\x1b[2J\xff"}}), policy);
  REQUIRE(refusal);
  CHECK(refusal->status == 403);
  const auto json = Json::parse(refusal->body);
  REQUIRE_OK(json);
  CHECK((*json)["error"]["code"].as_string() == "foreign_site");
  CHECK(refusal->body.find("evil") == std::string::npos);
}
