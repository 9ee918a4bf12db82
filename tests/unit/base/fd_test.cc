#include "base/fd.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "test.h"

using namespace mc;

namespace {
TimePoint soon() {
  return SystemClock::instance().now() + 20ms;
}
}  // namespace

TEST_CASE("base/fd: a moved descriptor is closed once, by its last owner") {
  auto pipe = make_pipe();
  REQUIRE_OK(pipe);
  const int number = pipe->read_end.get();
  Fd other = std::move(pipe->read_end);
  CHECK_FALSE(pipe->read_end);
  CHECK(::fcntl(number, F_GETFD) >= 0);
  other.reset();
  CHECK(::fcntl(number, F_GETFD) < 0);
}

TEST_CASE("base/fd: reading past the end says how much came") {
  auto pipe = make_pipe();
  REQUIRE_OK(pipe);
  REQUIRE_OK(write_all(pipe->write_end.get(), "abc"));
  pipe->write_end.reset();
  std::vector<std::byte> out(5);
  const auto short_read = read_all(pipe->read_end.get(), out);
  CHECK(short_read.error().code == Code::peer_lost);
  CHECK(short_read.error().what.find("3 of 5") != std::string::npos);
}

TEST_CASE("base/fd: waits end at their deadline with code timeout") {
  auto pipe = make_pipe();
  REQUIRE_OK(pipe);
  std::vector<std::byte> out(1);
  CHECK(read_all(pipe->read_end.get(), out, soon()).error().code == Code::timeout);
  REQUIRE_OK(set_nonblocking(pipe->write_end.get(), true));
  const std::string big(1 << 20, 'x');  // beyond any pipe buffer, and nobody reads
  CHECK(write_all(pipe->write_end.get(), big, soon()).error().code == Code::timeout);
}

TEST_CASE("base/fd: an event wakes once for any number of signals") {
  auto event = EventFd::open();
  REQUIRE_OK(event);
  CHECK_FALSE(event->drain());
  CHECK_FALSE(event->wait(soon()));
  std::thread other([&] { event->signal(); });
  CHECK(event->wait(SystemClock::instance().now() + 10s));
  other.join();
  event->signal();
  CHECK(event->drain());
  CHECK_FALSE(event->drain());
}

TEST_CASE("base/fd: files are replaced whole, read within a limit, and errors name the path") {
  const std::string path = "/tmp/mct-fd-test-" + std::to_string(::getpid());
  REQUIRE_OK(write_file_atomic(path, "one", 0600));
  REQUIRE_OK(write_file_atomic(path, "second", 0600));
  CHECK(*read_file(path, 100) == "second");
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  CHECK(read_file(path, 3).error().code == Code::invalid);
  ::unlink(path.c_str());
  CHECK(read_file(path, 3).error().code == Code::not_found);
  CHECK(read_file(path, 3).error().what.find(path) != std::string::npos);
  CHECK_FALSE(write_file_atomic("/nonexistent/x", "y"));
}

TEST_CASE("base/fd: a FIFO is written to as it is, and one that nobody reads is an error, not a wait") {
  const std::string path = "/tmp/mct-fifo-test-" + std::to_string(::getpid());
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const auto alone = write_file_atomic(path, "lost");
  REQUIRE_FALSE(alone);
  CHECK(alone.error().what == "nobody reads " + path);
  const Fd reader(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE_OK(write_file_atomic(path, "url"));
  char text[8] = {};
  CHECK(::read(reader.get(), text, sizeof text) == 3);
  CHECK(std::string(text) == "url");
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK(S_ISFIFO(info.st_mode));
  ::unlink(path.c_str());
}
