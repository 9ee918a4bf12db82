#include "base/log_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "test.h"

namespace log_writer_test {

using namespace mc;

namespace {

TimePoint soon() {
  return after(SystemClock::instance().now(), 30s);
}

/// A pipe whose reader has stopped takes one page.
Pipe small_pipe() {
  auto pipe = make_pipe();
  REQUIRE_OK(pipe);
  REQUIRE(::fcntl(pipe->write_end.get(), F_SETPIPE_SZ, 4096) >= 4096);
  return std::move(*pipe);
}

std::string notice(uint64_t lines) {
  return "dropped " + std::to_string(lines) + "\n";
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    REQUIRE(end != std::string::npos);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

}  // namespace

TEST_CASE("base/log_writer: lines arrive in order, and flush waits for the last") {
  auto pipe = make_pipe();
  REQUIRE_OK(pipe);
  LogWriter writer(pipe->write_end.get(), {});
  REQUIRE_OK(writer.start());
  std::string expected;
  for (int i = 0; i < 100; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    writer.push(line);
    expected += line;
  }
  REQUIRE(writer.flush(soon()));
  pipe->write_end.reset();
  const auto text = read_to_end(pipe->read_end.get(), 1 << 20, soon());
  REQUIRE_OK(text);
  CHECK(*text == expected);
  CHECK(writer.dropped() == 0);
}

TEST_CASE("base/log_writer: a reader that stops costs lines, never time, and the gap is told where it is") {
  Pipe pipe = small_pipe();
  LogWriter writer(pipe.write_end.get(), {.bytes_max = 8192, .notice = notice});
  REQUIRE_OK(writer.start());
  const std::string padding(100, '.');
  constexpr int kLines = 10'000;  // a megabyte into a pipe of one page and a queue of two
  for (int i = 0; i < kLines; ++i) writer.push(std::to_string(i) + padding + "\n");
  CHECK(writer.dropped() > 0);
  CHECK_FALSE(writer.flush(SystemClock::instance().now()));

  std::string text;
  std::thread reader([&] {
    auto all = read_to_end(pipe.read_end.get(), 10 << 20, soon());
    if (all) text = std::move(*all);
  });
  CHECK(writer.flush(soon()));
  writer.push("last\n");
  CHECK(writer.flush(soon()));
  pipe.write_end.reset();
  reader.join();

  uint64_t told = 0, written = 0;
  int next = 0;
  for (const std::string& line : lines_of(text)) {
    if (line.starts_with("dropped ")) {
      const uint64_t lost = std::stoull(line.substr(8));
      told += lost;
      next += static_cast<int>(lost);
    } else if (line != "last") {
      CHECK(line == std::to_string(next) + padding);  // what is missing here was counted here
      ++next;
      ++written;
    }
  }
  CHECK(text.ends_with("last\n"));
  CHECK(told == writer.dropped());
  CHECK(written + told == kLines);
}

TEST_CASE("base/log_writer: the end of a process waits for a thread without a processor, and for no reader") {
  auto pipe = make_pipe();
  REQUIRE_OK(pipe);
  LogWriter writer(pipe->write_end.get(), {});
  writer.push("error\n");
  CHECK_FALSE(writer.flush(SystemClock::instance().now()));
  std::thread late([&] { CHECK(writer.start()); });
  CHECK(writer.drain(SystemClock::instance().now()));
  late.join();
  char text[64] = {};
  CHECK(::read(pipe->read_end.get(), text, sizeof text) == 6);

  Pipe full = small_pipe();
  LogWriter stuck(full.write_end.get(), {});
  REQUIRE_OK(stuck.start());
  for (int i = 0; i < 100; ++i) stuck.push(std::string(100, '.') + "\n");
  const TimePoint began = SystemClock::instance().now();
  CHECK_FALSE(stuck.drain(after(began, 50ms)));
  CHECK(SystemClock::instance().now() - began < 10s);
  std::thread reader([&] { (void)read_to_end(full.read_end.get(), 1 << 20, soon()); });
  CHECK(stuck.flush(soon()));  // the descriptor stays open for the thread
  full.write_end.reset();
  reader.join();
}

TEST_CASE("base/log_writer: lines that the descriptor refuses are counted, and later ones are written again") {
  auto pipe = make_pipe();
  REQUIRE_OK(pipe);
  const Fd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  REQUIRE(full);
  const Fd target(::dup(full.get()));
  LogWriter writer(target.get(), {.notice = notice});
  REQUIRE_OK(writer.start());
  writer.push("lost\n");
  REQUIRE(writer.flush(soon()));
  CHECK(writer.dropped() == 1);
  REQUIRE(::dup2(pipe->write_end.get(), target.get()) >= 0);  // the disk has room again
  writer.push("kept\n");
  REQUIRE(writer.flush(soon()));
  char text[64] = {};
  const ssize_t n = ::read(pipe->read_end.get(), text, sizeof text);
  CHECK(std::string(text, n > 0 ? static_cast<size_t>(n) : 0) == "kept\ndropped 1\n");
}

TEST_CASE("base/log_writer: many threads push while the reader is slow, and every line is whole") {
  Pipe pipe = small_pipe();
  LogWriter writer(pipe.write_end.get(), {.bytes_max = 16384, .notice = notice});
  REQUIRE_OK(writer.start());
  std::string text;
  std::thread reader([&] {
    auto all = read_to_end(pipe.read_end.get(), 10 << 20, soon());
    if (all) text = std::move(*all);
  });
  constexpr int kThreads = 4, kEach = 5'000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) writer.push("thread " + std::to_string(t) + " line " + std::to_string(i) + "\n");
    });
  for (auto& thread : threads) thread.join();
  REQUIRE(writer.flush(soon()));
  writer.push("end\n");  // brings the last notice
  REQUIRE(writer.flush(soon()));
  pipe.write_end.reset();
  reader.join();
  uint64_t told = 0, written = 0;
  std::vector<int> last(kThreads, -1);
  for (const std::string& line : lines_of(text)) {
    int t = 0, i = 0;
    if (line.starts_with("dropped ")) {
      told += std::stoull(line.substr(8));
    } else if (std::sscanf(line.c_str(), "thread %d line %d", &t, &i) == 2) {
      REQUIRE(t < kThreads);
      CHECK(i > last[static_cast<size_t>(t)]);
      last[static_cast<size_t>(t)] = i;
      ++written;
    } else {
      CHECK(line == "end");
    }
  }
  CHECK(told == writer.dropped());
  CHECK(written + told == kThreads * kEach);
}

}  // namespace log_writer_test
