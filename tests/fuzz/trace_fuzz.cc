// links: base sim
// A trace is a stranger's file: whatever bytes it has, reading it ends with requests that keep the parser's
// promises or with MC6005. What is written back reads the same.
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/assert.h"
#include "base/errors.h"
#include "base/fd.h"
#include "fuzz_target.h"
#include "sim/trace.h"

namespace mc::trace_fuzz {
namespace {

mc::Result<std::vector<mc::sim::TraceRequest>> read(std::string_view text) {
  const mc::Fd file(::memfd_create("trace", MFD_CLOEXEC));
  MC_ASSERT(mc::write_all(file.get(), text).has_value());
  return mc::sim::read_trace("/proc/self/fd/" + std::to_string(file.get()));
}

}  // namespace

FUZZ_TARGET(trace) {
  const auto trace = read(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!trace) {
    MC_ASSERT_EQ(trace.error().mc, static_cast<int>(err::kTraceInvalid));
    return 0;
  }
  MC_ASSERT(!trace->empty());
  double before = 0;
  std::string lines;
  for (const auto& request : *trace) {
    MC_ASSERT_LE(before, request.timestamp_ms);
    before = request.timestamp_ms;
    const uint64_t blocks = (request.input_tokens + sim::kTraceBlockTokens - 1) / sim::kTraceBlockTokens;
    MC_ASSERT_EQ(request.hash_ids.size(), blocks);
    lines += sim::trace_line(request);
  }
  const auto again = read(lines);
  MC_ASSERT(again.has_value() && *again == *trace);
  return 0;
}

}  // namespace mc::trace_fuzz
