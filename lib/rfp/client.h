// The client's end of one remote-fetch channel (Su et al., "RFP: When RPC is Faster than Server-Bypass with RDMA",
// EuroSys 2017). It has no sockets, clocks or threads: next() says which remote memory to read or write, and done()
// gets the end of it. Its memory is an argument of each call, so its state is a plain value.
//
//   call() -> write of the request -> read of the response's first F bytes -> ready: take()
//                                        ^  |                              -> longer than F: read of the rest -> take()
//                                        +--+ not ready, or torn: a retry
//
// Fetching costs the server no operation of its NIC, but a slow handler makes the client read in vain. After two
// consecutive calls with more than R retries the client asks the server to push, and when two consecutive pushed calls
// were quick, it fetches again. The switch loses no response:
//   - the mode names the first sequence that it holds for, and the client may change it during that call
//   - a client that waits for a push reads the response anyway from time to time
//   - what arrives first ends the call; a response of another sequence is ignored
//
// Everything that the server writes may be garbage: a response is at its place in the client's own memory before it is
// looked at, its size is bounded by the slot, and its sequence and checksum decide. A call ends at its deadline at the
// latest.
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

/// Own memory of a client: | control 64 bytes | images of the request slots | fetched responses |, 8-byte aligned.
inline uint64_t client_bytes(const wire::RfpGeometry& geometry) {
  return geometry.requests_bytes() + geometry.responses_bytes();
}

struct ClientMemory {
  std::span<std::byte> local;         // client_bytes(): next() names places in it
  std::span<const std::byte> pushed;  // geometry.responses_bytes(): the server writes it
};

struct ClientOptions {
  wire::RfpGeometry geometry;
  uint64_t epoch = 0;
  uint64_t instance = 0;             // of the server's end
  bool fetches = true;               // false: the transport cannot fetch, and the server always pushes
  uint32_t retries_max = 5;          // R
  Duration first_after_max = 50us;   // the first fetch waits for the usual time of a handler, at most this long
  Duration retry_after = 1ns;        // pause before each of the first R retries; not 0: other calls come first
  Duration slow_retry_after = 50us;  // pause before each retry after the first R ones
  Duration push_wait = 100us;        // time between fetches of a call that waits for a push; about 4 round trips
  Duration quick_below = 7us;        // a pushed call whose handler took at most this long counts as quick
  Fault fault = Fault::none;
};

/// A transfer between `local` and the server's memory.
struct Transfer {
  enum class Kind : uint8_t { write_request, write_mode, read };
  Kind kind{};
  uint32_t slot = 0;
  uint64_t local = 0;   // place in ClientMemory::local
  uint64_t remote = 0;  // place in the server's requests (writes) or responses (read)
  uint32_t bytes = 0;
};

struct Answer {
  uint64_t sequence = 0;
  Code code = Code::ok;  // not ok: the channel failed, or (timeout) the deadline passed; the handler may have run
  uint16_t status = 0;
  uint16_t time_us = 0;                // of the handler; 65535 = at least that
  std::span<const std::byte> payload;  // in ClientMemory::local, until finish()
  uint32_t retries = 0;                // fetches in vain, up to R + 1
  bool pushed = false;
};

class Client {
 public:
  explicit Client(const ClientOptions& options);

  /// Whether call() has a slot: slots are used in turn, so the oldest call must have ended.
  bool free() const;
  /// Starts a call and returns its sequence. `fetch_bytes` (F) counts the bytes of the first read, header included. At
  /// the deadline the call ends with Code::timeout; its slot is in use until a transfer under way has ended.
  /// Code::busy: no slot is free. Code::invalid: the payload is longer than geometry.request_room(). After fail() the
  /// code of it.
  Result<uint64_t> call(const ClientMemory& memory, uint16_t method, std::span<const std::byte> payload,
                        uint32_t fetch_bytes, TimePoint now, TimePoint deadline);
  /// Ends the calls whose deadlines have passed.
  void expire(TimePoint now);
  /// A transfer that the caller must start now; done() must follow.
  std::optional<Transfer> next(const ClientMemory& memory, TimePoint now);
  void done(const ClientMemory& memory, const Transfer& transfer, Code code, TimePoint now);
  /// Looks at what the server has pushed into the slots in `slots` (a bit for each).
  void look(const ClientMemory& memory, uint64_t slots = ~uint64_t{0});
  /// An ended call. Its slot is in use until finish().
  std::optional<Answer> take(const ClientMemory& memory);
  void finish(uint64_t sequence);
  /// The caller no longer waits for the call. Its slot is free when no transfer uses it any more.
  void abandon(uint64_t sequence);
  /// The connection is lost: ends every call with this code, and every later one.
  void fail(Code code);

  /// Time at which next() may have a transfer, or expire() a call, although nothing has happened.
  TimePoint due() const;
  bool pushes() const { return !options_.fetches || mode_ >> 63 == 1; }

  /// Everything that decides what the client does next; for tests.
  void state(std::vector<uint64_t>& out) const;

 private:
  enum class State : uint8_t { idle, request, waiting, rest, answered, taken };
  struct Slot {
    uint64_t sequence = 0;
    State state = State::idle;
    bool busy = false;       // a transfer of the slot is under way
    bool abandoned = false;  // idle as soon as it is not busy
    bool pushed = false;
    bool slow = false;  // had more than R retries
    Code code = Code::ok;
    uint32_t bytes = 0;        // of the image of the request, then of the response, header included
    uint32_t fetch_bytes = 0;  // F
    uint32_t retries = 0;      // up to R + 1
    TimePoint due{}, deadline = kNever;
  };
  enum class Look : uint8_t { not_ready, partial, ready };

  uint64_t image_at(uint32_t slot) const { return options_.geometry.request_at(slot); }
  uint64_t response_at(uint32_t slot) const {
    return options_.geometry.requests_bytes() + options_.geometry.response_at(slot);
  }
  Slot& slot_of(uint64_t sequence);
  static bool is_open(const Slot& slot);
  std::optional<Transfer> next_of(uint32_t index, TimePoint now);
  Look examine(const ClientMemory& memory, uint32_t index, uint32_t bytes);
  void retry(Slot& slot, TimePoint now);
  void ready(const ClientMemory& memory, uint32_t index, bool pushed);
  void release(Slot& slot);

  ClientOptions options_;
  std::vector<Slot> slots_;
  uint64_t next_sequence_ = 1;
  uint64_t mode_ = 0;         // control word of the server, as soon as mode_due_ is written
  bool mode_due_ = false;     // the control word must be written
  bool mode_busy_ = false;    // it is being written
  uint32_t slow_calls_ = 0;   // consecutive calls with more than R retries
  uint32_t quick_calls_ = 0;  // consecutive pushed calls with a quick handler
  Duration usual_{};          // moving average of the handlers' times, at most first_after_max
  Code failed_ = Code::ok;
};

}  // namespace mc::rfp
