#include "print.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/assert.h"
#include "base/cli_flags.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/fd.h"

namespace mc::bench {

std::string fixed(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

std::string rounded(double value) {
  char text[64];
  if (!(std::fabs(value) >= 1)) {
    std::snprintf(text, sizeof text, "%.3g", value);
    return text;
  }
  std::string out = fixed(value, 3);
  if (out.ends_with(".000")) return out.substr(0, out.size() - 4);
  while (out.find('.') != std::string::npos && out.back() == '0') out.pop_back();
  return out;
}

std::string thousands(uint64_t value) {
  std::string digits = std::to_string(value);
  for (size_t at = digits.size(); at > 3;) digits.insert(at -= 3, 1, ',');
  return digits;
}

TableForm table_form(const cli::Args& args) {
  return args.has(kFormat) ? choice_of(args, kFormat) : TableForm::text;
}

Result<std::string> read_input(const std::string& path, size_t bytes_max) {
  auto text = read_file(path, bytes_max);
  if (text) return text;
  Error error = as_user_error(err::kFileAccess, std::move(text).error());
  error.where = path;
  if (error.mc == err::kFileAccess) error.next = "name a file that can be read, or - for stdin";
  return error;
}

Error out_of_range(const Flag& flag, std::string_view value, std::string_view range) {
  const std::string name = "--" + std::string(flag.name);
  return user_error(err::kBadValue, name + " is " + std::string(value) + "; it must be " + std::string(range), name);
}

Error out_of_range(const Flag& flag, uint64_t value, uint64_t least, uint64_t most) {
  MC_ASSERT(value < least || value > most);
  return out_of_range(flag, std::to_string(value), std::to_string(least) + " to " + std::to_string(most));
}

Result<void> check_measured_time(std::string_view value) {
  MC_TRY(time, parse_duration(value));
  if (time >= 1ms) return {};
  return {Code::invalid, "'" + std::string(value) + "' measures nothing; at least 1ms"};
}

Result<void> check_speedup(std::string_view value) {
  MC_TRY(speedup, parse_f64(value));
  if (speedup >= 1e-6 && speedup <= 1e6) return {};
  return {Code::invalid, "'" + std::string(value) + "' is not from 0.000001 to 1000000"};
}

Result<void> check_output(const std::string& path, const Flag& flag) {
  if (path.empty() || path == "-") return {};
  struct stat found {};
  const bool there = ::stat(path.c_str(), &found) == 0;
  if (there && !S_ISREG(found.st_mode) && !S_ISDIR(found.st_mode)) return {};  // a pipe or a device, as it is
  Error refused{Code::io, path + " is a directory"};
  if (!there || !S_ISDIR(found.st_mode)) {
    std::string beside = path + ".tmp.XXXXXX";  // where write_file_atomic will make its own
    const Fd made(::mkostemp(beside.data(), O_CLOEXEC));
    if (made) {
      ::unlink(beside.c_str());
      return {};
    }
    refused = errno_error("cannot write " + path);
  }
  return user_error(err::kFileAccess, refused.what, "--" + std::string(flag.name),
                    "name a file in a directory that is there and may be written");
}

Result<void> write_output(const std::string& path, std::string_view text, const Flag& flag) {
  if (path == "-") return write_all(1, text);
  MC_CHECK(check_output(path, flag));
  return write_file_atomic(path, text);
}

Sink::Sink(const cli::Args& args)
    : json_(args.on(flags::kJson)), form_(table_form(args)), path_(args.text(flags::kOutput)) {}

Result<Sink> Sink::open(const cli::Args& args) {
  const std::string& path = args.text(flags::kOutput);
  if (!args.has(kFormat) || (path != "md" && path != "csv")) return Sink(args);
  return user_error(err::kBadValue, "-o names the file of the results, and " + path + " is a form of the table", "-o",
                    "--format " + path + " gives the table that form; for a file of that name write ./" + path);
}

Result<void> Sink::put(std::string_view text) {
  if (path_ == "-") return write_all(1, text);
  kept_ += text;
  return {};
}

Result<void> Sink::line(const Json& object) {
  return json_ ? put(object.dump() + "\n") : Result<void>();
}

Result<void> Sink::text(std::string_view text) {
  return json_ || form_ == TableForm::csv ? Result<void>() : put(text);
}

Result<void> Sink::finish() {
  return path_ == "-" ? Result<void>() : write_output(path_, kept_, flags::kOutput);
}

Json result_head(std::string_view schema, const cli::Args& args) {
  char host[256] = "";
  (void)::gethostname(host, sizeof host - 1);
  Json argv = Json::array();
  for (const std::string& word : args.argv()) argv.push(word);
  Json out = Json::object({{"type", "result"}, {"schema", schema}});
  out.set("host", Json::object({{"name", std::string(host)}, {"cpus", std::thread::hardware_concurrency()}}));
  out.set("git_commit", cli::build_info().commit);
  if (args.has(flags::kSeed)) out.set("seed", args.count(flags::kSeed));
  return std::move(out.set("argv", std::move(argv)));
}

Json point_line(const Json& figures) {
  Json line = Json::object({{"type", "point"}});
  for (const JsonMember& member : figures.members()) line.set(member.key, member.value);
  return line;
}

Json with_points(Json result, const std::vector<Json>& points) {
  if (points.size() == 1) {
    for (const JsonMember& member : points.front().members())
      if (member.key != "type") result.set(member.key, member.value);
    return result;
  }
  Json list = Json::array();
  for (const Json& p : points) list.push(point_line(p));
  return std::move(result.set("points", std::move(list)));
}

void note(const cli::Args& args, std::string_view text) {
  if (args.has(flags::kQuiet) && args.on(flags::kQuiet)) return;
  (void)write_all(2, "mc-bench: " + std::string(text) + "\n");
}

}  // namespace mc::bench
