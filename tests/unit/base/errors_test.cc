#include "base/errors.h"

#include <set>

#include "base/peer_error.h"
#include "test.h"

using namespace mc;

TEST_CASE("base/errors: the three lines a user sees are the documented ones") {
  const Error e = user_error(err::kKvLayoutMismatch, "prefill p0 uses --block-tokens 64, this decode uses 128",
                             "handshake with p0 (127.0.0.1:41233), field block_tokens",
                             "restart one side with the same --block-tokens");
  CHECK(format_error("mc-decode", e) ==
        "mc-decode: error MC2104 kv-layout-mismatch: prefill p0 uses --block-tokens 64, this decode uses 128\n"
        "  where: handshake with p0 (127.0.0.1:41233), field block_tokens\n"
        "  next:  restart one side with the same --block-tokens; details: mc-decode help MC2104\n");
  CHECK(exit_code_of(e) == kExitUnreachable);
  CHECK(format_error("mc-x", Error{Code::io, "no luck"}) == "mc-x: error: no luck\n");
}

TEST_CASE("base/errors: every entry has a unique slug, a next step, and an HTTP type when it has a status") {
  std::set<std::string_view> slugs;
  for (const ErrorInfo& info : error_table()) {
    INFO(info.number);
    CHECK(slugs.insert(info.slug).second);
    CHECK(info.number >= 1000);
    CHECK(info.meaning.ends_with("."));
    CHECK_FALSE(info.next.empty());
    CHECK_FALSE(info.next.ends_with("."));
    CHECK((info.http_status != 0) == !info.openai_type.empty());
    CHECK((info.http_status != 0) == !info.openai_code.empty());
    CHECK(info.exit_code != kExitOk);
    CHECK(find_error(info.number) == &info);
    CHECK(find_error(info.slug) == &info);
    CHECK(find_error("mc" + std::to_string(info.number)) == &info);
  }
  CHECK(find_error(0) == nullptr);
  CHECK(find_error("MC9999") == nullptr);
  CHECK(find_error("") == nullptr);
}

TEST_CASE("base/errors: the HTTP answers are those the clients rely on") {
  auto status = [](err::Number n) { return http_status_of(user_error(n, "x")); };
  CHECK(status(err::kMalformedJson) == 400);
  CHECK(status(err::kContextLength) == 400);
  CHECK(status(err::kBodyTooLarge) == 413);
  CHECK(status(err::kModelNotFound) == 404);
  CHECK(status(err::kPredictedSloMiss) == 429);
  CHECK(status(err::kNoPrefill) == 503);
  CHECK(status(err::kDeadlineExceeded) == 504);
  CHECK(status(err::kInternal) == 500);
  CHECK(http_status_of(Error{Code::busy, "x"}) == 429);
  CHECK(find_error(err::kContextLength)->openai_code == "context_length_exceeded");
}

TEST_CASE("base/errors: a cause keeps its number when outer layers add theirs") {
  const Error inner = user_error(err::kDiskFull, "x");
  CHECK(as_user_error(err::kInternal, inner).mc == err::kDiskFull);
  CHECK(as_user_error(err::kInternal, Error{Code::io, "y"}).mc == err::kInternal);
  CHECK(one_line(within("a.mckv", inner)) == "MC5004 disk-full: a.mckv: x");
}

TEST_CASE("base/errors: a number that a peer reports and this release does not have becomes peer-garbage") {
  const Error known = peer_error(2104, "x", "y");
  CHECK(one_line(known) == "MC2104 kv-layout-mismatch: x (y)");
  CHECK(one_line(peer_error(9999, "x", "")) == "MC2106 peer-garbage: x (MC9999, which this release does not have)");
  for (const uint32_t number : {0u, 1u, 0x7fffu, 0x8000u, 0x10838u, 0xffffffffu})
    CHECK(peer_error(number, "x", "").mc == err::kPeerGarbage);
}
