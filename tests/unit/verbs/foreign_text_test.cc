// Text of models on its way to a terminal, a pipe or a file.

#include "verbs/foreign_text.h"

#include <fcntl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "base/fd.h"
#include "test.h"

namespace foreign_text_test {

using namespace mc;
using namespace mc::verbs;

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

TEST_CASE("verbs/foreign_text: controls and broken bytes are shown, and text passes as it is") {
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

TEST_CASE("verbs/foreign_text: a terminal gets controls escaped and a pipe gets them as they are") {
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

}  // namespace foreign_text_test
