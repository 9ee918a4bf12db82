#include "base/units.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>

namespace mc {
namespace {

constexpr size_t kSweepMax = 10'000;

struct Unit {
  std::string_view name;
  double scale;
};
constexpr Unit kSizeUnits[] = {
    {"", 1}, {"B", 1}, {"KiB", double(kKiB)}, {"MiB", double(kMiB)}, {"GiB", double(kGiB)}, {"TiB", double(kTiB)}};
constexpr Unit kCountUnits[] = {{"", 1}, {"k", 1e3}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}};
constexpr Unit kTimeUnits[] = {{"ns", 1},   {"us", 1e3},   {"ms", 1e6},   {"s", 1e9},
                               {"m", 60e9}, {"h", 3600e9}, {"d", 86400e9}};

Error bad(std::string_view text, std::string_view why) {
  return {Code::invalid, "'" + std::string(text.substr(0, 80)) + "' " + std::string(why)};
}

/// Splits "1.5GiB" into 1.5 and "GiB". Only digits with one point count as the number: no sign, no
/// exponent, so "1e3" or "-5" never slip through as units.
bool split_number(std::string_view text, double& number, std::string_view& unit, size_t& digits_end) {
  size_t i = 0;
  bool digit = false, point = false;
  for (; i < text.size(); ++i) {
    if (text[i] >= '0' && text[i] <= '9')
      digit = true;
    else if (text[i] == '.' && !point)
      point = true;
    else
      break;
  }
  if (!digit) return false;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + i, number);
  if (ec != std::errc() || end != text.data() + i) return false;
  unit = text.substr(i);
  digits_end = i;
  return true;
}

template <size_t N>
Result<uint64_t> parse_scaled(std::string_view text, const Unit (&units)[N], std::string_view expected) {
  double number = 0;
  std::string_view unit;
  size_t end = 0;
  if (!split_number(text, number, unit, end)) return bad(text, expected);
  for (const Unit& u : units) {
    if (u.name != unit) continue;
    if (u.scale == 1 && text.substr(0, end).find('.') == std::string_view::npos) {
      uint64_t whole = 0;  // exact above 2^53
      const auto [p, ec] = std::from_chars(text.data(), text.data() + end, whole);
      if (ec != std::errc()) return bad(text, "is too large");
      return whole;
    }
    const double value = number * u.scale;
    if (value >= 18446744073709551615.0) return bad(text, "is too large");
    if (value != std::floor(value)) return bad(text, "is not a whole number");
    return static_cast<uint64_t>(value);
  }
  return bad(text, expected);
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

template <class T>
Result<std::vector<T>> sweep(std::string_view text, const std::function<Result<T>(std::string_view)>& parse) {
  MC_TRY(parts, split_list(text));
  if (parts.empty()) return bad(text, "is empty: give a value, a list or a range");
  std::vector<T> values;
  auto add = [&](T value) {
    if (values.size() >= kSweepMax) return false;
    values.push_back(value);
    return true;
  };
  for (const std::string& part : parts) {
    const size_t dash = part.find('-', 1);
    if (dash == std::string::npos) {
      MC_TRY(value, parse(part));
      if (!add(value)) return bad(text, "has more than 10000 values");
      continue;
    }
    const size_t op = part.find_first_of("*+", dash);
    if (op == std::string::npos) return bad(part, "needs a step: 1-64*2 doubles, 8-32+8 adds 8");
    MC_TRY(low, parse(std::string_view(part).substr(0, dash)));
    MC_TRY(high, parse(std::string_view(part).substr(dash + 1, op - dash - 1)));
    MC_TRY(step, parse(std::string_view(part).substr(op + 1)));
    const bool times = part[op] == '*';
    if (high < low) return bad(part, "ends below its start");
    if (times ? !(step > T(1)) || !(low > T(0)) : !(step > T(0))) return bad(part, "does not advance");
    for (T value = low;;) {
      if (!add(value)) return bad(text, "has more than 10000 values");
      // Compared by subtraction or division so that the top of the range cannot overflow.
      if (times ? value > high / step : value > high - step) break;
      value = times ? static_cast<T>(value * step) : static_cast<T>(value + step);
    }
  }
  return values;
}

std::string number_text(double value, const char* format, std::string_view unit) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return std::string(buffer) + " " + std::string(unit);
}

