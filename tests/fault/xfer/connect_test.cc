// Connections that come and go by the thousand over tcp and shm: a descriptor, mapping or peer that is
// left behind each time would end a process that lives for months. Over rdma: tests/rdma/xfer.
#include <cstdlib>
#include <fstream>
#include <string>

#include "count.h"
#include "unit/xfer/child.h"

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

size_t mappings_of_arenas() {
  std::ifstream file("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(file, line);) count += line.find("/memfd:") != std::string::npos ? 1 : 0;
  return count;
}

}  // namespace

TEST_CASE("xfer: connecting and disconnecting leaves no descriptor, mapping or peer behind") {
  const int repeats = ::mc::test::count(50, 10000);
  for (const std::string transport : {"tcp", "tcp-uring", "shm"}) {
    CAPTURE(transport);
    // A second attempt of a busy machine would be counted.
    const Options patient{.connect_timeout = kLong, .stall_timeout = kLong};
    Pair pair(transport, 65536, patient, patient);
    pair.holder.wait(Event::Kind::peer_up);
    const auto again = [&] {
      pair.reader->disconnect(pair.peer);
      pair.holder.wait(Event::Kind::peer_lost);
      pair.holder.seen.clear();
      pair.reader.seen.clear();
      pair.connect();
      pair.holder.wait(Event::Kind::peer_up);
      std::fill(pair.local.bytes().begin(), pair.local.bytes().end(), std::byte{0});
      const Code code = pair.reader.run({{pair.read(0, 0, 4096)}});
      CHECK(code == Code::ok);
      CHECK(equal(pair.local.bytes().first(4096), pair.kv.bytes().first(4096)));
    };
    for (int i = 0; i < 3; ++i) again();
    const size_t descriptors = open_descriptors();
    const size_t mappings = mappings_of_arenas();
    for (int i = 0; i < repeats; ++i) again();
    // the last connection's twin may be closed a moment later
    const TimePoint limit = in(kLong);
    while ((open_descriptors() != descriptors || mappings_of_arenas() != mappings) && in(Duration{}) < limit)
      pair.holder->poll(pair.holder.seen, in(5ms));
    CHECK(open_descriptors() == descriptors);
    CHECK(mappings_of_arenas() == mappings);
    for (Node* node : {&pair.holder, &pair.reader}) {
      const Counters counters = (*node)->counters();
      CHECK(counters.connects ==
            (node == &pair.holder ? 0 : static_cast<uint64_t>(repeats) + 4));  // who leaves stays away
      CHECK(counters.slices_in_flight == 0);
      CHECK(counters.batches_open == 0);
    }
  }
}
