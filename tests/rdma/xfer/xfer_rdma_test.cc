// The rdma transport on real verbs: soft-RoCE devices of scripts/rdma-vm, rxe0-rxe1 and rxe2-rxe3, each
// pair with a subnet of its own. The holder owns rxe1 and rxe3, the reader rxe0 and rxe2.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/hash.h"
#include "base/rng.h"
#include "unit/xfer/pair.h"

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

Options holder_options(const std::string& devices = "rxe1,rxe3") {
  Options options;
  options.rdma_devices = devices;
  options.rdma_cooldown_min = 100ms;
  options.rdma_cooldown_max = 1s;
  return options;
}

Options reader_options(const std::string& devices = "rxe0,rxe2") {
  return holder_options(devices);
}

struct RdmaPair : Pair {
  explicit RdmaPair(size_t bytes = kDefaultBytes, const Options& holder = holder_options(),
                    const Options& reader = reader_options())
      : Pair("rdma", bytes, holder, reader) {}
  uint64_t failures(Node& node, const std::string& reason) {
    uint64_t count = 0;
    for (const auto& [text, times] : node->counters().failures)
      if (text == reason) count += times;
    return count;
  }
};

}  // namespace

TEST_CASE("rdma/xfer: reads and writes of any size and place arrive intact, with their checksum") {
  RdmaPair pair(size_t{8} << 20);
  CHECK(pair.reader->transport(pair.peer) == "rdma");
  Rng rng(::mc::test::seed());
  for (int round = 0; round < 40; ++round) {
    std::vector<Request> requests;
    const size_t count = 1 + rng.below(8);
    for (size_t i = 0; i < count; ++i) {
      const size_t limit = rng.chance(0.5) ? 300 : (size_t{8} << 20) / count;
      const size_t bytes = 1 + rng.below(limit);
      const size_t local_at = i * ((size_t{8} << 20) / count);
      const size_t remote_at = rng.below((size_t{8} << 20) - bytes + 1);
      Request request = pair.read(local_at, remote_at, bytes);
      request.crc32c = crc32c(pair.kv.bytes().subspan(remote_at, bytes));
      requests.push_back(request);
    }
    std::vector<RequestResult> results;
    std::string text;
    const Code code = pair.reader.run(requests, &results, &text);
    CHECK_MESSAGE(code == Code::ok, text);
    for (size_t i = 0; i < count; ++i) {
      CHECK(equal(requests[i].local, pair.kv.bytes().subspan(requests[i].offset, requests[i].local.size())));
      CHECK(results[i].crc32c == *requests[i].crc32c);
    }
  }
  for (int round = 0; round < 40; ++round) {
    const size_t bytes = 1 + rng.below(rng.chance(0.5) ? 300 : size_t{2} << 20);
    const size_t local_at = rng.below((size_t{8} << 20) - bytes + 1);
    const size_t remote_at = rng.below((size_t{8} << 20) - bytes + 1);
    fill(pair.local.bytes().subspan(local_at, bytes), rng.next());
    const Request request = pair.write(local_at, remote_at, bytes);
    CHECK(pair.reader.run({&request, 1}) == Code::ok);
    CHECK(equal(request.local, pair.landing.bytes().subspan(remote_at, bytes)));
  }
}
