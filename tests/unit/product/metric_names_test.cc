#include "product/metric_names.h"

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "base/json.h"
#include "test.h"

namespace metric_names_test {

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

}  // namespace

TEST_CASE("product/metric_names: names, kinds, labels and buckets are those of the golden file") {
  const std::string path = test::source_dir() + "/tests/golden/product/metrics.txt";
  if (std::getenv("MC_SET_GOLDEN")) std::ofstream(path) << table_text();
  std::ifstream file(path);
  std::stringstream golden;
  golden << file.rdbuf();
  CHECK(table_text() == golden.str());
}

TEST_CASE("product/metric_names: no name occurs twice, and only counters and one vLLM histogram end in _total") {
  std::set<std::string> names;
  for (const MetricFamily* family : metric::kAll) {
    const std::string name = family->name;
    CHECK(names.insert(name).second);
    if (name != "vllm:iteration_tokens_total") CHECK(name.ends_with("_total") == (family->kind == MetricKind::counter));
    CHECK((family->kind == MetricKind::histogram) == !family->buckets.empty());
    CHECK(std::string(family->help).ends_with("."));
  }
}

}  // namespace metric_names_test
