// The template language against Python's jinja2 as transformers configures it, construct by construct.
// scripts/make-template-goldens writes the expected texts and errors.
#include <fstream>

#include "jinja/jinja.h"
#include "test.h"

using namespace mc;

namespace {

std::vector<Json> read_lines(const std::string& name) {
  std::vector<Json> out;
  std::ifstream file(test::source_dir() + "/tests/golden/jinja/" + name);
  for (std::string line; std::getline(file, line);) {
    auto parsed = Json::parse(line);
    REQUIRE_OK(parsed);
    out.push_back(std::move(*parsed));
  }
  REQUIRE(out.size() > 1);
  return out;
}

/// The golden clock: 2031-02-05 07:08:09, a Wednesday.
std::tm now() {
  std::tm out{};
  out.tm_year = 131, out.tm_mon = 1, out.tm_mday = 5, out.tm_hour = 7, out.tm_min = 8, out.tm_sec = 9;
  out.tm_wday = 3, out.tm_yday = 35;
  return out;
}

/// Errors say where ("line 3, column 7: "), then what jinja2 would say; of Python's own errors, whose
/// words are its own, only the class is compared.
void check_error(const Json& row, std::string_view what) {
  const std::string expected = std::string(row["error"].as_string()) + ": " + std::string(row["message"].as_string());
  const size_t at = what.find("line ");
  REQUIRE(at != what.npos);
  const std::string_view got = what.substr(what.find(": ", at) + 2);
  if (row.has("message"))
    CHECK(got == expected);
  else
    CHECK(got.starts_with(expected));
}

}  // namespace

TEST_CASE("jinja: every construct gives Jinja's text, or Jinja's error") {
  const auto rows = read_lines("constructs.jsonl");
  jinja::Context context{.now = now()};
  for (const auto& [name, value] : rows[0]["context"].members())
    context.variables.emplace_back(name, jinja::Value::from_json(value, true));
  for (size_t i = 1; i < rows.size(); ++i) {
    const Json& row = rows[i];
    INFO("template: " << row["template"].as_string());
    const auto tree = jinja::parse(row["template"].as_string());
    const auto text = tree ? jinja::render(*tree, context) : Result<jinja::Str>(tree.error());
    if (row.has("text")) {
      REQUIRE_OK(text);
      CHECK(jinja::narrow(*text) == row["text"].as_string());
    } else if (text) {
      FAIL_CHECK("gives \"" << jinja::narrow(*text) << "\", where Jinja has " << row["error"].as_string());
    } else {
      check_error(row, text.error().what);
    }
  }
}

TEST_CASE("jinja: what is known but not supported is refused by name") {
  for (const char* expression :
       {"'a'.encode()", "'a' | wordwrap", "'a' | urlize", "{} | xmlattr", "[1] | random", "lipsum()", "1 | pprint",
        "'a' | striptags", "1 | filesizeformat", "{}.fromkeys([1])"}) {
    INFO(expression);
    const auto tree = jinja::parse("{{ " + std::string(expression) + " }}");
    REQUIRE_OK(tree);
    const auto text = jinja::render(*tree, {});
    REQUIRE_FALSE(text);
    CHECK(text.error().what.find("NotSupported: ") != std::string::npos);
  }
}

TEST_CASE("jinja: a syntax error names the line and the column where it stands") {
  const std::pair<const char*, const char*> cases[] = {
      {"a\r\nb {{ 1 +}}", "line 2, column 9: TemplateSyntaxError: unexpected 'end of print statement'"},
      {"\u4e16\u754c {{ $ }}", "line 1, column 7: TemplateSyntaxError: unexpected char '$' at 6"},
      {"{% if x %}\n\n{% endfor %}",
       "line 3, column 4: TemplateSyntaxError: Encountered unknown tag 'endfor'. Jinja was "
       "looking for the following tags: 'elif' or 'else' or 'endif'. The innermost block "
       "that needs to be closed is 'if'."},
      {"{{ 'a' ~ 99999999999999999999 }}",
       "line 1, column 10: TemplateSyntaxError: integer 99999999999999999999 is outside 64 bits"},
  };
  for (const auto& [source, what] : cases) {
    const auto tree = jinja::parse(source);
    REQUIRE_FALSE(tree);
    CHECK(tree.error().what == what);
  }
}
