#include "sim/trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "base/assert.h"
#include "base/errors.h"
#include "base/fd.h"
#include "base/units.h"

namespace mc::sim {
namespace {

constexpr size_t kTraceBytesMax = size_t{4} << 30;
constexpr size_t kLineBytesMax = size_t{16} << 20;
constexpr uint64_t kTokensMax = uint64_t{1} << 32;
constexpr uint64_t kTimestampMax = uint64_t{1} << 50;
constexpr size_t kTenantBytesMax = 64;
constexpr int64_t kPriorityMax = 100;

/// Lines of a file or of stdin, read piece by piece: a trace may be larger than we want to hold.
class Lines {
 public:
  explicit Lines(Fd fd) : fd_(std::move(fd)) {}

  /// False at the end. The line is without its line break.
  Result<bool> next(std::string_view& line) {
    for (;;) {
      const size_t end = buffer_.find('\n', at_);
      if (end != std::string::npos) {
        line = std::string_view(buffer_).substr(at_, end - at_);
        at_ = end + 1;
        return true;
      }
      if (ended_) {
        line = std::string_view(buffer_).substr(at_);
        at_ = buffer_.size();
        return !line.empty();
      }
      buffer_.erase(0, at_);
      at_ = 0;
      if (buffer_.size() > kLineBytesMax)
        return Error{Code::invalid, "is longer than " + std::to_string(kLineBytesMax) + " bytes"};
      MC_CHECK(fill());
    }
  }

 private:
  Result<void> fill() {
    char piece[65536];
    const ssize_t n = ::read(fd_.get(), piece, sizeof piece);
    if (n < 0 && errno != EINTR) return as_user_error(err::kFileAccess, errno_error("read"));
    if (n == 0) ended_ = true;
    if (n > 0) buffer_.append(piece, static_cast<size_t>(n));
    total_ += static_cast<size_t>(std::max<ssize_t>(n, 0));
    if (total_ > kTraceBytesMax)
      return Error{Code::invalid, "is beyond " + std::to_string(kTraceBytesMax) + " bytes of trace"};
    return {};
  }

