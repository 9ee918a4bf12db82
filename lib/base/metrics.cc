// The fence around prometheus-cpp. Its maps are unordered, so expose() sorts before printing.
#include "base/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "base/assert.h"

namespace mc {

std::string_view to_string(MetricKind kind) {
  static constexpr std::string_view kNames[] = {"counter", "gauge", "histogram"};
  return kNames[static_cast<size_t>(kind)];
}

namespace metric {

void Counter::add(double n) {
  if (series_) series_->Increment(n);
}
double Counter::value() const {
  return series_ ? series_->Value() : 0;
}
void Gauge::set(double value) {
  if (series_) series_->Set(value);
}
void Gauge::add(double n) {
  if (series_) series_->Increment(n);
}
double Gauge::value() const {
  return series_ ? series_->Value() : 0;
}
void Histogram::observe(double value) {
  if (series_) series_->Observe(value);
}

}  // namespace metric

struct Metrics::State {
  prometheus::Registry registry;
  prometheus::Labels common;
  std::mutex mutex;
  std::map<std::string, prometheus::Family<prometheus::Counter>*, std::less<>> counters;
  std::map<std::string, prometheus::Family<prometheus::Gauge>*, std::less<>> gauges;
  std::map<std::string, prometheus::Family<prometheus::Histogram>*, std::less<>> histograms;

  template <class Map, class Builder>
  auto& family(Map& map, Builder builder, const MetricFamily& what) {
    auto [at, is_new] = map.try_emplace(what.name, nullptr);
    if (is_new) at->second = &builder.Name(what.name).Help(what.help).Register(registry);
    return *at->second;
  }
};

namespace {

prometheus::Labels name_values(const MetricFamily& family, Metrics::Values values) {
  prometheus::Labels labels;
  std::string_view rest = family.labels;
  for (const std::string_view value : values) {
    MC_ASSERT(!rest.empty());
    const size_t comma = std::min(rest.find(','), rest.size());
    labels.emplace(rest.substr(0, comma), value);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  MC_ASSERT(rest.empty());
  return labels;
}

bool labels_less(const prometheus::ClientMetric& a, const prometheus::ClientMetric& b) {
  return std::lexicographical_compare(
      a.label.begin(), a.label.end(), b.label.begin(), b.label.end(),
      [](const auto& x, const auto& y) { return std::tie(x.name, x.value) < std::tie(y.name, y.value); });
}

}  // namespace

Metrics::Metrics(const Labels& common) : state_(std::make_unique<State>()) {
  state_->common = prometheus::Labels(common.begin(), common.end());
}
Metrics::~Metrics() = default;

void Metrics::set_label(const std::string& name, const std::string& value) {
  const std::lock_guard lock(state_->mutex);
  const auto at = state_->common.find(name);
  MC_ASSERT(at != state_->common.end());
  at->second = value;
}

metric::Counter Metrics::counter(const MetricFamily& family, Values label_values) {
  MC_ASSERT(family.kind == MetricKind::counter);
  const std::lock_guard lock(state_->mutex);
  auto& series = state_->family(state_->counters, prometheus::BuildCounter(), family);
  return metric::Counter(series.Add(name_values(family, label_values)));
}

metric::Gauge Metrics::gauge(const MetricFamily& family, Values label_values) {
  MC_ASSERT(family.kind == MetricKind::gauge);
  const std::lock_guard lock(state_->mutex);
  auto& series = state_->family(state_->gauges, prometheus::BuildGauge(), family);
  return metric::Gauge(series.Add(name_values(family, label_values)));
}

metric::Histogram Metrics::histogram(const MetricFamily& family, Values label_values, std::span<const double> buckets) {
  MC_ASSERT(family.kind == MetricKind::histogram);
  if (buckets.empty()) buckets = family.buckets;
  MC_ASSERT(!buckets.empty() && std::is_sorted(buckets.begin(), buckets.end()));
  const std::lock_guard lock(state_->mutex);
  auto& series = state_->family(state_->histograms, prometheus::BuildHistogram(), family);
  return metric::Histogram(
      series.Add(name_values(family, label_values), std::vector<double>(buckets.begin(), buckets.end())));
}

std::string Metrics::expose() const {
  auto families = state_->registry.Collect();
  prometheus::Labels common;
  {
    const std::lock_guard lock(state_->mutex);
    common = state_->common;
  }
  std::sort(families.begin(), families.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (auto& family : families) {
    for (auto& series : family.metric) {
      for (const auto& [name, value] : common) series.label.push_back({name, value});
      std::sort(series.label.begin(), series.label.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    }
    std::sort(family.metric.begin(), family.metric.end(), labels_less);
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace mc
