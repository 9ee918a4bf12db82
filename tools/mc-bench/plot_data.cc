#include "plot_data.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "base/errors.h"
#include "base/fd.h"
#include "print.h"

namespace mc::bench {
namespace {

constexpr size_t kFileBytesMax = size_t{1} << 30;
constexpr size_t kSeriesMax = 32;    // more cannot be told apart
constexpr size_t kStepsMax = 1'000;  // of a drawn distribution: an SVG of a million steps opens nowhere
constexpr size_t kLabelMax = 40;     // bytes of a text that may part lines

/// The value of "a.b" in `line`; a null value when there is none.
const Json& at(const Json& line, std::string_view key) {
  if (line.has(key)) return line[key];
  const size_t dot = key.find('.');
  if (dot == std::string_view::npos) return line[key];
  return at(line[key.substr(0, dot)], key.substr(dot + 1));
}

std::string text_of(const Json& value) {
  return value.is_string() ? std::string(value.as_string()) : value.dump();
}

Result<std::vector<std::string>> files_of(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (path == "-" || !fs::is_directory(path, error)) return std::vector<std::string>{path};
  std::vector<std::string> out;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    const std::string suffix = entry->path().extension();
    if (suffix == ".json" || suffix == ".jsonl") out.push_back(entry->path());
  }
  if (error) return user_error(err::kBadValue, path + ": " + error.message(), path);
  if (out.empty()) return user_error(err::kBadValue, path + " has no *.json and no *.jsonl", path);
  std::sort(out.begin(), out.end());
  return out;
}

Result<void> read_lines(const std::string& path, std::vector<Json>& out) {
  MC_TRY(text, read_input(path, kFileBytesMax));
  std::vector<Json> lines;
  size_t number = 0;
  bool points = false;
  for (size_t from = 0; from < text.size();) {
    const size_t end = std::min(text.find('\n', from), text.size());
    const std::string_view line = std::string_view(text).substr(from, end - from);
    from = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto value = Json::parse(line);
    const std::string where = path + ":" + std::to_string(number);
    if (!value) return user_error(err::kBadValue, where + ": " + value.error().what, where);
    if (!value->is_object())
      return user_error(err::kBadValue, where + ": the line holds no object but " + std::string(value->kind_name()),
                        where);
    points = points || (*value)["type"].as_string() == "point";
    lines.push_back(std::move(*value));
  }
  for (Json& line : lines)
    if (!points || line["type"].as_string() == "point") out.push_back(std::move(line));
  return {};
}

bool kept(const Json& line, const PlotPlan& plan) {
  return std::all_of(plan.where.begin(), plan.where.end(), [&](const auto& condition) {
    const Json& value = at(line, condition.first);
    return !value.is_null() && text_of(value) == condition.second;
  });
}

bool plottable(const Json& line, const PlotPlan& plan) {
  const auto numbers = [](const Json& value) { return value.is_number() || value.is_array(); };
  if (!plan.distribution && !numbers(at(line, plan.x))) return false;
  return std::any_of(plan.y.begin(), plan.y.end(), [&](const std::string& key) { return numbers(at(line, key)); });
}

std::vector<std::string> parting_keys(const std::vector<const Json*>& lines, const PlotPlan& plan) {
  if (plan.by != std::vector<std::string>{"auto"}) return plan.by;
  std::vector<std::string> order;
  std::map<std::string, std::set<std::string>> values;
  for (const Json* line : lines)
    for (const JsonMember& member : line->members()) {
      if (!member.value.is_string() || member.value.as_string().size() > kLabelMax) continue;
      auto& seen = values[member.key];
      if (seen.empty()) order.push_back(member.key);
      if (seen.size() <= kSeriesMax) seen.emplace(member.value.as_string());
    }
  // A key with another value on nearly every line is a name (a request's id), not a choice that was compared.
  std::erase_if(order, [&](const std::string& key) {
    const size_t different = values[key].size();
    return different < 2 || different > kSeriesMax || (lines.size() > 8 && different * 2 > lines.size());
  });
  return order;
}

/// Values by series and, but for a distribution, by x.
struct Gathered {
  std::vector<std::string> names;  // in the order of their first line
  std::map<std::string, std::map<double, std::vector<double>>> values;

