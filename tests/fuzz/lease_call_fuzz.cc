// links: node
// Calls over lease channels: the first byte picks a request, an answer to a lease request or one to a lookup. The
// second byte is its method or status, and the rest is the payload that a peer wrote. Each request gets one answer at
// most: it reaches the machine, is a lookup, or is refused. An answer to a lease request brings the grant of the lease
// that was requested, or the request is repeated by control. A lookup ends once, with a tier for each of its blocks or
// with an error.
#include <cstdlib>
#include <set>
#include <vector>

#include "fuzz_target.h"
#include "node/lease_carrier.h"

namespace mc::lease_call_fuzz {
namespace {

constexpr uint64_t kLease = 26;

struct Lines final : node::LeaseLines {
  std::set<uint64_t> open;  // requests without an answer
  uint64_t call(const InstanceId&, wire::LeaseMethod, std::span<const uint8_t>, TimePoint) override { return 1; }
  bool answer(const InstanceId&, uint64_t number, wire::LeaseStatus, std::span<const uint8_t> payload,
              TimePoint) override {
    if (payload.size() > wire::kLeaseGeometry.response_room()) return false;
    if (open.erase(number) == 0) std::abort();  // the channel would assert
    return true;
  }
};

void try_request(uint16_t method, std::span<const uint8_t> payload) {
  Lines lines;
  std::vector<uint64_t> memory(kv::BlockTable::bytes_for(1) / 8);
  kv::BlockTable table(std::as_writable_bytes(std::span(memory)), 1);
  node::LeaseCarrier holder(lines);
  holder.answer_from(table);
  size_t heard = 0;
  for (const uint64_t number : {1, 2}) {
    lines.open.insert(number);
    holder.on_request("p1", {}, number, method, payload, {});
    while (const auto message = holder.next()) {
      ++heard;
      const auto* request = std::get_if<wire::LeaseRequest>(&message->message);
      if (!request) continue;
      if (number != 1) std::abort();  // its lease number is in use
      if (holder.idle()) std::abort();
    }
  }
  if (heard + holder.stats().refused + holder.stats().lookups_served + holder.stats().touches_served != 2) std::abort();
  holder.on_time(TimePoint{} + 1s);
  if (!lines.open.empty() || !holder.idle()) std::abort();
}

void try_answer(uint16_t status, std::span<const uint8_t> payload) {
  Lines lines;
  node::LeaseCarrier reader(lines);
  wire::LeaseRequest request;
  request.lease = kLease;
  if (!reader.send({"p0", {}, request}, {})) std::abort();
  reader.on_answer({}, 1, Code::ok, status, payload, {});
  if (!reader.idle()) std::abort();
  const auto message = reader.next();
  const size_t fallen = reader.take_fallen().size();
  const bool by_message = status == static_cast<uint16_t>(wire::LeaseStatus::by_message);
  if (fallen + (message ? 1 : 0) != (by_message ? 0 : 1)) std::abort();
  if (message && std::get<wire::LeaseGrant>(message->message).lease != kLease) std::abort();
}

void try_lookup(uint16_t status, std::span<const uint8_t> payload) {
  Lines lines;
  node::LeaseCarrier reader(lines);
  reader.look_up({kLease, "p0", {}, std::vector<BlockHash>(2)}, {});
  reader.on_answer({}, 1, Code::ok, status, payload, {});
  const auto answer = reader.next_answer();
  if (!reader.idle() || !answer || answer->lookup != kLease || reader.next_answer()) std::abort();
  if (answer->held.size() != (answer->code == Code::ok ? 2u : 0u)) std::abort();
  for (const wire::HeldIn held : answer->held)
    if (held > wire::HeldIn::both) std::abort();
}

}  // namespace

FUZZ_TARGET(lease_call) {
  if (size < 2) return 0;
  const std::span payload(data + 2, size - 2);
  switch (data[0] % 3) {
    case 0: try_request(data[1] % 6, payload); break;
    case 1: try_answer(data[1] % 4, payload); break;
    default: try_lookup(data[1] % 4, payload);
  }
  return 0;
}

}  // namespace mc::lease_call_fuzz
