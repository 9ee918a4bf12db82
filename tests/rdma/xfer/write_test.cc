// WRITEs on paths that fail: a late duplicate would be corruption.
#include "machine.h"

namespace write_test {

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

TEST_CASE("rdma/xfer: writes over a link that is cut arrive whole, and later ones are not overwritten by them") {
  const size_t kBytes = count<size_t>(4, 8) << 20;
  RdmaPair pair(kBytes);
  const auto sent = [] { return sent_bytes("v0") + sent_bytes("v2"); };
  for (int round = 0; round < count(2, 50); ++round) {
    const std::string cut = round % 2 == 0 ? "v0" : "v3";
    const std::string back = round % 2 == 0 ? "v0" : "v2";  // the sender of the path that is cut
    fill(pair.local.bytes(), static_cast<uint64_t>(round) + 100);
    const uint64_t before = sent();
    const Request request = pair.write(0, 0, kBytes);
    auto batch = pair.reader->submit({&request, 1}, in(kLong));
    REQUIRE_OK(batch);
    REQUIRE(until([&] { return sent() > before + kBytes / 8; }));
    set_link(cut, false);
    const Event done = pair.reader.done(*batch);
    CHECK_MESSAGE(done.code == Code::ok, done.text);
    CHECK(equal(pair.landing.bytes(), pair.local.bytes()));
    CHECK(pair.reader->close(*batch, in(kLong)).has_value());
    fill(pair.local.bytes().first(kBytes / 4), static_cast<uint64_t>(round) + 900);
    CHECK(pair.reader.run({{pair.write(0, 0, kBytes / 4)}}) == Code::ok);
    set_link(cut, true);
    CHECK(equal(pair.landing.bytes(), pair.local.bytes()));
    CHECK(carries(back, size_t{1} << 17, [&] { (void)pair.reader.run({{pair.write(0, 0, kBytes)}}); }));
    CHECK(equal(pair.landing.bytes(), pair.local.bytes()));
  }
  CHECK(pair.reader->counters().batches_failed == 0);
  CHECK(pair.reader->counters().peers_lost == 0);
}

}  // namespace write_test
