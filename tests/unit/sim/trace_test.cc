// Owners in traces: what a line may say of its tenant and priority, and what blocks tenants share.
#include "sim/trace.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/errors.h"
#include "base/fd.h"
#include "test.h"

using namespace mc;
using namespace mc::sim;

namespace {

Result<std::vector<TraceRequest>> read(const std::string& text) {
  const Fd file(::memfd_create("trace", MFD_CLOEXEC));
  REQUIRE(write_all(file.get(), text).has_value());
  return read_trace("/proc/self/fd/" + std::to_string(file.get()));
}

std::string line(const std::string& more) {
  return "{\"timestamp\": 1, \"input_length\": 600, \"output_length\": 2, \"hash_ids\": [4, 5]" + more + "}\n";
}

}  // namespace

TEST_CASE("sim/trace: tenant and priority are read, written and read again, and absent where they were") {
  const std::string text = line("") + line(", \"tenant\": \"a-1_B\"") + line(", \"priority\": -100") +
                           line(", \"tenant\": \"b\", \"priority\": 100");
  const auto trace = read(text);
  REQUIRE(trace);
  CHECK((*trace)[0].tenant == "");
  CHECK((*trace)[0].priority == 0);
  CHECK((*trace)[1].tenant == "a-1_B");
  CHECK((*trace)[2].priority == -100);
  CHECK((*trace)[3].tenant == "b");
  CHECK((*trace)[3].priority == 100);
  std::string written;
  for (const TraceRequest& r : *trace) written += trace_line(r);
  CHECK(written == text);
  CHECK(*read(written) == *trace);
}

TEST_CASE("sim/trace: an owner that cannot be is refused by line and field") {
  for (const std::string bad :
       {", \"tenant\": \"\"", ", \"tenant\": 7", ", \"tenant\": null", ", \"tenant\": \"a b\"",
        ", \"tenant\": \"\\u00e9\"", ", \"priority\": 101", ", \"priority\": -101", ", \"priority\": 0.5",
        ", \"priority\": \"1\"", ", \"priority\": 99999999999999999999", ", \"tenant\": \""}) {
    const std::string more = bad.back() == '"' && bad.ends_with(": \"") ? bad + std::string(65, 'x') + "\"" : bad;
    CAPTURE(more);
    const auto trace = read(line("") + line(more));
    REQUIRE(!trace);
    CHECK(trace.error().mc == static_cast<int>(err::kTraceInvalid));
    CHECK(trace.error().what.find("line 2") != std::string::npos);
    CHECK(trace.error().what.find(more.find("tenant") != std::string::npos ? "tenant" : "priority") !=
          std::string::npos);
  }
}

TEST_CASE("sim/trace: merged traces keep their owners") {
  const auto a = read(line(", \"tenant\": \"a\"")), b = read(line(", \"priority\": 3"));
  const auto both = merge_traces({*a, *b});
  REQUIRE(both.size() == 2);
  CHECK(both[0].tenant == "a");
  CHECK(both[1].priority == 3);
}

TEST_CASE("sim/trace: tenants of different spaces do not find each other's blocks, those of one do") {
  const auto trace = read(line("") + line("") + line(""));
  const std::vector<uint32_t> spaces = {0, 1, 0};
  const TraceBlocks apart(*trace, spaces), together(*trace);
  CHECK(together.unique() == 2);
  CHECK(apart.unique() == 4);
  CHECK(std::ranges::equal(apart.of(0), apart.of(2)));
  for (const uint32_t block : apart.of(1)) CHECK(std::ranges::find(apart.of(0), block) == apart.of(0).end());
}
