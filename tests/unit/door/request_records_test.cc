#include "door/request_records.h"

#include "test.h"

namespace request_records_test {
using namespace mc;
using namespace mc::door;

namespace {

RequestProgress progress(const std::string& client_id) {
  RequestProgress out;
  out.client_id = client_id;
  out.prompt_tokens = 7;
  return out;
}

node::Reply finished(const RequestId& req) {
  node::Reply out;
  out.req = req;
  out.kind = node::Reply::Kind::finished;
  out.finish = node::Finish::length;
  return out;
}

}  // namespace

TEST_CASE("door/request_records: a request is found while it runs and after its end, under each of its ids") {
  RequestRecords records;
  const TimePoint now = TimePoint{} + 1s;
  records.begin("req_A", progress("mine"));
  for (const bool has_ended : {false, true}) {
    CAPTURE(has_ended);
    if (has_ended) records.end(finished("req_A"), now);
    for (const char* id : {"req_A", "cmpl-A", "chatcmpl-A", "mine"}) {
      CAPTURE(id);
      const auto record = records.find(id, now);
      REQUIRE(record);
      CHECK((*record)["id"].as_string() == "req_A");
      CHECK((*record)["outcome"].as_string() == (has_ended ? "finished" : "running"));
      CHECK((*record)["prompt_tokens"].as_int() == 7);
    }
  }
  CHECK_FALSE(records.find("req_B", now));
}

TEST_CASE("door/request_records: a record names the nodes that gave the decode node its KV, if it has reported them") {
  for (const bool has_report : {false, true}) {
    CAPTURE(has_report);
    RequestRecords records;
    records.begin("req_A", progress("mine"));
    node::Reply reply = finished("req_A");
    reply.summary.prefill = "p0", reply.summary.decode = "d0";
    if (has_report) reply.summary.kv = {"req_A", 1, 64, 9, 192, {{"c0", "192"}}, 5, wire::Fallback::evicted};
    records.end(reply, {});
    const Json record = *records.find("req_A", {});
    CHECK(record["kv_from"].dump() == (has_report ? R"({"d0":64,"c0":192,"p0":9})" : "{}"));
    CHECK(record["kv_fallback"].as_string() == (has_report ? "evicted" : ""));
  }
}

TEST_CASE("door/request_records: of two requests with one client's id the newer is found") {
  RequestRecords records;
  for (const char* id : {"req_A", "req_B"}) {
    records.begin(id, progress("mine"));
    records.end(finished(id), {});
  }
  CHECK((*records.find("mine", {}))["id"].as_string() == "req_B");
}

TEST_CASE("door/request_records: the oldest record of an ended request goes first, and running ones stay") {
  RequestRecords records;
  records.begin("running", progress(""));
  for (size_t i = 0; i <= RequestRecords::kEndedMax; ++i) {
    records.begin(std::to_string(i), progress(""));
    records.end(finished(std::to_string(i)), {});
  }
  CHECK_FALSE(records.find("0", {}));
  CHECK(records.find("1", {}));
  CHECK(records.find("running", {}));
}

TEST_CASE("door/request_records: the begin of a long message is kept, and no half of a character") {
  for (const size_t size : {RequestRecords::kMessageBytesMax, RequestRecords::kMessageBytesMax + 1, size_t{1} << 20})
    for (const std::string& first : {std::string(), std::string("x")}) {
      RequestRecords records;
      node::Reply reply = finished("req_A");
      reply.kind = node::Reply::Kind::failed, reply.reason = node::Reason::internal;
      reply.stage = node::RequestStage::prefill;
      reply.message = first;
      while (reply.message.size() < size) reply.message += "\xC3\xA9";
      records.begin("req_A", progress(""));
      records.end(reply, {});
      const std::string kept((*records.find("req_A", {}))["message"].as_string());
      CHECK_FALSE(find_invalid_utf8(kept).has_value());
      if (reply.message.size() <= RequestRecords::kMessageBytesMax) {
        CHECK(kept == reply.message);
      } else {
        CHECK(kept.size() >= RequestRecords::kMessageBytesMax - 1);
        CHECK(kept.size() <= RequestRecords::kMessageBytesMax + 3);
        CHECK(kept.ends_with("\xC3\xA9..."));
      }
    }
}

TEST_CASE("door/request_records: a list names running requests first, then ended ones from the newest on") {
  RequestRecords records;
  for (const char* id : {"a", "b"}) {
    records.begin(id, progress(""));
    records.end(finished(id), {});
  }
  records.begin("c", progress(""));
  const Json list = records.list({});
  REQUIRE(list.size() == 3);
  std::string ids;
  for (const Json& one : list.items()) ids += one["id"].as_string();
  CHECK(ids == "cba");
}

}  // namespace request_records_test