template <class T>
Result<T> parse_whole(std::string_view text, T low, T high) {
  T value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || end != text.data() + text.size() || ec == std::errc::invalid_argument)
    return bad(text, "is not a whole number");
  if (ec != std::errc() || value < low || value > high)
    return bad(text, "is out of range " + std::to_string(low) + ".." + std::to_string(high));
  return value;
}

}  // namespace

Result<uint64_t> parse_u64(std::string_view text, uint64_t low, uint64_t high) {
  return parse_whole(text, low, high);
}

Result<int64_t> parse_i64(std::string_view text, int64_t low, int64_t high) {
  return parse_whole(text, low, high);
}

Result<double> parse_f64(std::string_view text) {
  double value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || ec != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    return bad(text, "is not a number");
  return value;
}

Result<bool> parse_bool(std::string_view text) {
  for (std::string_view t : {"true", "on", "yes", "1"})
    if (text == t) return true;
  for (std::string_view f : {"false", "off", "no", "0"})
    if (text == f) return false;
  return bad(text, "is neither true nor false");
}

Result<uint64_t> parse_count(std::string_view text) {
  return parse_scaled(text, kCountUnits, "is not a count (like 500, 10k, 2M)");
}

Result<uint64_t> parse_bytes(std::string_view text) {
  return parse_scaled(text, kSizeUnits, "is not a size (like 4096, 64KiB, 2MiB, 4GiB)");
}

Result<ByteSize> parse_size(std::string_view text) {
  if (!text.empty() && text.back() == '%') {
    auto percent = parse_f64(text.substr(0, text.size() - 1));
    if (!percent || *percent <= 0 || *percent > 100) return bad(text, "is not a share between 0% and 100%");
    return ByteSize{0, *percent};
  }
  auto bytes = parse_scaled(text, kSizeUnits, "is not a size (like 4096, 64KiB, 4GiB or 80%)");
  if (!bytes) return std::move(bytes).error();
  return ByteSize{*bytes, 0};
}

Result<Duration> parse_duration(std::string_view text) {
  static constexpr std::string_view kExpected = "is not a duration (like 250ms, 2s, 1m; a bare number is seconds)";
  double total = 0;
  std::string_view rest = text;
  if (rest.empty()) return bad(text, kExpected);
  while (!rest.empty()) {
    double number = 0;
    std::string_view after;
    size_t end = 0;
    if (!split_number(rest, number, after, end)) return bad(text, kExpected);
    size_t letters = 0;
    while (letters < after.size() && after[letters] >= 'a' && after[letters] <= 'z') ++letters;
    const std::string_view name = after.substr(0, letters);
    double scale = 0;
    if (name.empty() && after.empty() && rest.size() == text.size()) scale = 1e9;
    for (const Unit& u : kTimeUnits)
      if (u.name == name) scale = u.scale;
    if (scale == 0) return bad(text, kExpected);
    total += number * scale;
    rest = after.substr(letters);
  }
  if (total >= 9.2e18) return bad(text, "is longer than 290 years");
  return Duration(std::llround(total));
}

Result<double> parse_rate(std::string_view text) {
  double per = 1;
  std::string_view number = text;
  if (const size_t slash = text.find('/'); slash != std::string_view::npos) {
    const std::string_view unit = text.substr(slash + 1);
    if (unit == "m" || unit == "min")
      per = 60;
    else if (unit == "h")
      per = 3600;
    else if (unit != "s")
      return bad(text, "is not a rate (like 10/s, 90/m)");
    number = text.substr(0, slash);
  }
  double value = 0;
  std::string_view unit;
  size_t end = 0;
  if (!split_number(number, value, unit, end)) return bad(text, "is not a rate (like 10/s, 90/m)");
  if (unit == "k")
    value *= 1e3;
  else if (!unit.empty())
    return bad(text, "is not a rate (like 10/s, 90/m)");
  return value / per;
}

