// A channel between two engines of this process, over each transport that needs no device.
#include <cstring>

#include "rfp_windows/rfp_windows.h"
#include "test.h"
#include "transports/transports.h"

using namespace mc;

namespace {

const wire::RfpGeometry kGeometry{.slots = 4, .request_bytes = 128, .response_bytes = 512};

const std::string kSecret(32, 's');

TimePoint clock_now() {
  return SystemClock::instance().now();
}

struct Ends {
  explicit Ends(const std::string& transport, bool with_wakes = false, const xfer::FaultPlan& faults = {})
      : wakes(with_wakes) {
    auto opened = xfer::open_engine({.name = "server", .transport = transport, .secret = kSecret});
    REQUIRE_OK(opened);
    server = std::move(*opened);
    opened = xfer::open_engine({.name = "client", .transport = transport, .secret = kSecret, .faults = faults});
    REQUIRE_OK(opened);
    client = std::move(*opened);
    auto connected = client->connect(server->describe(), clock_now() + 20s);
    REQUIRE_OK(connected);
    peer = *connected;
  }
  ~Ends() {
    client_end.reset();
    server_end.reset();
  }

  void turn() {
    events.clear();
    (void)server->poll(events, clock_now());
    for (const xfer::Event& event : events) {
      if (server_end) server_end->on(event);
      server_woken += event.kind == xfer::Event::Kind::immediate && event.immediate == rfp::kWakes;
      if (event.kind != xfer::Event::Kind::notify || server_end) continue;
      const auto asked = wire::decode_rfp_open(event.bytes);
      REQUIRE_OK(asked);
      auto end = rfp::ServerEnd::open(*server, event.peer, *asked, 77, wakes);
      REQUIRE_OK(end);
      server_end = std::move(*end);
    }
    events.clear();
    (void)client->poll(events, clock_now());
    for (const xfer::Event& event : events) {
      if (client_end) client_end->on(event);
      client_woken += event.kind == xfer::Event::Kind::immediate && event.immediate == rfp::kWakes;
      if (event.kind != xfer::Event::Kind::peer_up) continue;
      auto end = rfp::ClientEnd::open(*client, peer, 1, {.geometry = kGeometry}, wakes);
      REQUIRE_OK(end);
      client_end = std::move(*end);
    }
    if (server_end) server_end->run();
    if (client_end) client_end->run(clock_now());
  }

  /// Answers requests by their payload, repeated `times` times.
  void serve(size_t times) {
    while (const auto request = server_end->poll(clock_now())) {
      std::vector<std::byte> response;
      const auto payload = server_end->payload(*request);
      for (size_t i = 0; i < times; ++i) response.insert(response.end(), payload.begin(), payload.end());
      server_end->publish(request->sequence, request->method, response, clock_now());
    }
  }

  template <class Done>
  void turn_until(Done done) {
    const TimePoint deadline = clock_now() + 20s;
    while (!done()) {
      REQUIRE(clock_now() < deadline);
      turn();
    }
  }
  bool ready() const { return client_end && client_end->ready() && server_end && server_end->ready(); }

  bool wakes;
  uint64_t server_woken = 0, client_woken = 0;  // immediates that arrived
  std::unique_ptr<xfer::Engine> server, client;
  xfer::PeerId peer{};
  std::unique_ptr<rfp::ClientEnd> client_end;
  std::unique_ptr<rfp::ServerEnd> server_end;
  std::vector<xfer::Event> events;
};

}  // namespace

TEST_CASE("rfp_windows/ends: calls end with their own responses over each transport") {
  for (const std::string transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    Ends ends(transport);
    ends.turn_until([&] { return ends.ready(); });
    rfp::Client& client = ends.client_end->client();
    uint64_t ended = 0, pushed = 0;
    for (uint64_t started = 0; ended < 200;) {
      const uint64_t argument = started * 3;
      if (client.free() && started < 200) {
        auto call = client.call(ends.client_end->memory(), 9, std::as_bytes(std::span(&argument, 1)), 64, clock_now(),
                                clock_now() + 20s);
        REQUIRE_OK(call);
        CHECK(*call == ++started);
      }
      std::optional<rfp::Answer> answer;
      ends.turn_until([&] {
        ends.serve(started % 2 == 0 ? 1 : 50);
        answer = client.take(ends.client_end->memory());
        return answer || (client.free() && started < 200);
      });
      if (!answer) continue;
      CHECK(answer->code == Code::ok);
      CHECK(answer->status == 9);
      const uint64_t wanted = (answer->sequence - 1) * 3;
      REQUIRE(answer->payload.size() >= sizeof wanted);
      CHECK(std::memcmp(answer->payload.data() + answer->payload.size() - 8, &wanted, 8) == 0);
      pushed += answer->pushed;
      client.finish(answer->sequence);
      ++ended;
    }
    // tcp pushes every response and reads nothing; over shm the mode depends on the speed of this test's server
    if (transport == "tcp") {
      CHECK(pushed == 200);
      CHECK(ends.server_end->figures().writes == 200);
      CHECK(ends.client_end->figures().reads == 0);
    } else {
      CHECK(ends.client_end->figures().reads > 0);
      CHECK(ends.server_end->figures().writes >= pushed);
    }
  }
}

