// Memory runs out at every allocation in turn while a request is read: the request fails, and nothing else.
#include "base/json.h"
#include "failing_memory.h"
#include "http/openai.h"
#include "test.h"

using namespace mc;
using test::with_each_allocation_failing;

namespace {

std::string array_of(const std::string& element, int count) {
  std::string text = "[";
  for (int i = 0; i < count; ++i) text += (i > 0 ? "," : "") + element;
  return text + "]";
}

}  // namespace

TEST_CASE("attack/http: a tree of JSON is given up wherever memory ends") {
  const std::string nested = std::string(60, '[') + "\"a string that needs the heap\"" + std::string(60, ']');
  const std::string objects = array_of(R"({"role":"a role that needs the heap","content":[{"k":[1,2,3]}]})", 20);
  for (const std::string& text : {nested, objects, array_of("17", 300)})
    CHECK(with_each_allocation_failing([&] { (void)Json::parse(text); }) > 5);
}

TEST_CASE("attack/http: copying and changing a tree of JSON is given up wherever memory ends") {
  const auto tree =
      Json::parse(array_of(R"({"name":"a name that needs the heap","list":[1,"two and more to need the heap"]})", 20));
  REQUIRE_OK(tree);
  CHECK(with_each_allocation_failing([&] {
          Json copy = *tree;
          copy.push(Json::object({{"key that needs the heap as well", copy}}));
          Json moved = std::move(copy);
          (void)moved.dump();
        }) > 20);
}

TEST_CASE("attack/http: a request is given up wherever memory ends") {
  const std::string chat =
      R"({"model":"m","messages":)" + array_of(R"({"role":"user","content":"a sentence that needs the heap"})", 20) +
      R"(,"stop":["one stop string that needs the heap"],"logit_bias":{"5":1.5},"unknown_field":1})";
  const std::string completion = R"({"prompt":)" + array_of("5", 200) + R"(,"max_tokens":4,"mc":{"explain":true}})";
  CHECK(with_each_allocation_failing([&] { (void)http::parse_chat(chat, {}, {}); }) > 20);
  CHECK(with_each_allocation_failing([&] { (void)http::parse_completion(completion, {}, {}); }) > 5);
}

static_assert(std::is_nothrow_move_constructible_v<Json> && std::is_nothrow_move_assignable_v<Json> &&
              std::is_nothrow_move_constructible_v<JsonMember> && std::is_nothrow_move_assignable_v<JsonMember>);