Result<uint64_t> parse_byte_rate(std::string_view text) {
  std::string_view size = text;
  if (size.size() > 2 && size.substr(size.size() - 2) == "/s") size.remove_suffix(2);
  auto value = parse_bytes(size);
  if (!value) return bad(text, "is not a byte rate (like 50MiB/s)");
  return value;
}

Result<std::vector<std::string>> split_list(std::string_view text) {
  std::vector<std::string> parts;
  if (trim(text).empty()) return parts;
  for (size_t at = 0;;) {
    const size_t comma = text.find(',', at);
    const std::string_view part = trim(text.substr(at, comma == std::string_view::npos ? comma : comma - at));
    if (part.empty()) return bad(text, "has an empty element");
    parts.emplace_back(part);
    if (comma == std::string_view::npos) return parts;
    at = comma + 1;
  }
}

Result<std::vector<uint64_t>> parse_sweep_counts(std::string_view text) {
  return sweep<uint64_t>(text, parse_count);
}
Result<std::vector<uint64_t>> parse_sweep_bytes(std::string_view text) {
  return sweep<uint64_t>(text, parse_bytes);
}
Result<std::vector<double>> parse_sweep_numbers(std::string_view text) {
  return sweep<double>(text, [](std::string_view item) { return parse_f64(item); });
}

std::string format_bytes(uint64_t bytes) {
  if (bytes != 0)
    for (int i = 5; i >= 2; --i) {
      const auto scale = static_cast<uint64_t>(kSizeUnits[i].scale);
      if (bytes % scale == 0) return std::to_string(bytes / scale) + std::string(kSizeUnits[i].name);
    }
  return std::to_string(bytes);
}

std::string format_size(const ByteSize& size) {
  return size.percent > 0 ? format_f64(size.percent) + "%" : format_bytes(size.bytes);
}

std::string format_duration(Duration duration) {
  const int64_t ns = duration.count();
  static constexpr std::pair<int64_t, const char*> kSteps[] = {
      {3'600'000'000'000, "h"}, {60'000'000'000, "m"}, {1'000'000'000, "s"}, {1'000'000, "ms"}, {1'000, "us"}};
  if (ns == 0) return "0s";
  for (const auto& [scale, name] : kSteps)
    if (ns % scale == 0) return std::to_string(ns / scale) + name;
  return std::to_string(ns) + "ns";
}

std::string human_bytes(uint64_t bytes) {
  int unit = 1;
  double value = static_cast<double>(bytes);
  while (value >= 1024 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  if (unit == 1) return std::to_string(bytes) + " B";
  return number_text(value, value < 10 ? "%.2f" : value < 100 ? "%.1f" : "%.0f", kSizeUnits[unit].name);
}

std::string human_duration(Duration duration) {
  double value = static_cast<double>(duration.count());
  static constexpr std::pair<double, const char*> kSteps[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}};
  for (const auto& [scale, name] : kSteps) {
    if (std::fabs(value) < scale && scale != 1) continue;
    value /= scale;
    return number_text(value, std::fabs(value) < 10 ? "%.2f" : std::fabs(value) < 100 ? "%.1f" : "%.0f", name);
  }
  return "0 s";
}

std::string human_time(Duration duration) {
  const auto s = static_cast<long long>(duration / 1s);
  char text[48];
  if (s < 60)
    std::snprintf(text, sizeof text, "%llds", s);
  else if (s < 3600)
    std::snprintf(text, sizeof text, "%lldm%02llds", s / 60, s % 60);
  else if (s < 86400)
    std::snprintf(text, sizeof text, "%lldh%02lldm", s / 3600, s / 60 % 60);
  else
    std::snprintf(text, sizeof text, "%lldd%02lldh", s / 86400, s / 3600 % 24);
  return text;
}

std::string format_f64(double value) {
  char buffer[40];
  const auto [end, ec] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return ec == std::errc() ? std::string(buffer, end) : std::to_string(value);
}

}  // namespace mc