TEST_CASE("rfp_windows/ends: calls of a lost peer end as lost") {
  for (const std::string transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    Ends ends(transport);
    ends.turn_until([&] { return ends.ready(); });
    rfp::Client& client = ends.client_end->client();
    REQUIRE_OK(client.call(ends.client_end->memory(), 1, {}, 64, clock_now(), kNever));
    ends.server_end.reset();
    ends.server = {};
    std::optional<rfp::Answer> answer;
    const TimePoint deadline = clock_now() + 20s;
    while (!answer && clock_now() < deadline) {
      ends.events.clear();
      (void)ends.client->poll(ends.events, clock_now() + 1ms);
      for (const xfer::Event& event : ends.events) ends.client_end->on(event);
      ends.client_end->run(clock_now());
      answer = client.take(ends.client_end->memory());
    }
    REQUIRE(answer.has_value());
    CHECK(answer->code != Code::ok);
    CHECK(ends.client_end->refused() == Code::peer_lost);
  }
}

TEST_CASE("rfp_windows/ends: each write wakes an end that sleeps, and none is sent to an end that polls") {
  for (const std::string transport : {"shm", "tcp"})
    for (const bool wakes : {true, false}) {
      CAPTURE(transport);
      CAPTURE(wakes);
      Ends ends(transport, wakes);
      ends.turn_until([&] { return ends.ready(); });
      CHECK(ends.server_woken == 0);
      rfp::Client& client = ends.client_end->client();
      for (uint64_t calls = 1; calls <= 5; ++calls) {
        REQUIRE_OK(client.call(ends.client_end->memory(), 1, {}, 64, clock_now(), clock_now() + 20s));
        std::optional<rfp::Answer> answer;
        ends.turn_until([&] {
          if (!wakes || ends.server_woken >= calls) ends.serve(1);  // a sleeping server looks when it is woken
          answer = client.take(ends.client_end->memory());
          return answer.has_value();
        });
        CHECK(answer->code == Code::ok);
        client.finish(answer->sequence);
      }
      if (wakes)
        ends.turn_until([&] {
          return ends.client_woken >= ends.server_end->figures().writes &&
                 ends.server_woken >= ends.client_end->figures().writes;
        });
      ends.turn_until([&] { return ends.client_end->close() && ends.server_end->close(); });
      CHECK(ends.server_woken == (wakes ? ends.client_end->figures().writes : 0));
      CHECK(ends.client_woken == (wakes ? ends.server_end->figures().writes : 0));
    }
}

TEST_CASE("rfp_windows/ends: the memory of a closed end is withdrawn, so the peer's next call fails") {
  for (const std::string transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    Ends ends(transport);
    ends.turn_until([&] { return ends.ready(); });
    ends.turn_until([&] { return ends.server_end->close(); });
    CHECK(ends.server_end->close());
    rfp::Client& client = ends.client_end->client();
    // A client that waits for a push learns of it by its deadline alone.
    REQUIRE_OK(client.call(ends.client_end->memory(), 1, {}, 64, clock_now(), clock_now() + 2s));
    std::optional<rfp::Answer> answer;
    ends.turn_until([&] {
      answer = client.take(ends.client_end->memory());
      return answer.has_value();
    });
    CHECK(answer->code != Code::ok);
    ends.turn_until([&] { return ends.client_end->close(); });
  }
}

TEST_CASE("rfp_windows/ends: the destructor of an end in use waits until the given deadline, and no longer") {
  Ends ends("tcp", false, {.drop_completion = 1});
  ends.turn_until([&] { return ends.ready(); });
  const xfer::Request request{.op = xfer::Op::read,
                              .peer = ends.peer,
                              .local = ends.client_end->memory().local.first(64),
                              .buffer = ends.client_end->opened().responses};
  const auto batch = ends.client->submit({&request, 1}, clock_now() + 20s);  // its transfer never ends
  REQUIRE_OK(batch);
  CHECK_FALSE(ends.client_end->close());
  const TimePoint begin = clock_now();
  ends.client_end->release_by(begin + 100ms);
  ends.client_end.reset();
  const Duration waited = clock_now() - begin;
  CHECK(waited >= 100ms);
  CHECK(waited < rfp::kReleaseMax);
  ends.client->cancel(*batch);
  CHECK(ends.client->close(*batch, clock_now() + 20s));
}
