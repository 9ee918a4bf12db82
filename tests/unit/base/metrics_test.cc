#include "base/metrics.h"

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "base/json.h"
#include "base/metric_names.h"
#include "test.h"

using namespace mc;

namespace {

std::string table_text() {
  std::string out;
  for (const MetricFamily* family : metric::kAll) {
    out += family->name;
    out += ' ';
    out += to_string(family->kind);
    out += " {" + std::string(family->labels) + "}";
    for (const double bound : family->buckets) {
      out += ' ';
      append_json_number(out, bound);
    }
    out += '\n';
  }
  return out;
}

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

}  // namespace

TEST_CASE("base/metrics: names, kinds, labels and buckets are those of the golden file") {
  const std::string path = test::source_dir() + "/tests/golden/base/metrics.txt";
  if (std::getenv("MC_SET_GOLDEN")) std::ofstream(path) << table_text();
  std::ifstream file(path);
  std::stringstream golden;
  golden << file.rdbuf();
  CHECK(table_text() == golden.str());
}

TEST_CASE("base/metrics: no name occurs twice, and only counters and one vLLM histogram end in _total") {
  std::set<std::string> names;
  for (const MetricFamily* family : metric::kAll) {
    const std::string name = family->name;
    CHECK(names.insert(name).second);
    if (name != "vllm:iteration_tokens_total") CHECK(name.ends_with("_total") == (family->kind == MetricKind::counter));
    CHECK((family->kind == MetricKind::histogram) == !family->buckets.empty());
    CHECK(std::string(family->help).ends_with("."));
  }
}

TEST_CASE("base/metrics: a scrape carries HELP, TYPE, common labels and values") {
  Metrics metrics({{"model_name", "mc-tiny"}, {"engine", "p0"}});
  metrics.counter(metric::kVllmRejections, {"queue_full"}).add(3);
  metrics.gauge(metric::kVllmWaiting).set(2.5);
  metrics.histogram(metric::kVllmTtft).observe(0.03);
  const std::string text = metrics.expose();
  CHECK(has_line(text, "# HELP vllm:num_requests_waiting Requests waiting to be run."));
  CHECK(has_line(text, "# TYPE vllm:admission_rejections_total counter"));
  CHECK(has_line(text, R"(vllm:admission_rejections_total{engine="p0",model_name="mc-tiny",reason="queue_full"} 3)"));
  CHECK(has_line(text, R"(vllm:num_requests_waiting{engine="p0",model_name="mc-tiny"} 2.5)"));
  CHECK(has_line(text, R"(vllm:time_to_first_token_seconds_bucket{engine="p0",model_name="mc-tiny",le="0.02"} 0)"));
  CHECK(has_line(text, R"(vllm:time_to_first_token_seconds_bucket{engine="p0",model_name="mc-tiny",le="0.04"} 1)"));
  CHECK(has_line(text, R"(vllm:time_to_first_token_seconds_bucket{engine="p0",model_name="mc-tiny",le="+Inf"} 1)"));
  CHECK(has_line(text, R"(vllm:time_to_first_token_seconds_count{engine="p0",model_name="mc-tiny"} 1)"));
}

TEST_CASE("base/metrics: the same labels are the same series, other labels another") {
  Metrics metrics;
  metrics.counter(metric::kRequests, {"ok", ""}).add();
  metrics.counter(metric::kRequests, {"ok", ""}).add();
  metrics.counter(metric::kRequests, {"failed", "peer_lost"}).add();
  CHECK(metrics.counter(metric::kRequests, {"ok", ""}).value() == 2);
  const std::string text = metrics.expose();
  CHECK(text.find("outcome=\"failed\"") < text.find("outcome=\"ok\""));
}

TEST_CASE("base/metrics: a series exists with value 0 before its first event, and a default handle is harmless") {
  Metrics metrics;
  metrics.counter(metric::kReplication);
  CHECK(has_line(metrics.expose(), "mc_replication_total 0"));
  metric::Counter().add();
  metric::Gauge().set(1);
  metric::Histogram().observe(1);
}

TEST_CASE("base/metrics: counts from several threads add up while others scrape") {
  Metrics metrics;
  metric::Counter counter = metrics.counter(metric::kFallback, {"tcp"});
  metric::Histogram histogram = metrics.histogram(metric::kRouteDecision);
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
  CHECK(has_line(metrics.expose(), "mc_route_decision_seconds_count 8000"));
}
