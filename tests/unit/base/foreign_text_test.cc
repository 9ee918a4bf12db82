// Text of models on its way to a terminal, a pipe or a file.

#include "base/foreign_text.h"

#include <fcntl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "base/errors.h"
#include "base/fd.h"
#include "base/json.h"
#include "test.h"

namespace foreign_text_test {

using namespace mc;

namespace {

constexpr std::string_view kTitle =
    "a\x1b]0;owned\x07"
    "b\n";

std::string read_some(int fd) {
  std::array<char, 256> bytes;
  const ssize_t size = ::read(fd, bytes.data(), bytes.size());
  return {bytes.data(), size > 0 ? static_cast<size_t>(size) : 0};
}

}  // namespace

TEST_CASE("base/foreign_text: controls and broken bytes are shown, and text passes as it is") {
  const std::string_view text = "caf\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80\n\tend\xC2\xA0";
  CHECK(show_controls(text) == text);
  CHECK(show_controls("\x1b[2J") == "\\x1b[2J");
  CHECK(show_controls("a\rb\x7f\x08") == "a\\x0db\\x7f\\x08");
  CHECK(show_controls(std::string_view("\0", 1)) == "\\x00");
  CHECK(show_controls("\xC2\x9B"
                      "2J\xC2\x80") == "\\u009b2J\\u0080");
  CHECK(show_controls("\x9B"
                      "2J\xC3") == "\\x9b2J\\xc3");
}

TEST_CASE("base/foreign_text: a terminal gets controls escaped and a pipe gets them as they are") {
  const Fd terminal(::posix_openpt(O_RDWR | O_NOCTTY));
  REQUIRE(terminal);
  REQUIRE(::grantpt(terminal.get()) == 0);
  REQUIRE(::unlockpt(terminal.get()) == 0);
  const Fd screen(::open(::ptsname(terminal.get()), O_RDWR | O_NOCTTY));
  REQUIRE(screen);
  termios raw{};
  REQUIRE(::tcgetattr(screen.get(), &raw) == 0);
  ::cfmakeraw(&raw);
  REQUIRE(::tcsetattr(screen.get(), TCSANOW, &raw) == 0);
  REQUIRE_OK(write_foreign(screen.get(), kTitle));
  CHECK(read_some(terminal.get()) == "a\\x1b]0;owned\\x07b\n");
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const Fd out(ends[0]), in(ends[1]);
  REQUIRE_OK(write_foreign(in.get(), kTitle));
  CHECK(read_some(out.get()) == kTitle);
}

TEST_CASE("base/foreign_text: the strings and names of a JSON value are shown, and its numbers stay") {
  const Json told = Json::object({{"a\x1b", Json::array({"\x1b[2J", 7})}, {"b", true}});
  const Json shown = Json::object({{"a\\x1b", Json::array({"\\x1b[2J", 7})}, {"b", true}});
  CHECK(show_controls_in(told) == shown);
}

TEST_CASE("base/foreign_text: an error that a server tells moves no cursor") {
  const Error error = user_error(err::kPeerGarbage, "x\x1b]0;owned\x07", "http://a\x1b[2J", "y\xC2\x9B");
  CHECK(format_error("mc-x", error).find_first_of("\x1b\x07\xC2") == std::string::npos);
  CHECK(format_error("mc-x", Error{Code::io, "\x1b[2J"}) == "mc-x: error: \\x1b[2J\n");
}

}  // namespace foreign_text_test
