#include "base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/json.h"
#include "test.h"

using namespace mc;

namespace {
LogOptions options(LogFormat format) {
  return {LogLevel::info, format, "mc-decode", "d0"};
}
}  // namespace

TEST_CASE("base/log: a text line is time, level, program, node, event and quoted fields") {
  CHECK(log_format_line(
            options(LogFormat::text), LogLevel::warn, 1'700'000'000'123, "slice retried",
            {{"slice", 7}, {"rail", "mlx5_0"}, {"wait_ms", 1.25}, {"last", true}, {"note", "a b\"c"}, {"none", ""}}) ==
        "2023-11-14T22:13:20.123Z warn mc-decode d0: slice retried slice=7 rail=mlx5_0 wait_ms=1.25 last=true note=\"a "
        "b\\\"c\" none=\"\"");
}

TEST_CASE("base/log: a json line parses whatever bytes the fields hold") {
  const std::string nasty("\xff\x00\n\"\\\x1b[31m\xc3\xa9", 12);
  const std::string line = log_format_line(options(LogFormat::json), LogLevel::error, 0, "peer \"x\"",
                                           {{"text", nasty}, {"n", uint64_t{1} << 63}});
  auto parsed = Json::parse(line);
  REQUIRE_OK(parsed);
  CHECK((*parsed)["ts"].as_string() == "1970-01-01T00:00:00.000Z");
  CHECK((*parsed)["event"].as_string() == "peer \"x\"");
  CHECK((*parsed)["node"].as_string() == "d0");
  CHECK(line.find('\n') == std::string::npos);
}

TEST_CASE("base/log: no field can break out of its line") {
  const std::string line = log_format_line(options(LogFormat::text), LogLevel::info, 0, "x", {{"text", "a\nb\x1b[0m"}});
  for (const char c : line) CHECK(static_cast<unsigned char>(c) >= ' ');
}

TEST_CASE("base/log: levels below the configured one are not enabled") {
  log_set_level(LogLevel::warn);
  CHECK_FALSE(log_enabled(LogLevel::info));
  CHECK(log_enabled(LogLevel::error));
  log_set_level(LogLevel::off);
  CHECK_FALSE(log_enabled(LogLevel::error));
  log_set_level(LogLevel::info);
  CHECK(*parse_log_level("debug") == LogLevel::debug);
  CHECK_FALSE(parse_log_level("loud"));
  CHECK_FALSE(parse_log_format("xml"));
}

TEST_CASE("base/log: after a rotation the next line goes to a new file of the old name") {
  const std::string path = "/tmp/mct-log-test-" + std::to_string(::getpid());
  const Fd saved(::dup(STDERR_FILENO));
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600));
  REQUIRE(file);
  ::dup2(file.get(), STDERR_FILENO);
  log_configure({LogLevel::info, LogFormat::text, "t", ""});
  log_info("first");
  ::rename(path.c_str(), (path + ".1").c_str());
  const auto reopened = log_reopen();
  log_info("second");
  ::dup2(saved.get(), STDERR_FILENO);
  log_configure({});
  REQUIRE_OK(reopened);
  const auto old_text = read_file(path + ".1", 1000), new_text = read_file(path, 1000);
  ::unlink(path.c_str());
  ::unlink((path + ".1").c_str());
  REQUIRE_OK(old_text);
  REQUIRE_OK(new_text);
  CHECK(old_text->find("first") != std::string::npos);
  CHECK(old_text->find("second") == std::string::npos);
  CHECK(new_text->find("second") != std::string::npos);
}

TEST_CASE("base/log: repeated warnings of one event are limited, and the next line says how many were suppressed") {
  const auto pipe = make_pipe();
  REQUIRE_OK(pipe);
  const Fd saved(::dup(STDERR_FILENO));
  ::dup2(pipe->write_end.get(), STDERR_FILENO);
  const uint64_t before = log_losses().suppressed;
  for (int i = 0; i < 200; ++i) log_warn("limited event", {{"i", i}});
  log_warn("another event");
  ::dup2(saved.get(), STDERR_FILENO);
  char text[65536];
  const ssize_t n = ::read(pipe->read_end.get(), text, sizeof text);
  REQUIRE(n > 0);
  const std::string lines(text, static_cast<size_t>(n));
  int count = 0;
  for (size_t at = lines.find("limited event"); at != std::string::npos; at = lines.find("limited event", at + 1))
    ++count;
  CHECK(count >= static_cast<int>(kLogBurst));
  CHECK(count < 200);  // unless the machine took half a minute for them
  CHECK(log_losses().suppressed - before == static_cast<uint64_t>(200 - count));
  CHECK(lines.find("another event") != std::string::npos);
}
