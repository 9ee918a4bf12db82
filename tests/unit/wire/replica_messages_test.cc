#include "wire/replica_messages.h"

#include "test.h"
#include "unit/wire/golden.h"

using namespace mc;
using namespace mc::wire;

namespace replica_messages_test {

ReplicaCall example() {
  ReplicaCall call;
  call.op = static_cast<uint32_t>(ReplicaOp::offer);
  call.tenant = "t", call.name = "k";
  call.value = {.bytes = 3, .crc = 9, .ttl_ms = 1000, .pin_ms = 5, .durable = true};
  call.value.set = {.version = 8, .revision = 1, .copies = 2, .holders = {"c0", "c1"}};
  call.transfer = 4, call.replaces = true;
  return call;
}

ReplicaAnswer example_answer() {
  ReplicaAnswer answer{.mc = 4007, .what = "gone", .value = example().value, .changed = true, .transfer = 9};
  answer.data = {1, 2, 3};
  return answer;
}

TEST_CASE("wire/replica_messages: a call and an answer are read back as they were written") {
  const auto call = parse_replica_call(encode(example()));
  REQUIRE_OK(call);
  CHECK(*call == example());
  const auto answer = parse_replica_answer(encode(example_answer()));
  REQUIRE_OK(answer);
  CHECK(*answer == example_answer());
}

TEST_CASE("wire/replica_messages: the bytes are those of the golden file") {
  test::check_golden("replica_messages.txt", std::string(kReplicaCall) + " " + test::hex(encode(example())) + "\n" +
                                                 std::string(kReplicaAnswer) + " " +
                                                 test::hex(encode(example_answer())) + "\n");
}

TEST_CASE("wire/replica_messages: cut bytes, an unknown operation and impossible holders are refused") {
  const Bytes bytes = encode(example());
  for (size_t size = 0; size < bytes.size(); ++size) CHECK(!parse_replica_call(std::span(bytes).first(size)));
  const auto refused = [](auto change) {
    ReplicaCall call = example();
    change(call);
    return !parse_replica_call(encode(call));
  };
  CHECK(refused([](ReplicaCall& call) { call.op = kReplicaOps; }));
  CHECK(refused([](ReplicaCall& call) { call.value.set.holders.assign(kReplicasMax + 1, "c"); }));
  CHECK(refused([](ReplicaCall& call) { call.value.set.holders = {"c0", "c0"}; }));
  CHECK(refused([](ReplicaCall& call) { call.value.set.holders = {""}; }));
  CHECK(refused([](ReplicaCall& call) { call.value.set.holders = {std::string(kHolderBytesMax + 1, 'n')}; }));
  CHECK(refused([](ReplicaCall& call) { call.value.set.version = 0; }));
}

}  // namespace replica_messages_test
