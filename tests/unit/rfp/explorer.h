// Explores every interleaving of one channel: a client, a server, and the transfers between their memories, which move
// 32 bytes at a time and in any order, so every copy may be torn. Time stands still and every pause is 0, so whatever
// waits for a time may happen at every step. The states are those of the real Client and Server.
//
// Checked in each state: a call ends once, with the response to its own arguments; the handler runs once for a call and
// gets exactly the arguments; a response is pushed once and again after a failure, and after each look every stored
// response whose mode says push was pushed. Checked at the end: from every state a state is reachable in which all
// calls ended.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "rfp/client.h"
#include "rfp/server.h"

namespace mc::rfp::test {

struct Bounds {
  uint32_t slots = 1;
  uint64_t calls = 3;
  bool fetches = true;          // false: as over tcp, the client gets responses by pushes alone
  uint32_t lost_pushes = 1;     // pushes that may vanish
  bool lost_pushes_fail = false;  // the server is told of a lost push
  bool long_responses = false;  // some responses need a second read
  uint32_t states_max = 3'000'000;
};

struct Explored {
  uint32_t states = 0;
  uint64_t steps = 0;
  std::string violation;            // empty: none
  uint32_t pushed_ends = 0;         // states in which a call ended by a push
  uint32_t fetched_after_push = 0;  // states in which a call of push mode ended by a fetch
  uint32_t switched_back = 0;       // states in which the mode is fetching again
};

Explored explore(const Bounds& bounds, Fault fault = Fault::none);

}  // namespace mc::rfp::test
