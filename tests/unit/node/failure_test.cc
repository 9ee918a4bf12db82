#include "node/failure.h"

#include <string>

#include "base/result.h"
#include "test.h"

using namespace mc;
using namespace mc::node;

namespace {

Failure failed(std::string stage, std::string code, bool retryable = true) {
  return failure_of({"r", 1, std::move(stage), std::move(code), "why", retryable, 0, 0});
}

constexpr Code kCodes[] = {Code::invalid, Code::not_found, Code::busy,        Code::timeout, Code::peer_lost,
                           Code::corrupt, Code::no_space,  Code::unsupported, Code::io,      Code::cancelled};

}  // namespace

TEST_CASE("node/failure: a report without a stage and a code still has both") {
  for (const Failure& nameless : {failed("", "", true), failed("nowhere", "ok", false)}) {
    CHECK(nameless.stage == RequestStage::unknown);
    CHECK(nameless.cause != Reason::none);
    CHECK(reason_of(nameless) != Reason::none);
  }
}

TEST_CASE("node/failure: nothing that happens between nodes is the client's error") {
  for (const char* stage : {"accept", "transfer", "fetch"})
    for (const Code code : kCodes)
      for (const bool retryable : {false, true}) {
        const auto reason = reason_of(failed(stage, std::string(to_string(code)), retryable));
        INFO(stage << " " << to_string(code));
        CHECK(reason != Reason::invalid);
        CHECK(reason != Reason::not_found);
        CHECK(reason != Reason::unsupported);
      }
  CHECK(reason_of(failed("transfer", "invalid")) == Reason::kv_transfer);  // "no such buffer"
  CHECK(reason_of(failed("decode", "invalid")) == Reason::internal);
  CHECK(reason_of(failed("queue", "invalid", false)) == Reason::internal);
  CHECK(reason_of(failed("prefill", "invalid", false)) == Reason::invalid);  // the model judged a field of the request
  CHECK(reason_of(failed("decode", "invalid", false)) == Reason::invalid);   // its grammar refuses an answer
  CHECK(reason_of(failed("prefill", "unsupported", false)) == Reason::unsupported);
  CHECK(reason_of(failed("accept", "too_long", false)) == Reason::context_length_exceeded);
}

TEST_CASE("node/failure: words that no worker has count as internal, and a transfer that stalls is not a deadline") {
  CHECK(reason_of(failed("transfer", "no such word")) == Reason::kv_transfer);
  CHECK(reason_of(failed("no such stage", "no such word")) == Reason::internal);
  CHECK(reason_of(failed("transfer", "timeout", true)) == Reason::kv_transfer);
  CHECK(reason_of(failed("transfer", "timeout", false)) == Reason::deadline_exceeded);
  CHECK(reason_of(failed("decode", "timeout", false)) == Reason::deadline_exceeded);
}

TEST_CASE("node/failure: the pair is blamed for what passes between its nodes, never for room, time or clients") {
  for (const char* code : {"invalid", "peer_lost", "corrupt", "timeout", "not_found", "io"})
    CHECK(blame_of(failed("transfer", code)) == Blame::pair);
  CHECK(blame_of(failed("accept", "unknown_peer")) == Blame::pair);
  CHECK(blame_of(failed("accept", "layout")) == Blame::pair);
  for (const char* code : {"predicted_slo_miss", "queue_full", "draining", "too_long", "no_space", "busy", "cancelled"})
    for (const char* stage : {"accept", "transfer", "prefill", "decode", "queue"})
      CHECK(blame_of(failed(stage, code)) == Blame::nobody);
  CHECK(blame_of(failed("transfer", "timeout", false)) == Blame::nobody);
  CHECK(blame_of(failed("prefill", "invalid", false)) == Blame::nobody);
  CHECK(blame_of(failed("decode", "invalid", false)) == Blame::nobody);
  CHECK(blame_of(failed("prefill", "unsupported", false)) == Blame::nobody);
  CHECK(blame_of(failed("prefill", "io")) == Blame::prefill);
  CHECK(blame_of(failed("decode", "io")) == Blame::decode);
  CHECK(blame_of(failed("prefill", "peer_lost")) == Blame::pair);
}
