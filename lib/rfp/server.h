// The server's end of one remote-fetch channel: which request is next, and which stored response is pushed. It has no
// sockets, clocks or threads. Its memory is an argument of each call, so its state is a plain value.
//
// Everything in `requests` was written by the client, at any time and with any content. A request is copied out before
// it is looked at, its size is bounded before its payload is copied, and its checksum decides. A client that writes
// garbage delays nobody else: one call looks at each slot at most once, and a slot with a wrong checksum is looked at
// less and less often. A client can only disturb its own channel.
//
// Rules of the switch between fetching and pushing (the client's half is in client.h):
//   - a response is always stored for fetching, also when it is pushed
//   - the mode is read after the response is stored, and again at every look until the slot's next request is taken
//   - a stored response is pushed once, and again after a push that failed
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "rfp/fault.h"
#include "wire/rfp_slot.h"

namespace mc::rfp {

/// Both ranges are 8-byte aligned and as long as the geometry says.
struct ServerMemory {
  std::span<const std::byte> requests;  // the client writes it
  std::span<std::byte> responses;       // the client reads it
};

struct ServerOptions {
  wire::RfpGeometry geometry;
  uint64_t epoch = 0;         // of the client's open
  uint64_t instance = 0;      // of this end
  bool always_push = false;   // the transport cannot fetch
  uint8_t bad_looks_max = 6;  // a slot with a wrong checksum is looked at at least once in 2^this looks; at most 7
  Fault fault = Fault::none;
};

inline constexpr uint64_t kEverySlot = ~uint64_t{0};

class Server {
 public:
  explicit Server(const ServerOptions& options);

  struct Request {
    uint64_t sequence = 0;
    uint16_t method = 0;
    uint32_t size = 0;  // of the payload
  };
  /// Takes the next request of the slots in `slots` (a bit for each) and copies its payload to `payload`, which is
  /// 8-byte aligned and holds geometry.request_room() bytes.
  std::optional<Request> poll(const ServerMemory& memory, std::span<std::byte> payload, TimePoint now,
                              uint64_t slots = kEverySlot);
  /// Stores the response to a request that poll() returned and that has no response yet. `payload` is at most
  /// geometry.response_room() bytes.
  void publish(const ServerMemory& memory, uint64_t sequence, uint16_t status, std::span<const std::byte> payload,
               TimePoint now);

  struct Push {
    uint32_t slot = 0;
    uint64_t at = 0;  // in `responses`, and in the client's `pushed`
    uint32_t bytes = 0;
  };
  /// A stored response that the caller must write to the client now. pushed() ends it.
  std::optional<Push> push(const ServerMemory& memory);
  /// The write of the slot's last push has ended. If it failed by timeout, busy or io, the response is pushed again,
  /// because a client that cannot fetch gets it in no other way. After other failures nothing is pushed.
  void pushed(uint32_t slot, Code code);

  /// Everything that decides what the server does next; for tests.
  void state(std::vector<uint64_t>& out) const;

 private:
  enum class State : uint8_t { waiting, taken, published };
  struct Slot {
    uint64_t sequence = 0;  // of the last request
    State state = State::waiting;
    bool push_due = false;  // published, and not pushed yet
    bool pushing = false;   // a push is being written
    uint8_t bad_looks = 0;  // looks at a request with a wrong checksum, up to bad_looks_max
    uint8_t looks_off = 0;  // looks to leave out
    uint32_t bytes = 0;     // of the response, header included
    TimePoint taken_at{};
  };
  bool take(const ServerMemory& memory, uint32_t slot, std::span<std::byte> payload, Request& out);
  uint64_t mode(const ServerMemory& memory) const;

  ServerOptions options_;
  std::vector<Slot> slots_;
  uint32_t next_ = 0;            // slot of the next look
  std::vector<uint64_t> image_;  // of the slot that is published
};

}  // namespace mc::rfp
