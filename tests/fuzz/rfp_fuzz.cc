// links: rfp
// Remote-fetch channels: set-up notifies, and what the other side wrote into shared memory. Set-up messages that parse
// must encode to the bytes they came from. Garbage in the slots is tried as it is and once more with its checksums put
// right, and changes no byte outside the memory that the two ends may write.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "fuzz_target.h"
#include "rfp/client.h"
#include "rfp/server.h"

namespace mc::rfp_fuzz {
namespace {

constexpr wire::RfpGeometry kGeometry{.slots = 2, .request_bytes = 128, .response_bytes = 192};

template <class Message>
void try_message(const Result<Message>& message, std::span<const std::byte> bytes) {
  if (!message) return;
  const auto again = wire::encode(*message);
  if (again.size() != bytes.size() || std::memcmp(again.data(), bytes.data(), bytes.size()) != 0) std::abort();
}

/// Puts the checksum of a slot right where its size allows it.
template <class Header>
void put_right(std::span<std::byte> slot) {
  Header header;
  std::memcpy(&header, slot.data(), sizeof header);
  header.reserved = 0;
  header.size %= static_cast<uint32_t>(slot.size() - sizeof header + 1);
  header.crc = wire::rfp_crc(header, slot.subspan(sizeof header, header.size));
  std::memcpy(slot.data(), &header, sizeof header);
}

void try_server(std::span<const std::byte> bytes, bool right) {
  // One word behind the payload must stay as it is.
  std::vector<uint64_t> requests(kGeometry.requests_bytes() / 8), responses(kGeometry.responses_bytes() / 8);
  std::vector<uint64_t> payload(kGeometry.request_room() / 8 + 1);
  const auto memory = std::as_writable_bytes(std::span(requests));
  std::memcpy(memory.data(), bytes.data(), std::min(bytes.size(), memory.size()));
  for (uint32_t slot = 0; right && slot < kGeometry.slots; ++slot)
    put_right<wire::RfpRequest>(memory.subspan(kGeometry.request_at(slot), kGeometry.request_bytes));
  const rfp::ServerMemory at{memory, std::as_writable_bytes(std::span(responses))};
  rfp::Server server({.geometry = kGeometry, .epoch = 0, .instance = 2});
  for (int look = 0; look < 4; ++look) {
    const auto request = server.poll(at, std::as_writable_bytes(std::span(payload)), {});
    if (payload.back() != 0) std::abort();
    if (!request) continue;
    if (request->size > kGeometry.request_room()) std::abort();
    server.publish(at, request->sequence, 0, std::as_bytes(std::span(payload)).first(request->size), {});
    while (const auto push = server.push(at)) {
      if (push->at + push->bytes > kGeometry.responses_bytes()) std::abort();
      server.pushed(push->slot, Code::ok);
    }
  }
}

void try_client(std::span<const std::byte> bytes, bool right) {
  std::vector<uint64_t> local(rfp::client_bytes(kGeometry) / 8), pushed(kGeometry.responses_bytes() / 8);
  const auto memory = std::as_writable_bytes(std::span(pushed));
  std::memcpy(memory.data(), bytes.data(), std::min(bytes.size(), memory.size()));
  for (uint32_t slot = 0; right && slot < kGeometry.slots; ++slot)
    put_right<wire::RfpResponse>(memory.subspan(kGeometry.response_at(slot), kGeometry.response_bytes));
  const rfp::ClientMemory at{std::as_writable_bytes(std::span(local)), memory};
  rfp::Client client({.geometry = kGeometry, .retries_max = 1});
  for (int call = 0; call < 2; ++call)
    if (!client.call(at, 1, {}, 64, {}, kNever)) std::abort();
  for (int i = 0; i < 12; ++i) {
    client.look(at);
    if (const auto transfer = client.next(at, TimePoint{} + 1s * i)) {
      const bool read = transfer->kind == rfp::Transfer::Kind::read;
      if (read && transfer->remote + transfer->bytes > memory.size()) std::abort();
      if (transfer->local + transfer->bytes > local.size() * 8) std::abort();
      if (read) std::memcpy(at.local.data() + transfer->local, memory.data() + transfer->remote, transfer->bytes);
      client.done(at, *transfer, Code::ok, TimePoint{} + 1s * i);
    }
    while (const auto answer = client.take(at)) {
      if (answer->payload.size() > kGeometry.response_room()) std::abort();
      client.finish(answer->sequence);
    }
  }
}

}  // namespace

FUZZ_TARGET(rfp) {
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  try_message(wire::decode_rfp_open(bytes), bytes);
  try_message(wire::decode_rfp_opened(bytes), bytes);
  for (const bool right : {false, true}) {
    try_server(bytes, right);
    try_client(bytes, right);
  }
  return 0;
}

}  // namespace mc::rfp_fuzz
