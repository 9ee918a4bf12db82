#include "base/json.h"

#include <bit>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "test.h"

using namespace mc;

TEST_CASE("base/json: a string is written without any control character, and reads back as it was") {
  std::string text = "caf\xC3\xA9 \xC2\xA0 ";
  for (int c = 0; c < 0x20; ++c) text += static_cast<char>(c);
  text += "\x7F";
  for (int c = 0x80; c < 0xA0; ++c) text += std::string("\xC2") + static_cast<char>(c);
  const std::string written = Json(text).dump();
  for (const char c : written) CHECK((static_cast<uint8_t>(c) >= 0x20 && c != 0x7F));
  for (int c = 0x80; c < 0xA0; ++c)
    CHECK(written.find(std::string("\xC2") + static_cast<char>(c)) == std::string::npos);
  CHECK(written.find("\\u007f\\u0080") != std::string::npos);
  CHECK(written.find("\\u009b") != std::string::npos);
  CHECK(written.starts_with("\"caf\xC3\xA9 \xC2\xA0 "));
  const auto read = Json::parse(written);
  REQUIRE_OK(read);
  CHECK(read->as_string() == text);
}

TEST_CASE("base/json: an object keeps the order of its keys through parse and dump") {
  const std::string text = R"({"z":1,"a":[true,null,-2.5,"x"],"m":{"k":{}},"e":[]})";
  const auto json = Json::parse(text);
  REQUIRE_OK(json);
  CHECK(json->dump() == text);
  CHECK((*json)["a"][2].as_double() == -2.5);
  CHECK((*json)["m"]["k"].is_object());
}

TEST_CASE("base/json: lookups through missing keys and wrong kinds give the fallback") {
  const Json json = Json::object({{"n", 3}, {"s", "text"}, {"d", 2.0}, {"h", 2.5}});
  CHECK(json["x"]["y"][7].as_int(42) == 42);
  CHECK(json["s"].as_int(42) == 42);
  CHECK(json["n"].as_string("none") == "none");
  CHECK(json["d"].as_int(-1) == 2);
  CHECK(json["h"].as_int(-1) == -1);
  CHECK(json["n"].as_double() == 3.0);
  CHECK(json["n"].as_bool(true));
}

TEST_CASE("base/json: set replaces an equal key in place and appends a new one") {
  Json json;
  json.set("a", 1).set("b", 2).set("a", "x");
  CHECK(json.dump() == R"({"a":"x","b":2})");
  CHECK(Json().push(1).push(Json::array({2, 3})).dump() == "[1,[2,3]]");
}

TEST_CASE("base/json: doubles print as the shortest text that reads back equal") {
  CHECK(Json(0.1).dump() == "0.1");
  CHECK(Json(1.0).dump() == "1.0");
  CHECK(Json(-0.0).dump() == "-0.0");
  CHECK(Json(1e300).dump() == "1e+300");
  CHECK(Json(std::nan("")).dump() == "null");
  CHECK(Json(-std::numeric_limits<double>::infinity()).dump() == "null");
  Rng rng(test::seed());
  for (int i = 0; i < 2000; ++i) {
    const double value = std::bit_cast<double>(rng.next());
    if (!std::isfinite(value)) continue;
    const auto back = Json::parse(Json(value).dump());
    REQUIRE_OK(back);
    CHECK(std::bit_cast<uint64_t>(back->as_double()) == std::bit_cast<uint64_t>(value));
    CHECK_FALSE(back->is_int());
  }
}

TEST_CASE("base/json: integers are exact up to 64 bits and become doubles beyond") {
  CHECK(Json::parse("9223372036854775807").value() == Json(std::numeric_limits<int64_t>::max()));
  CHECK(Json::parse("-9223372036854775808").value() == Json(std::numeric_limits<int64_t>::min()));
  CHECK(Json::parse("9223372036854775808").value() == Json(0x1p63));
  CHECK(Json::parse("1e3")->as_int() == 1000);
  CHECK_FALSE(Json::parse("1e999"));
}

TEST_CASE("base/json: what was dumped parses to an equal value, whatever bytes a string holds") {
  Rng rng(test::seed());
  for (int round = 0; round < 500; ++round) {
    std::string text(rng.below(40), ' ');
    for (char& c : text) c = static_cast<char>(rng.next());
    const auto back = Json::parse(Json(text).dump());
    REQUIRE_OK(back);
    if (!find_invalid_utf8(text)) CHECK(back->as_string() == text);
  }
  CHECK(Json(std::string("a\0\n\"\\\x1f/\xc3\xa9", 9)).dump() == "\"a\\u0000\\n\\\"\\\\\\u001f/\xc3\xa9\"");
  CHECK(Json("\xc3(").dump() == "\"\xef\xbf\xbd(\"");
}

TEST_CASE("base/json: errors name the byte, the key or the limit") {
  const auto what = [](std::string_view text, JsonLimits limits = {}) {
    const auto json = Json::parse(text, limits);
    REQUIRE_FALSE(json);
    CHECK(json.error().code == Code::invalid);
    return json.error().what;
  };
  const auto names = [&](const std::string& text, std::string_view part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  names(what(R"({"a":1,"b":2,"a":3})"), "key \"a\" occurs twice");
  names(what("{\"a\": \"x\xff\"}"), "invalid UTF-8 at byte 8");
  names(what(R"({"a":})"), "byte 6");
  names(what(""), "byte 1");
  names(what("[1] x"), "byte 5");
  names(what("[[[[1]]]]", {.depth = 3}), "deeper than 3 levels");
  names(what("[1,2,3,4]", {.values = 4}), "more than 4 values");
  names(what("[1,2,3,4]", {.bytes = 8}), "9 bytes, the limit is 8");
  CHECK_FALSE(what("[1] x").starts_with("json"));  // callers say what is not JSON
  names(what(R"("\ud800")"), "surrogate");
  CHECK(what("\"" + std::string(100000, 'x')).size() < 300);
  for (const char* bad : {"nul", "01", "+1", "1.", ".5", "NaN", "'a'", "[1,]", "{\"a\":1,}", "{a:1}", "\"\t\"", "//"})
    CHECK_FALSE(Json::parse(bad));
}

TEST_CASE("base/json: a million opening brackets are refused without using the stack") {
  CHECK_FALSE(Json::parse(std::string(1'000'000, '[')));
}

TEST_CASE("base/json: UTF-8 validation finds the first bad byte of every ill-formed kind") {
  CHECK_FALSE(find_invalid_utf8("plain ascii text \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xef\xbf\xbf"));
  CHECK(find_invalid_utf8("ab\x80") == 2);
  CHECK(find_invalid_utf8("abcdefgh\xc3") == 8);          // cut off
  CHECK(find_invalid_utf8("\xc0\x80") == 0);              // overlong NUL
  CHECK(find_invalid_utf8("\xe0\x80\x80") == 0);          // overlong
  CHECK(find_invalid_utf8("x\xed\xa0\x80") == 1);         // surrogate
  CHECK(find_invalid_utf8("\xf4\x90\x80\x80") == 0);      // above U+10FFFF
  CHECK(find_invalid_utf8("\xf0\x9f\x98") == 0);          // three of four
  CHECK(find_invalid_utf8("\xe2\x82\xac\xe2\x82") == 3);  // second one cut off
}
