// A client and a server with their memories, and transfers that move at once; for tests of one channel without threads.
#pragma once

#include <cstring>
#include <vector>

#include "rfp/client.h"
#include "rfp/server.h"

namespace mc::rfp::test {

struct Channel {
  explicit Channel(const wire::RfpGeometry& geometry, ClientOptions options = {}, uint64_t server_instance = 6)
      : client((options.geometry = geometry, options.epoch = 5, options.instance = 6, options)),
        server({.geometry = geometry, .epoch = 5, .instance = server_instance}),
        local(client_bytes(geometry) / 8),
        pushed(geometry.responses_bytes() / 8),
        requests(geometry.requests_bytes() / 8),
        responses(geometry.responses_bytes() / 8),
        payload(geometry.request_bytes / 8) {}

  using Words = std::vector<uint64_t>;
  static std::span<std::byte> bytes(Words& words) { return std::as_writable_bytes(std::span(words)); }
  ClientMemory client_memory() { return {bytes(local), bytes(pushed)}; }
  ServerMemory server_memory() { return {bytes(requests), bytes(responses)}; }

  /// Moves one transfer of the client. False: there is none now.
  bool step() {
    const auto transfer = client.next(client_memory(), now);
    if (!transfer) return false;
    const bool read = transfer->kind == Transfer::Kind::read;
    reads += read;
    std::byte* local_at = bytes(local).data() + transfer->local;
    std::byte* remote_at = bytes(read ? responses : requests).data() + transfer->remote;
    if (read)
      std::memcpy(local_at, remote_at, transfer->bytes);
    else
      std::memcpy(remote_at, local_at, transfer->bytes);
    client.done(client_memory(), *transfer, Code::ok, now);
    return true;
  }
  /// Moves up to `count` transfers.
  void steps(int count) {
    while (count-- > 0 && step()) {
    }
  }
  std::optional<Server::Request> poll() { return server.poll(server_memory(), bytes(payload), now); }
  void publish(uint64_t sequence, std::span<const std::byte> answer) {
    server.publish(server_memory(), sequence, 0, answer, now);
  }
  /// Moves what the server pushes, and returns how many responses.
  int push() {
    int count = 0;
    while (const auto push = server.push(server_memory())) {
      std::memcpy(bytes(pushed).data() + push->at, bytes(responses).data() + push->at, push->bytes);
      server.pushed(push->slot, Code::ok);
      ++count;
    }
    client.look(client_memory());
    return count;
  }
  uint64_t call(std::span<const std::byte> argument, TimePoint deadline = kNever) {
    auto sequence = client.call(client_memory(), 1, argument, 256, now, deadline);
    return sequence ? *sequence : 0;
  }

  Client client;
  Server server;
  Words local, pushed, requests, responses, payload;
  TimePoint now{};
  uint64_t reads = 0;
};

}  // namespace mc::rfp::test
