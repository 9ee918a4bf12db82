#include "immediate.h"

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::test;

namespace {

constexpr const char* kTransports[] = {"tcp", "shm", "shm-engine"};

Options few_events() {
  Options options;
  options.events_max = 8;
  return options;
}

Options faulty() {
  Options options;
  options.faults = {.seed = 11, .fail_submit = 0.1, .fail_completion = 0.1, .lose_peer = 0.05};
  options.backoff_min = 1ms;
  return options;
}

}  // namespace

TEST_CASE("xfer: an immediate is told when every byte of its write is in place") {
  for (const char* transport : kTransports) {
    CAPTURE(std::string(transport));
    Pair pair(transport);
    check_in_place(pair);
  }
}

TEST_CASE("xfer: each of many immediates is told once to a peer that takes few events") {
  for (const char* transport : kTransports) {
    CAPTURE(std::string(transport));
    Pair pair(transport, Pair::kDefaultBytes, few_events());
    check_each_once(pair, 3000);
  }
}

TEST_CASE("xfer: a write that is refused tells no immediate") {
  for (const char* transport : kTransports) {
    CAPTURE(std::string(transport));
    Pair pair(transport);
    check_refused(pair);
  }
}

TEST_CASE("xfer: no immediate is told twice through lost connections and completions that lie") {
  for (const char* transport : kTransports) {
    CAPTURE(std::string(transport));
    Pair pair(transport, Pair::kDefaultBytes, {}, faulty());
    check_at_most_once(pair, 200);
  }
}
