// Tokens of attempts that the conductor has ended, from a node that did not get the cancel.

#include "conductor_bench.h"

namespace conductor_test {

TEST_CASE("node/conductor: tokens of a request that is over are answered by cancels, by 64 at most") {
  Bench b;
  start(b);
  b.submit("r");
  wire::Tokens tokens;
  tokens.rows.push_back({"r", 1, 0, 5, {}, ""});
  CHECK(Bench::sent<wire::Cancel>(b.give(Received{"d0", instance(2), tokens}), "d0").empty());
  CHECK(Bench::sent<wire::Cancel>(b.give(ClientCancel{"r"}), "d0").size() == 1);
  const auto cancels = Bench::sent<wire::Cancel>(b.give(Received{"d0", instance(2), tokens}), "d0");
  REQUIRE(cancels.size() == 1);
  CHECK(cancels[0].req == "r");
  CHECK(cancels[0].attempt == 1);
  for (uint32_t i = 0; i < 1000; ++i) tokens.rows.push_back({"s" + std::to_string(i), 1, 0, 5, {}, ""});
  CHECK(Bench::sent<wire::Cancel>(b.give(Received{"d0", instance(2), tokens}), "d0").size() == 64);
}

}  // namespace conductor_test
