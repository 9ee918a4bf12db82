// Numbers for /metrics in the Prometheus text format, over prometheus-cpp (fenced in metrics.cc).
// A family (name, kind, labels, help, buckets) is a constant (product/metric_names.h); a series of it
// is reached once, kept, and then changed from any thread for the cost of an atomic (a short lock
// for histograms). Label values come from small fixed sets, never from a request.
//
//   Metrics metrics({{"model_name", "mc-tiny"}, {"engine", "p0"}});
//   metric::Counter misses = metrics.counter(metric::kKvMiss, {"cold"});
//   misses.add();
//   http_body = metrics.expose();
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace mc {

enum class MetricKind : uint8_t { counter, gauge, histogram };
std::string_view to_string(MetricKind kind);

struct MetricFamily {
  const char* name;
  MetricKind kind;
  const char* labels;  // names separated by commas, "" for none; the registry's own come on top
  const char* help;
  std::span<const double> buckets = {};  // upper bounds, ascending, histograms only
};

namespace metric {

// Handles: copy freely, valid as long as the Metrics they came from. Thread-safe. A default handle
// swallows what it is given, so that a part can be built without metrics.
class Counter {
 public:
  Counter() = default;
  explicit Counter(prometheus::Counter& series) : series_(&series) {}
  /// n >= 0
  void add(double n = 1);
  double value() const;

 private:
  prometheus::Counter* series_ = nullptr;
};

class Gauge {
 public:
  Gauge() = default;
  explicit Gauge(prometheus::Gauge& series) : series_(&series) {}
  void set(double value);
  void add(double n);
  double value() const;

 private:
  prometheus::Gauge* series_ = nullptr;
};

class Histogram {
 public:
  Histogram() = default;
  explicit Histogram(prometheus::Histogram& series) : series_(&series) {}
  void observe(double value);

 private:
  prometheus::Histogram* series_ = nullptr;
};

}  // namespace metric

class Metrics {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  /// `common` labels are put on every series.
  explicit Metrics(const Labels& common = {});
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  /// Changes the value of a common label, which the constructor named, on every series. Any thread.
  void set_label(const std::string& name, const std::string& value);

  /// The series with these label values (as many as the family names, in its order); made on first
  /// use with value 0, so that a dashboard sees it before the first event. Asking again gives the
  /// same series. Takes a lock: keep the handle.
  using Values = std::initializer_list<std::string_view>;
  metric::Counter counter(const MetricFamily& family, Values label_values = {});
  metric::Gauge gauge(const MetricFamily& family, Values label_values = {});
  /// `buckets` replaces the family's (they may depend on the model's context length).
  metric::Histogram histogram(const MetricFamily& family, Values label_values = {},
                              std::span<const double> buckets = {});

  /// All series in the text format 0.0.4, families by name, series by labels.
  std::string expose() const;
  static constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mc
