// links: base
// A trace is a stranger's file: whatever bytes it has, reading it ends with requests that keep the parser's
// promises or with MC6005. The parser belongs to mc-bench, no library, so its source is compiled in here.
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

#include "../../tools/mc-bench/trace.cc"
#include "base/assert.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace mc;
  const Fd file(::memfd_create("trace", MFD_CLOEXEC));
  MC_ASSERT(write_all(file.get(), std::string_view(reinterpret_cast<const char*>(data), size)).has_value());
  const auto trace = bench::read_trace("/proc/self/fd/" + std::to_string(file.get()));
  if (!trace) {
    MC_ASSERT_EQ(trace.error().mc, static_cast<int>(err::kTraceInvalid));
    return 0;
  }
  MC_ASSERT(!trace->empty());
  uint64_t before = 0;
  for (const auto& request : *trace) {
    MC_ASSERT_LE(before, request.timestamp_ms);
    before = request.timestamp_ms;
    const uint64_t blocks = (request.input_tokens + bench::kTraceBlockTokens - 1) / bench::kTraceBlockTokens;
    MC_ASSERT_EQ(request.hash_ids.size(), blocks);
  }
  return 0;
}
