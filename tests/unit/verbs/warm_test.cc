// mc-cache warm beside a conductor that only answers: which requests it sends.

#include "verbs/warm.h"

#include <fstream>
#include <mutex>

#include "base/errors.h"
#include "base/json.h"
#include "operators_socket.h"
#include "test.h"

namespace warm_test {

using namespace mc;
using namespace mc::verbs;

namespace {

constexpr cli::Positional kNode[] = {{.name = "NODE", .help = "a node"}};
constexpr cli::Verb kVerbs[] = {{.name = "warm", .summary = "warms", .args = kNode, .flags = kWarmFlags}};
constexpr cli::Program kProgram{.name = "mc-try", .summary = "has one verb", .verbs = kVerbs};

/// A conductor that keeps what it is asked. Node p0 has the blocks of every prompt as soon as one was computed.
struct Conductor {
  std::string answer(const http::Request& request) {
    const std::lock_guard lock(mutex);
    if (!request.body.empty()) bodies.emplace_back(request.path, Json::parse(request.body).value());
    if (request.path == "/tokenize") return R"({"tokens":[5,6,7]})";
    if (request.path == "/cluster")
      return R"({"nodes":[{"id":"p0","instance":"0123456789abcdef","url":"http://127.0.0.1:9"}]})";
    if (request.path != "/admin/explain") return is_computed = true, "{}";
    return R"({"block_hashes":["00112233445566778899aabbccddeeff"],"prompt_tokens":65,"tail_tokens":1,"holders":[)" +
           std::string(is_computed ? R"({"node":"p0","match_blocks":1})" : "") + "]}";
  }
  Result<int> warm(std::vector<std::string> words) {
    const std::string path = socket.directory() + "/prompt.txt";
    std::ofstream(path) << "Answer briefly.";
    std::ofstream(socket.directory() + "/node-0123456789ab.http") << "";  // the verb looks for it and does not use it
    std::vector<const char*> argv = {"mc-try", "warm", "p0"};
    for (std::string& word : words) argv.push_back((word = word == "FILE" ? path : word).c_str());
    argv.push_back("--json");
    const auto args = cli::parse(kProgram, static_cast<int>(argv.size()), argv.data(),
                                 [](const char*) -> const char* { return nullptr; });
    REQUIRE_OK(args);
    return warm_node(args->args);
  }
  /// The bodies of the calls of a path.
  std::vector<Json> sent(const std::string& path) {
    const std::lock_guard lock(mutex);
    std::vector<Json> out;
    for (const auto& [at, body] : bodies)
      if (at == path) out.push_back(body);
    return out;
  }

  std::mutex mutex;
  std::vector<std::pair<std::string, Json>> bodies;  // guarded by mutex
  bool is_computed = false;                          // guarded by mutex
  /// Last: its thread calls answer(), and it stops first.
  test::OperatorsSocket socket{[this](const http::Request& request) { return answer(request); }};
};

}  // namespace

TEST_CASE("verbs/warm: a text is computed as it is, and every question is about one token of answer") {
  Conductor conductor;
  CHECK(conductor.warm({"-f", "FILE"}).value() == 0);
  REQUIRE(conductor.sent("/v1/completions").size() == 1);
  CHECK(conductor.sent("/v1/completions")[0]["prompt"].as_string() == "Answer briefly.");
  CHECK(conductor.sent("/v1/completions")[0]["max_tokens"].as_int() == 1);
  REQUIRE(!conductor.sent("/admin/explain").empty());
  for (const Json& asked : conductor.sent("/admin/explain")) CHECK(asked["max_tokens"].as_int() == 1);
  CHECK(conductor.sent("/tokenize").empty());
}

TEST_CASE("verbs/warm: the beginning of a chat goes through the chat template, without the beginning of an answer") {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"-f", "FILE", "--chat", "system"}, R"([{"role":"system","content":"Answer briefly."}])"},
      {{"-f", "FILE", "--chat", "user"}, R"([{"role":"user","content":"Answer briefly."}])"},
      {{"--system", "Be kind."}, R"([{"role":"system","content":"Be kind."}])"},
      {{"--system", "Be kind.", "-f", "FILE"},
       R"([{"role":"system","content":"Be kind."},{"role":"user","content":"Answer briefly."}])"},
  };
  for (const auto& [words, messages] : cases) {
    Conductor conductor;
    CHECK(conductor.warm(words).value() == 0);
    const auto tokenized = conductor.sent("/tokenize");
    REQUIRE(tokenized.size() == 1);
    CHECK(tokenized[0]["messages"].dump() == messages);
    CHECK(tokenized[0].has("add_generation_prompt"));
    CHECK_FALSE(tokenized[0]["add_generation_prompt"].as_bool());
    REQUIRE(conductor.sent("/v1/completions").size() == 1);
    CHECK(conductor.sent("/v1/completions")[0]["prompt"].dump() == "[5,6,7]");
    CHECK(conductor.sent("/v1/completions")[0]["max_tokens"].as_int() == 1);
  }
}

TEST_CASE("verbs/warm: nothing to warm, or two system messages, is refused before anything is asked") {
  Conductor conductor;
  const std::vector<std::string> wrong[] = {
      {}, {"--chat", "user"}, {"--system", "a", "-f", "FILE", "--chat", "system"}};
  for (const auto& words : wrong) {
    const auto refused = conductor.warm(words);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().mc == err::kUsage);
  }
  CHECK(conductor.bodies.empty());
}

}  // namespace warm_test
