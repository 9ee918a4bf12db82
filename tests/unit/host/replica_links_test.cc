// Calls of cache nodes about values over real hubs (host/replica_links.h).

#include "host/replica_links.h"

#include <atomic>
#include <functional>
#include <thread>

#include "base/errors.h"
#include "test.h"

using namespace mc;
using namespace mc::host;

namespace replica_links_test {

InstanceId instance(uint8_t fill) {
  InstanceId id;
  id.bytes.fill(fill);
  return id;
}

ctl::Hub open_hub(uint8_t id) {
  ctl::HubOptions o;
  o.name = "c" + std::to_string(id), o.instance = instance(id), o.epoch = id;
  o.reconnect = 10ms, o.insecure = true;
  o.listen = {*parse_uri("tcp://127.0.0.1:0")};
  auto hub = ctl::Hub::open(std::move(o));
  REQUIRE_OK(hub);
  return std::move(*hub);
}

/// Hands the events of a hub to `take`, as a control loop does.
class Pump {
 public:
  Pump(ctl::Hub& hub, std::function<void(ctl::Event)> take)
      : thread_([this, &hub, take = std::move(take)] {
          while (!stopping_)
            if (auto event = hub.wait(SystemClock::instance().now() + 10ms)) take(std::move(*event));
        }) {}
  ~Pump() {
    stopping_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

/// A cache node, and its connections to others.
struct Caller {
  ctl::Hub hub = open_hub(1);
  ReplicaLinks links;
  std::map<InstanceId, ctl::LinkId> up;

  Caller() { links.open(hub); }
  ~Caller() { links.close(); }
  door::ReplicaLink::Node connect(const ctl::Hub& other, uint8_t id) {
    const auto link = hub.connect(other.bound().front());
    REQUIRE_OK(link);
    bool is_up = false;
    const TimePoint end = SystemClock::instance().now() + 60s;
    while (const auto event = hub.wait(end))
      if ((is_up = std::holds_alternative<ctl::LinkUp>(*event))) break;
    REQUIRE(is_up);
    up[instance(id)] = *link;
    links.set_links(up);
    return {"c" + std::to_string(id), instance(id)};
  }
  void take(ctl::Event event) {
    if (auto* received = std::get_if<ctl::Received>(&event)) CHECK(links.take(*received));
    if (const auto* failed = std::get_if<ctl::RequestFailed>(&event)) links.take(*failed);
  }
};

TEST_CASE("host/replica_links: a member awaits the list of the others until the first one has come") {
  ReplicaLinks links;
  CHECK_FALSE(links.members().awaits_list);
  links.set_name("c0");
  CHECK(links.members().awaits_list);
  links.set_peers({});
  CHECK_FALSE(links.members().awaits_list);
  links.set_name("c1");
  CHECK_FALSE(links.members().awaits_list);

  ReplicaLinks early;
  early.set_peers({});
  early.set_name("c0");
  CHECK_FALSE(early.members().awaits_list);
}

TEST_CASE("host/replica_links: a call ends although the control loop hands nothing over") {
  ctl::Hub silent = open_hub(2);
  Caller caller;
  const auto node = caller.connect(silent, 2);
  const auto answer = caller.links.call(node, {}, 20ms);
  REQUIRE(!answer);
  CHECK(answer.error().mc == err::kPeerUnreachable);
  CHECK(answer.error().what == "c2 did not answer a call about a value: no answer came in time");
}

TEST_CASE("host/replica_links: of nodes that are asked at once a silent one delays no answer, and each is told apart") {
  ctl::Hub silent = open_hub(2), quick = open_hub(3);
  Caller caller;
  const std::vector<door::ReplicaLink::Node> nodes{
      caller.connect(silent, 2), caller.connect(quick, 3), {"c4", instance(4)}};
  const Pump loop(caller.hub, [&](ctl::Event event) { caller.take(std::move(event)); });
  const Pump other(quick, [&](ctl::Event event) {
    if (const auto* call = std::get_if<ctl::Received>(&event))
      CHECK(quick.reply(*call, wire::kReplicaAnswer, wire::encode(wire::ReplicaAnswer{.what = "mine"})).has_value());
  });
  const TimePoint began = SystemClock::instance().now();
  const auto answers = caller.links.call_all(nodes, {}, 600s, [](const wire::ReplicaAnswer&) { return true; });
  CHECK(SystemClock::instance().now() - began < 300s);
  REQUIRE(answers.size() == 3);
  CHECK(answers[0].error().what == "c2 did not answer a call about a value: its answer was not waited for");
  REQUIRE_OK(answers[1]);
  CHECK(answers[1]->what == "mine");
  CHECK(answers[2].error().what == "c4 did not answer a call about a value: there is no control connection to it");
  bool has_answered = false;
  for (Duration time = 100ms; !has_answered && time < 60s; time *= 3) {  // on a busy machine the quick node needs more
    const auto late = caller.links.call_all(nodes, {}, time, nullptr);
    CHECK(late[0].error().mc == err::kPeerUnreachable);
    has_answered = late[1].has_value();
  }
  CHECK(has_answered);
}

}  // namespace replica_links_test
