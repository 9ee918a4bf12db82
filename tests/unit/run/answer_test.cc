// What a client sees of a request that ended badly: status, code and numbers.

#include "run/answer.h"

#include "base/json.h"
#include "test.h"

using namespace mc;
using namespace mc::run;

namespace {

http::Response response_of(std::string code, node::Reply::Kind kind = node::Reply::Kind::failed) {
  node::Reply reply;
  reply.kind = kind;
  reply.code = std::move(code);
  reply.stage = "prefill";
  reply.message = "why";
  return reply_response(reply);
}

}  // namespace

TEST_CASE("run/answer: every code a machine can end a request with has its HTTP status; none is a plain 500") {
  const std::pair<const char*, int> rows[] = {
      {"predicted_slo_miss", 429},
      {"queue_full", 429},
      {"no_prefill", 503},
      {"no_decode", 503},
      {"draining", 503},
      {"deadline_exceeded", 504},
      {"timeout", 504},
      {"context_length_exceeded", 400},
      {"invalid", 400},
      {"peer_lost", 503},
      {"corrupt", 503},
      {"layout", 503},
      {"unknown_peer", 503},
      {"not_found", 503},
      {"busy", 503},
      {"io", 503},
      {"cancelled", 503},
      {"no_space", 503},
  };
  for (const auto& [code, status] : rows) {
    CAPTURE(code);
    CHECK(response_of(code).status == status);
  }
  CHECK(response_of("no such code").status == 500);
}

TEST_CASE("run/answer: a rejection carries both numbers and when to come back") {
  node::Reply reply;
  reply.kind = node::Reply::Kind::rejected;
  reply.code = "predicted_slo_miss";
  reply.message = "predicted 900 ms, allowed 200 ms";
  reply.predicted_ms = 900, reply.allowed_ms = 200;
  reply.retry_after = 3s;
  const http::Response response = reply_response(reply);
  CHECK(response.status == 429);
  std::string retry;
  for (const auto& [name, value] : response.headers)
    if (name == "Retry-After") retry = value;
  CHECK(retry == "3");
  CHECK(response.body.find("900") != std::string::npos);
  CHECK(response.body.find("200") != std::string::npos);
}
