#include "base/metrics.h"

#include <thread>
#include <vector>

#include "test.h"

using namespace mc;

namespace {

constexpr double kSeconds[] = {.02, .04, 1};
constexpr MetricFamily kRejections{"try_rejections_total", MetricKind::counter, "reason", "Requests rejected."};
constexpr MetricFamily kWaiting{"try_waiting", MetricKind::gauge, "", "Requests waiting to be run."};
constexpr MetricFamily kWait{"try_wait_seconds", MetricKind::histogram, "", "Time in the queue.", kSeconds};
constexpr MetricFamily kRequests{"try_requests_total", MetricKind::counter, "outcome,reason", "Requests."};
constexpr MetricFamily kCopies{"try_copies_total", MetricKind::counter, "", "Copies."};

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

}  // namespace

TEST_CASE("base/metrics: a scrape carries HELP, TYPE, common labels and values") {
  Metrics metrics({{"model_name", "mc-tiny"}, {"engine", "p0"}});
  metrics.counter(kRejections, {"queue_full"}).add(3);
  metrics.gauge(kWaiting).set(2.5);
  metrics.histogram(kWait).observe(0.03);
  const std::string text = metrics.expose();
  CHECK(has_line(text, "# HELP try_waiting Requests waiting to be run."));
  CHECK(has_line(text, "# TYPE try_rejections_total counter"));
  CHECK(has_line(text, R"(try_rejections_total{engine="p0",model_name="mc-tiny",reason="queue_full"} 3)"));
  CHECK(has_line(text, R"(try_waiting{engine="p0",model_name="mc-tiny"} 2.5)"));
  CHECK(has_line(text, R"(try_wait_seconds_bucket{engine="p0",model_name="mc-tiny",le="0.02"} 0)"));
  CHECK(has_line(text, R"(try_wait_seconds_bucket{engine="p0",model_name="mc-tiny",le="0.04"} 1)"));
  CHECK(has_line(text, R"(try_wait_seconds_bucket{engine="p0",model_name="mc-tiny",le="+Inf"} 1)"));
  CHECK(has_line(text, R"(try_wait_seconds_count{engine="p0",model_name="mc-tiny"} 1)"));
}

TEST_CASE("base/metrics: a common label that changes does so on every series") {
  const Metrics::Labels labels{{"engine", "decode"}};
  Metrics metrics(labels);
  metrics.gauge(kWaiting).set(1);
  metrics.set_label("engine", "d0");
  metrics.counter(kCopies).add(2);
  const std::string text = metrics.expose();
  CHECK(has_line(text, R"(try_waiting{engine="d0"} 1)"));
  CHECK(has_line(text, R"(try_copies_total{engine="d0"} 2)"));
}

TEST_CASE("base/metrics: the same labels are the same series, other labels another") {
  Metrics metrics;
  metrics.counter(kRequests, {"ok", ""}).add();
  metrics.counter(kRequests, {"ok", ""}).add();
  metrics.counter(kRequests, {"failed", "peer_lost"}).add();
  CHECK(metrics.counter(kRequests, {"ok", ""}).value() == 2);
  const std::string text = metrics.expose();
  CHECK(text.find("outcome=\"failed\"") < text.find("outcome=\"ok\""));
}

TEST_CASE("base/metrics: a series exists with value 0 before its first event, and a default handle is harmless") {
  Metrics metrics;
  metrics.counter(kCopies);
  CHECK(has_line(metrics.expose(), "try_copies_total 0"));
  metric::Counter().add();
  metric::Gauge().set(1);
  metric::Histogram().observe(1);
}

TEST_CASE("base/metrics: counts from several threads add up while others scrape") {
  Metrics metrics;
  metric::Counter counter = metrics.counter(kRejections, {"tcp"});
  metric::Histogram histogram = metrics.histogram(kWait);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        counter.add();
        histogram.observe(1e-4);
        if (t == 0 && i % 500 == 0) (void)metrics.expose();
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(counter.value() == 8000);
  CHECK(has_line(metrics.expose(), "try_wait_seconds_count 8000"));
}
