#include "text/stop.h"

#include "test.h"

using namespace mc;
using namespace mc::text;

namespace {

StopMatcher matcher(std::vector<std::string> stops, bool include = false) {
  auto built = StopMatcher::build(std::move(stops), include);
  REQUIRE_OK(built);
  return std::move(*built);
}

std::string why_not(std::vector<std::string> stops) {
  auto built = StopMatcher::build(std::move(stops));
  return built ? "accepted" : built.error().what;
}

}  // namespace

TEST_CASE("text/stop: text is held back exactly while it could be the start of a stop") {
  auto stop = matcher({"\n\nUser:"});
  CHECK(stop.push("Hello\n") == "Hello");
  CHECK(stop.held_bytes() == 1);
  CHECK(stop.push("\n") == "");
  CHECK(stop.push("\nUs") == "\n");
  CHECK(stop.push("age") == "\n\nUsage");
  CHECK(stop.held_bytes() == 0);
  CHECK_FALSE(stop.stopped());
}

TEST_CASE("text/stop: a stop over several pieces ends the text before it, or behind it when included") {
  for (bool include : {false, true}) {
    auto stop = matcher({"STOP"}, include);
    std::string text;
    for (const char* piece : {"a S", "T", "O", "P b", "more"}) text += stop.push(piece);
    CHECK(stop.stopped());
    CHECK(stop.stop() == "STOP");
    CHECK(text == (include ? "a STOP" : "a "));
    CHECK(stop.flush() == "");
    CHECK_FALSE(stop.stopped());
  }
}

TEST_CASE("text/stop: the stop that is complete first wins, and of two at one byte the longer") {
  auto first = matcher({"abcd", "bc"});
  CHECK(first.push("xabcd") == "xa");
  CHECK(first.stop() == "bc");
  auto longer = matcher({"b", "ab"});
  CHECK(longer.push("xab") == "x");
  CHECK(longer.stop() == "ab");
  auto inner = matcher({"aXb", "X"});
  CHECK(inner.push("a") == "");
  CHECK(inner.push("X") == "a");
}

TEST_CASE("text/stop: the end gives back what was held, and pass forgets it") {
  auto stop = matcher({"<end>"});
  CHECK(stop.push("a<en") == "a");
  CHECK(stop.flush() == "<en");
  CHECK(stop.push("<en") == "");
  CHECK(stop.pass("d>") == "<end>");
  CHECK_FALSE(stop.stopped());
  CHECK(stop.push("d>") == "d>");
  CHECK(StopMatcher().push("anything") == "anything");
}

TEST_CASE("text/stop: a self-overlapping stop is found after a false start") {
  auto stop = matcher({"aab"});
  CHECK(stop.push("aaaa") == "aa");
  CHECK(stop.push("b") == "");
  CHECK(stop.stopped());
}

TEST_CASE("text/stop: bad stops are refused by their index") {
  CHECK(why_not({"a", ""}) == "text: stop string 1 is empty");
  CHECK(why_not({"\xFF"}) == "text: stop string 0 is not valid UTF-8 at byte 0");
  CHECK(why_not({std::string(5000, 'a')}) == "text: stop string 0 has 5000 bytes; the most is 4096");
  CHECK(why_not(std::vector<std::string>(65, "a")) == "text: 65 stop strings given; the most is 64");
  CHECK(why_not({"a", "a"}) == "accepted");
}