  void add(const std::string& name, double x, double y) {
    if (!std::isfinite(x) || !std::isfinite(y)) return;
    auto [series, fresh] = values.try_emplace(name);
    if (fresh) names.push_back(name);
    series->second[x].push_back(y);
  }
};

/// Points of one line for one key of the ordinate. MC1002: arrays of different lengths.
Result<void> gather(const Json& line, const PlotPlan& plan, const std::string& key, const std::string& name,
                    Gathered& out) {
  const Json& y = at(line, key);
  if (plan.distribution) {
    if (y.is_number()) out.add(name, 0, y.as_double());
    for (const Json& item : y.items()) {
      if (item.is_number()) out.add(name, 0, item.as_double());
      for (const Json& inner : item.items())  // itls: a list a request
        if (inner.is_number()) out.add(name, 0, inner.as_double());
    }
    return {};
  }
  const Json& x = at(line, plan.x);
  if (x.is_number() && y.is_number()) out.add(name, x.as_double(), y.as_double());
  if (!x.is_array() || !y.is_array()) return {};
  if (x.size() != y.size())
    return user_error(
        err::kBadValue,
        plan.x + " has " + std::to_string(x.size()) + " elements and " + key + " has " + std::to_string(y.size()),
        "--x");
  for (size_t i = 0; i < x.size(); ++i)
    if (x[i].is_number() && y[i].is_number()) out.add(name, x[i].as_double(), y[i].as_double());
  return {};
}

std::vector<PlotPoint> distribution_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t count = values.size(), steps = std::min(count, kStepsMax);
  std::vector<PlotPoint> out = {{.x = values.front(), .y = 0}};
  for (size_t i = 1; i <= steps; ++i) {
    const size_t upto = i * count / steps;  // the upto-th smallest: upto / count of the values are at most that
    out.push_back({.x = values[upto - 1], .y = static_cast<double>(upto) / static_cast<double>(count)});
  }
  return out;
}

std::vector<PlotPoint> medians_of(std::map<double, std::vector<double>> by_x) {
  std::vector<PlotPoint> out;
  for (auto& [x, values] : by_x) {
    std::sort(values.begin(), values.end());
    const size_t half = values.size() / 2;
    const double median = values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
    out.push_back({.x = x, .y = median, .low = values.front(), .high = values.back()});
  }
  return out;
}

/// Whether gather finds a number in `value`. Only a distribution looks into lists of lists.
bool holds_numbers(const Json& value, bool distribution) {
  const auto is_number = [](const Json& item) { return item.is_number(); };
  const std::span<const Json> items = value.items();
  return value.is_number() || std::any_of(items.begin(), items.end(), [&](const Json& item) {
           const std::span<const Json> inner = item.items();
           return item.is_number() || (distribution && std::any_of(inner.begin(), inner.end(), is_number));
         });
}

Error nothing_to_plot(const std::vector<Json>& lines, const PlotPlan& plan) {
  std::string wanted = plan.distribution ? "" : plan.x + " with ";
  for (size_t i = 0; i < plan.y.size(); ++i) wanted += (i ? " or " : "") + plan.y[i];
  std::set<std::string> keys;
  for (const Json& line : lines)
    for (const JsonMember& member : line.members())
      if (holds_numbers(member.value, plan.distribution)) keys.insert(member.key);
  std::string have;
  for (const std::string& key : keys)
    if (have.size() < 600) have += " " + key;
  return user_error(err::kBadValue,
                    "none of " + std::to_string(lines.size()) + " lines has numbers in " + wanted +
                        (plan.where.empty() ? "" : " that pass --where") +
                        "; keys with numbers:" + (have.empty() ? " none" : have),
                    plan.distribution ? "--cdf" : "--x, --y");
}

}  // namespace

Result<std::vector<Json>> read_result_lines(const std::vector<std::string>& paths) {
  std::vector<Json> out;
  for (const std::string& path : paths) {
    MC_TRY(files, files_of(path));
    for (const std::string& file : files) MC_CHECK(read_lines(file, out));
  }
  return out;
}

Result<std::vector<PlotSeries>> series_of(const std::vector<Json>& lines, const PlotPlan& plan) {
  std::vector<const Json*> chosen;
  for (const Json& line : lines)
    if (kept(line, plan) && plottable(line, plan)) chosen.push_back(&line);
  if (chosen.empty()) return nothing_to_plot(lines, plan);
  const std::vector<std::string> by = parting_keys(chosen, plan);
  Gathered all;
  for (const Json* line : chosen)
    for (const std::string& key : plan.y) {
      std::string name = plan.y.size() > 1 || by.empty() ? key : "";
      for (const std::string& part : by) {
        const Json& value = at(*line, part);
        if (!value.is_null()) name += (name.empty() ? "" : " ") + text_of(value).substr(0, kLabelMax);
      }
      if (name.empty()) name = key;  // a line that has none of what parts the others
      MC_CHECK(gather(*line, plan, key, name, all));
      if (all.names.size() > kSeriesMax)
        return user_error(err::kBadValue, "the lines make more than " + std::to_string(kSeriesMax) + " series", "--by",
                          "name fewer keys after --by, or choose lines with --where KEY=VALUE");
    }
  if (all.names.empty()) return nothing_to_plot(lines, plan);
  std::vector<PlotSeries> out;
  for (const std::string& name : all.names) {
    auto& values = all.values[name];
    out.push_back(
        {.name = name,
         .points = plan.distribution ? distribution_of(std::move(values[0])) : medians_of(std::move(values))});
  }
  return out;
}

}  // namespace mc::bench