  Fd fd_;
  std::string buffer_;
  size_t at_ = 0, total_ = 0;
  bool ended_ = false;
};

Result<uint64_t> read_number(const Json& line, const char* field, uint64_t high) {
  const Json* value = line.find(field);
  if (value == nullptr) return Error{Code::invalid, std::string("has no ") + field};
  const double number = value->as_double(-1);
  if (!value->is_number() || !(number >= 0) || number > static_cast<double>(high))
    return Error{Code::invalid, std::string(field) + " is " + value->dump().substr(0, 60) +
                                    "; it must be a number from 0 to " + std::to_string(high)};
  if (value->is_int()) return static_cast<uint64_t>(value->as_int());
  return static_cast<uint64_t>(number);
}

Result<double> read_time(const Json& line, const char* field) {
  MC_CHECK(read_number(line, field, kTimestampMax));
  return line[field].as_double();
}

/// tenant and priority, which a line need not have.
Result<void> read_owner(const Json& line, TraceRequest& out) {
  if (const Json* tenant = line.find("tenant")) {
    const std::string_view name = tenant->is_string() ? tenant->as_string() : "";
    const auto fits = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_'; };
    if (name.empty() || name.size() > kTenantBytesMax || !std::all_of(name.begin(), name.end(), fits))
      return Error{Code::invalid, "tenant is " + tenant->dump().substr(0, 60) + "; it must be a name of up to " +
                                      std::to_string(kTenantBytesMax) + " letters, digits, '-' and '_'"};
    out.tenant = name;
  }
  if (const Json* priority = line.find("priority")) {
    const int64_t value = priority->as_int(kPriorityMax + 1);
    if (!priority->is_int() || value < -kPriorityMax || value > kPriorityMax)
      return Error{Code::invalid, "priority is " + priority->dump().substr(0, 60) +
                                      "; it must be a whole number from -100 to 100, lower goes first"};
    out.priority = static_cast<int>(value);
  }
  return {};
}

Result<TraceRequest> parse_line(std::string_view text) {
  MC_TRY(line, Json::parse(text, {.bytes = kLineBytesMax}));
  if (!line.is_object()) return Error{Code::invalid, "is a JSON " + std::string(line.kind_name()) + ", not an object"};
  TraceRequest out;
  MC_TRY(timestamp, read_time(line, "timestamp"));
  MC_TRY(input, read_number(line, "input_length", kTokensMax));
  MC_TRY(output, read_number(line, "output_length", kTokensMax));
  out.timestamp_ms = timestamp;
  out.input_tokens = input;
  out.output_tokens = output;
  if (!line["hash_ids"].is_array()) return Error{Code::invalid, "has no list hash_ids"};
  const uint64_t blocks = (input + kTraceBlockTokens - 1) / kTraceBlockTokens;
  if (line["hash_ids"].size() != blocks)
    return Error{Code::invalid, "has " + std::to_string(line["hash_ids"].size()) + " hash_ids, but input_length " +
                                    std::to_string(input) + " needs " + std::to_string(blocks) + " (one each 512)"};
  out.hash_ids.reserve(blocks);
  for (const Json& id : line["hash_ids"].items()) {
    if (!id.is_int() || id.as_int() < 0)
      return Error{Code::invalid, "hash_ids holds " + id.dump().substr(0, 60) + "; ids are whole numbers from 0"};
    out.hash_ids.push_back(static_cast<uint64_t>(id.as_int()));
  }
  MC_CHECK(read_owner(line, out));
  return out;
}

Error bad_line(const std::string& path, uint64_t number, Error error) {
  if (error.mc != 0) return error;
  return user_error(err::kTraceInvalid, "line " + std::to_string(number) + " " + error.what,
                    path + ":" + std::to_string(number));
}

}  // namespace

Result<std::vector<TraceRequest>> read_trace(const std::string& path, uint64_t limit) {
  Fd fd(path == "-" ? ::dup(0) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return as_user_error(err::kFileAccess, errno_error("open " + path));
  Lines lines(std::move(fd));
  std::vector<TraceRequest> out;
  std::string_view text;
  for (uint64_t number = 1; out.size() < limit; ++number) {
    auto more = lines.next(text);
    if (!more) return bad_line(path, number, more.error());
    if (!*more) break;
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto request = parse_line(text);
    if (!request) return bad_line(path, number, request.error());
    if (!out.empty() && request->timestamp_ms < out.back().timestamp_ms)
      return bad_line(
          path, number,
          Error{Code::invalid, "has timestamp " + format_f64(request->timestamp_ms) + ", before the line above (" +
                                   format_f64(out.back().timestamp_ms) + "); sort the trace by time"});
    out.push_back(std::move(*request));
  }
  if (out.empty()) return user_error(err::kTraceInvalid, "the trace has no requests", path);
  return out;
}

std::string trace_line(const TraceRequest& request) {
  std::string out = "{\"timestamp\": " + format_f64(request.timestamp_ms);
  out += ", \"input_length\": " + std::to_string(request.input_tokens);
  out += ", \"output_length\": " + std::to_string(request.output_tokens) + ", \"hash_ids\": [";
  for (size_t i = 0; i < request.hash_ids.size(); ++i) out += (i > 0 ? ", " : "") + std::to_string(request.hash_ids[i]);
  out += "]";
  if (!request.tenant.empty()) out += ", \"tenant\": \"" + request.tenant + "\"";
  if (request.priority != 0) out += ", \"priority\": " + std::to_string(request.priority);
  return out + "}\n";
}

std::vector<TraceRequest> merge_traces(std::vector<std::vector<TraceRequest>> traces) {
  struct From {
    TraceRequest request;
    size_t trace;
  };
  std::vector<From> all;
  for (size_t t = 0; t < traces.size(); ++t)
    for (TraceRequest& r : traces[t]) all.push_back({std::move(r), t});
  std::stable_sort(all.begin(), all.end(),
                   [](const From& a, const From& b) { return a.request.timestamp_ms < b.request.timestamp_ms; });
  std::map<std::pair<size_t, uint64_t>, uint64_t> numbers;
  std::vector<TraceRequest> out;
  for (From& from : all) {
    for (uint64_t& id : from.request.hash_ids) id = numbers.try_emplace({from.trace, id}, numbers.size()).first->second;
    out.push_back(std::move(from.request));
  }
  return out;
}

TraceBlocks::TraceBlocks(std::span<const TraceRequest> trace, std::span<const uint32_t> spaces) {
  MC_ASSERT(spaces.empty() || spaces.size() == trace.size());
  // Sorted rather than hashed, because the trace chooses the ids.
  std::vector<std::pair<uint32_t, uint64_t>> ids;
  for (size_t r = 0; r < trace.size(); ++r)
    for (const uint64_t id : trace[r].hash_ids) ids.emplace_back(spaces.empty() ? 0 : spaces[r], id);
  numbers_.reserve(ids.size());
  auto known = ids;
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  unique_ = static_cast<uint32_t>(known.size());
  for (const auto& id : ids)
    numbers_.push_back(static_cast<uint32_t>(std::lower_bound(known.begin(), known.end(), id) - known.begin()));
  begins_.push_back(0);
  for (const TraceRequest& r : trace) begins_.push_back(begins_.back() + r.hash_ids.size());
}

}  // namespace mc::sim
