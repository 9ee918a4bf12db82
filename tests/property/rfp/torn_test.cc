// Torn reads: a fetched response that mixes two states of its slot, word by word, under a seed.
#include <cstring>

#include "base/rng.h"
#include "rfp/client.h"
#include "rfp/server.h"
#include "test.h"

using namespace mc;

namespace {

const wire::RfpGeometry kGeometry{.slots = 1, .request_bytes = 64, .response_bytes = 256};

struct Seen {
  uint64_t torn = 0, wrong = 0;
};

using Words = std::vector<uint64_t>;

/// Each read of a call's response takes every word from the slot before or after the server published.
Seen read_torn(uint64_t seed, uint64_t reads, rfp::Fault fault) {
  Rng rng(seed);
  rfp::Client client({.geometry = kGeometry, .epoch = 1, .instance = 2, .retries_max = 1000, .fault = fault});
  rfp::Server server({.geometry = kGeometry, .epoch = 1, .instance = 2});
  Words local(rfp::client_bytes(kGeometry) / 8), pushed(kGeometry.responses_bytes() / 8);
  Words requests(kGeometry.requests_bytes() / 8), responses(kGeometry.responses_bytes() / 8), payload(16);
  const auto bytes = [](Words& words) { return std::as_writable_bytes(std::span(words)); };
  const rfp::ClientMemory at_client{bytes(local), bytes(pushed)};
  const rfp::ServerMemory at_server{bytes(requests), bytes(responses)};
  Seen seen;
  while (seen.torn < reads) {
    const auto sequence = client.call(at_client, 0, {}, kGeometry.response_bytes, {}, kNever);
    REQUIRE_OK(sequence);
    const auto write = client.next(at_client, {});
    std::memcpy(bytes(requests).data() + write->remote, bytes(local).data() + write->local, write->bytes);
    client.done(at_client, *write, Code::ok, {});
    REQUIRE(server.poll(at_server, bytes(payload), {}).has_value());
    const Words before = responses;
    Words answer(rng.below(kGeometry.response_room() / 8 + 1));
    for (uint64_t& word : answer) word = rng.next();
    server.publish(at_server, *sequence, 0, std::as_bytes(std::span(answer)), {});
    const double share = rng.chance(.5) ? .5 : .02;  // words of the other state
    const bool mostly_new = rng.chance(.8);
    std::optional<rfp::Answer> got;
    for (int retry = 0; !got; ++retry) {
      const auto read = client.next(at_client, TimePoint{} + 1s * retry);
      REQUIRE(read.has_value());
      auto* to = reinterpret_cast<uint64_t*>(bytes(local).data() + read->local);
      bool torn = false;
      for (uint32_t i = 0; i < read->bytes / 8; ++i) {
        const size_t at = read->remote / 8 + i;
        const bool old_word = retry < 3 && rng.chance(mostly_new ? share : 1 - share);
        to[i] = old_word ? before[at] : responses[at];
        torn |= i < 4 + answer.size() && to[i] != responses[at];
      }
      seen.torn += torn;
      client.done(at_client, *read, Code::ok, TimePoint{} + 1s * retry);
      got = client.take(at_client);
    }
    const bool right = got->payload.size() == answer.size() * 8 &&
                       (answer.empty() || std::memcmp(got->payload.data(), answer.data(), got->payload.size()) == 0);
    seen.wrong += !right;
    client.finish(*sequence);
  }
  return seen;
}

}  // namespace

TEST_CASE("a response that mixes two states of its slot is never taken as an answer") {
  CAPTURE(test::seed());
  const Seen seen = read_torn(test::seed(), 1'000'000, rfp::Fault::none);
  CHECK(seen.torn >= 1'000'000);
  CHECK(seen.wrong == 0);
}

TEST_CASE("without the checksum torn responses are taken, so the test sees them") {
  const Seen seen = read_torn(test::seed(), 10'000, rfp::Fault::response_unchecked);
  CHECK(seen.wrong > 100);
}
