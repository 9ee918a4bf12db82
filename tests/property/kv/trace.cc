// The pool under the two public Mooncake traces, against the brief's tables of theoretical and finite
// prefix reuse. The files are looked for in $MCT_TRACES, else beside the source tree; without them
// these tests pass over.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>

#include "count.h"
#include "kv/trace_cache.h"
#include "test.h"

using namespace mc;
using namespace mc::kv;

namespace {

struct Request {
  uint64_t input_tokens = 0;
  std::vector<uint64_t> ids;
};

uint64_t number_after(const std::string& line, const char* key) {
  const size_t at = line.find(key);
  return at == std::string::npos ? 0 : std::strtoull(line.c_str() + at + std::strlen(key), nullptr, 10);
}

std::vector<Request> read_trace(const std::string& name) {
  const char* folder = std::getenv("MCT_TRACES");
  std::ifstream file((folder ? folder : test::source_dir() + "/../Mooncake/FAST25-release/traces") + "/" + name +
                     "_trace.jsonl");
  std::vector<Request> out;
  for (std::string line; std::getline(file, line);) {
    Request& request = out.emplace_back();
    request.input_tokens = number_after(line, "\"input_length\": ");
    const char* at = line.c_str() + line.find("\"hash_ids\": [") + std::strlen("\"hash_ids\": [");
    for (char* end = nullptr; *at != ']' && *at != '\0'; at = *end == ',' ? end + 2 : end)
      request.ids.push_back(std::strtoull(at, &end, 10));
  }
  if (out.empty()) MESSAGE("no trace ", name, ": passed over; MCT_TRACES names the folder of the public traces");
  return out;
}

const std::vector<Request>& load(const std::string& name) {
  static std::map<std::string, std::vector<Request>> kept;
  const auto found = kept.find(name);
  return found != kept.end() ? found->second : kept.emplace(name, read_trace(name)).first->second;
}

struct Hits {
  uint64_t blocks = 0, block_total = 0, tokens = 0, token_total = 0;
  double block_share() const { return static_cast<double>(blocks) / static_cast<double>(block_total); }
  double token_share() const { return static_cast<double>(tokens) / static_cast<double>(token_total); }
};

Hits replay(const std::vector<Request>& trace, uint32_t capacity, const Eviction& eviction = kLruTail) {
  TraceCache cache(capacity, eviction);
  Hits hits;
  for (const Request& request : trace) {
    const uint64_t leading = cache.request(request.ids);
    hits.tokens += std::min<uint64_t>(512 * leading, request.input_tokens);
    hits.token_total += request.input_tokens;
  }
  hits.blocks = cache.hit_blocks();
  hits.block_total = cache.seen_blocks();
  cache.pool().check();
  return hits;
}

struct Row {
  uint32_t capacity;
  double conversation, synthetic;
};

bool agrees(double measured, double published) {
  return std::abs(measured - published) < 0.00006;
}

}  // namespace

TEST_CASE("kv/trace: an unlimited cache finds exactly the published theoretical hits") {
  if (const auto& trace = load("conversation"); !trace.empty()) {
    const Hits hits = replay(trace, TraceCache::kUnlimited);
    CHECK(hits.blocks == 105710);
    CHECK(hits.block_total == 288500);
    CHECK(hits.tokens == 54098411);
    CHECK(hits.token_total == 144793823);
  }
  if (const auto& trace = load("synthetic"); !trace.empty()) {
    const Hits hits = replay(trace, TraceCache::kUnlimited);
    CHECK(hits.blocks == 77953);
    CHECK(hits.block_total == 121877);
    CHECK(hits.tokens == 39852661);
  }
}

TEST_CASE("kv/trace: tail-first LRU reproduces the published hit rates at every capacity tried") {
  // Mooncake brief, finite single cache: block hit of LRU touched last to first.
  static constexpr Row kRows[] = {{19, .0417, .0018},    {195, .0419, .0168},   {1000, .0445, .0841},
                                  {1953, .0533, .1424},  {5859, .1361, .3094},  {10000, .2116, .4239},
                                  {30000, .3257, .6242}, {100000, .3637, .6396}};
  const auto &conversation = load("conversation"), &synthetic = load("synthetic");
  for (size_t i = test::count(size_t{1}, size_t{0}); i < std::size(kRows); i += test::count(size_t{3}, size_t{1})) {
    const Row& row = kRows[i];
    CAPTURE(row.capacity);
    if (!conversation.empty()) CHECK(agrees(replay(conversation, row.capacity).block_share(), row.conversation));
    if (!synthetic.empty()) CHECK(agrees(replay(synthetic, row.capacity).block_share(), row.synthetic));
  }
  if (!conversation.empty()) CHECK(agrees(replay(conversation, 5859).token_share(), .1387));
}

TEST_CASE("kv/trace: the tree keeps whole prefixes, so hits without counts stay within a point of lru's") {
  const auto& trace = load("conversation");
  if (trace.empty()) return;
  const double lru = replay(trace, 10000).block_share(),
               unlimited = replay(trace, TraceCache::kUnlimited).block_share();
  for (const Eviction* eviction : evictions()) {
    CAPTURE(eviction->name);
    const double share = replay(trace, 10000, *eviction).block_share();
    const bool counts_uses = eviction == &kLfu || eviction == &kLengthAware;
    if (!counts_uses) CHECK(std::abs(share - lru) < 0.01);
    if (eviction == &kLfu) CHECK(agrees(share, .1322));  // the published replay: counts while resident, then age
    CHECK(share < unlimited);
    CHECK(share > 0.0419);  // of lru with 195 blocks
  }
}
