// Deliberate errors of the protocol, for tests: the exploration of all interleavings must find each of them.
#pragma once

#include <cstdint>

namespace mc::rfp {

enum class Fault : uint8_t {
  none,
  request_unchecked,    // the server takes a request whose checksum is wrong
  request_taken_twice,  // the server takes a request again that it has answered
  response_unchecked,   // the client takes a response whose checksum is wrong
  any_sequence,         // the client takes a response of another call
  stored_only_pushed,   // the server does not store a response that it pushes
  flag_read_once,       // the server does not look at the mode again after a response is published
  pushed_again,         // the server pushes a response at every look
  no_late_fetch,        // the client that waits for a push never fetches
  failed_push_left,     // the server does not push again after a push that failed
};

}  // namespace mc::rfp
