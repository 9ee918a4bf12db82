#include "door/request_reader.h"

#include <unistd.h>

#include <filesystem>

#include "base/errors.h"
#include "test.h"

namespace mc::door::request_reader_test {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<RequestReader> reader_of(const std::string& directory) {
  FrontendOptions options;
  options.model_directory = directory;
  auto reader = RequestReader::open(options);
  REQUIRE_OK(reader);
  return std::move(*reader);
}

http::GenerateRequest json_request() {
  auto parsed = http::parse_chat(
      R"({"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_object"}})", {}, {});
  REQUIRE_OK(parsed);
  return std::move(*parsed);
}

TEST_CASE("door: a model that is served by token ids has no forms of answers") {
  const std::string model = test::source_dir() + "/lib/model/mc-tiny";
  const fs::path place = fs::temp_directory_path() / ("mct-reader-" + std::to_string(::getpid()));
  fs::create_directory(place);
  fs::copy_file(model + "/config.json", place / "config.json");
  const auto by_ids = reader_of(place.string());
  fs::remove_all(place);
  const auto refused = by_ids->grammar(json_request());
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().mc == err::kUnsupportedField);
  CHECK(refused.error().where == "response_format");
  const auto grammar = reader_of(model)->grammar(json_request());
  REQUIRE_OK(grammar);
  CHECK_FALSE(grammar->empty());
}

}  // namespace
}  // namespace mc::door::request_reader_test
