// The tables of ps, why, explain and top.

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "test.h"
#include "verbs/cluster_table.h"
#include "verbs/request_text.h"
#include "verbs/top.h"

using namespace mc;

namespace {

size_t widest(const std::string& text) {
  std::istringstream lines(text);
  size_t out = 0;
  for (std::string line; std::getline(lines, line);) out = std::max(out, line.size());
  return out;
}

Json parsed(const char* text) {
  auto json = Json::parse(text);
  REQUIRE_OK(json);
  return std::move(*json);
}

Json cluster() {
  return parsed(R"({"model":"mc-tiny","url":"http://127.0.0.1:8000","requests_unfinished":1,"nodes":[
    {"id":"p12","role":"prefill","state":"partial","http":"127.0.0.1:8100","control":"ipc:///r/p","model":"mc-tiny",
     "device":"cpu","running":12,"waiting":345,"page_bytes":1048576,"pages_total":10240,"pages_free":1024,
     "hit_rate":1,"up_s":359999,"lacks":"pipeline stage p12.1 is not registered","last_error":"","labels":{}},
    {"id":"c0","role":"cache","state":"ready","http":"127.0.0.1:8300","control":"ipc:///r/c","model":"","device":"",
     "page_bytes":0,"pages_cached":123456,"hit_rate":0,"up_s":7,"last_error":"a \"b\"","labels":{}}],
    "totals":{"finished":30,"failed":0,"rejected":0,"retried":0,"prompt_tokens":9000,"cached_local_tokens":3000,
    "cached_remote_tokens":1500,"answer_tokens":600},
    "breakers":[{"prefill":"p0","decode":"","state":"half_open","failures":3,"retry_in_ms":0}],
    "transfers":[{"from":"c0","to":"p0","bytes_per_s":1048576,"usual_bytes_per_s":1073741824},
    {"from":"p0","to":"d0","bytes_per_s":1000000000,"usual_bytes_per_s":1073741824}]})");
}

Json requests() {
  return parsed(R"([{"id":"req_0123456789012345678901234567","outcome":"running","stage":"decode","prefill_node":"p12",
    "decode_node":"d3","prompt_tokens":131072,"output_tokens":12,"ttft_ms":1234.5,"total_ms":60000.1},
    {"id":"req_0123456789012345678901234568","outcome":"failed","reason":"peer_lost","prefill_node":"p0",
    "decode_node":"","prompt_tokens":5,"output_tokens":0,"ttft_ms":null,"total_ms":9.25},
    {"id":"req_0123456789012345678901234569","outcome":"finished","reason":"stop","prefill_node":"p0",
    "decode_node":"d0","prompt_tokens":5,"output_tokens":2,"ttft_ms":40,"total_ms":90}])");
}

}  // namespace

TEST_CASE("verbs/cluster_table: it fits 80 columns, and columns in which no nodes differ are left out") {
  const std::string table = verbs::cluster_table(cluster(), false);
  CHECK(widest(table) <= 80);
  for (const char* word : {"MODEL", "DEVICE", "SSD"}) CHECK(table.find(word) == std::string::npos);
  CHECK(table.find("p12: pipeline stage p12.1 is not registered\n") != std::string::npos);
  CHECK(table.find("c0 last error: a \"b\"\n") != std::string::npos);
  CHECK(table.find("node p0 is set aside: its last 3 requests failed; the next request tries it\n") !=
        std::string::npos);
  CHECK(table.find("link c0 -> p0 is slow: ") != std::string::npos);
  CHECK(table.find("link p0") == std::string::npos);
  CHECK(table.find("123456 blocks") != std::string::npos);
  for (const char* up : {" 7s\n", " 4d03h\n"}) CHECK(table.find(up) != std::string::npos);
  CHECK(verbs::cluster_line(cluster()) == "mc-tiny on cpu at http://127.0.0.1:8000, 2 nodes, 1 request unfinished\n");
  const std::string wide = verbs::cluster_table(cluster(), true);
  for (const char* word : {"MODEL", "DEVICE", "SSD"}) CHECK(wide.find(word) != std::string::npos);
}

TEST_CASE("verbs/cluster_table: a node with another model or a disk brings its column back") {
  Json nodes = Json::array(), two = cluster();
  for (Json node : two["nodes"].items()) {
    if (node["id"].as_string() == "c0") node.set("disk_capacity_bytes", int64_t{64} << 30).set("disk_bytes", 1 << 20);
    nodes.push(std::move(node));
  }
  Json other = Json::object({{"id", "p1"}, {"labels", Json::object({{"runner", "costed:quick"}})}});
  nodes.push(std::move(other));
  const std::string table = verbs::cluster_table(two.set("nodes", std::move(nodes)), false);
  CHECK(table.find("MODEL") != std::string::npos);
  CHECK(table.find(" costed:quick ") != std::string::npos);
  CHECK(table.find("1M/64.0G") != std::string::npos);
  CHECK(table.find("DEVICE") == std::string::npos);
}

TEST_CASE("verbs/request_text: the list of requests fits 80 columns by shorter ids and says why each one ended") {
  const std::string table = verbs::requests_table(requests(), 80);
  CHECK(widest(table) <= 80);
  for (const char* word :
       {"req_0123", "decoding", "failed: peer_lost", "stop", "p12>d3", "p0>-", "TOTAL ms\n", " 60000.1\n"})
    CHECK(table.find(word) != std::string::npos);
  const std::string whole = verbs::requests_table(requests());
  CHECK(whole.find("req_0123456789012345678901234568 ") != std::string::npos);
  CHECK(widest(whole) > 80);
}

TEST_CASE("verbs/request_text: the stages of a request and the rest add up to its TTFT") {
  const char* kRecord = R"({"id":"r","outcome":"finished","reason":"stop","attempts":%d,"held_ms":1,"queue_ms":2,
    "accept_ms":3,"load_ms":4,"fetch_ms":5,"prefill_ms":6,"ttft_ms":%s,"predicted_ttft_ms":9})";
  const auto told = [&](int attempts, const char* ttft) {
    char record[512];
    std::snprintf(record, sizeof record, kRecord, attempts, ttft);
    return verbs::record_text(parsed(record));
  };
  CHECK(told(1, "121").find("other    100.0  messages between the programs\n") != std::string::npos);
  CHECK(told(2, "121").find("other    100.0  attempts before, and messages\n") != std::string::npos);
  CHECK(told(1, "20.5").find("\nother     0.0  messages") != std::string::npos);
  CHECK(told(1, "null").find("\nother ") == std::string::npos);
}

TEST_CASE("verbs/request_text: a deadline of a decision is told in full") {
  const auto told = [](int ms) {
    return verbs::explanation_text(Json::object({{"deadline_ms", ms}, {"admit", true}}));
  };
  CHECK(told(500).find("; deadline 500ms\n") != std::string::npos);
  CHECK(told(600'000).find("; deadline 10m\n") != std::string::npos);
}

TEST_CASE("verbs/request_text: a decision shows disks where a candidate has blocks on one, and marks guesses") {
  const char* kCandidate = R"({"prompt_tokens":1781,"blocks":27,"block_tokens":64,"tail_tokens":53,
    "reusable_blocks":27,"deadline_ms":600000,"admit":true,"holders":[{"node":"d0","match_blocks":27}],
    "candidates":[{"node":"p0","match_blocks":0,"sources":[{"node":"d0","blocks":27}],"queue_ms":0,"fetch_ms":5.5,
    "fetch_unmeasured":true,
    "prefill_ms":72.6,"ttft_ms":78.1,"verdict":"slower","disk_blocks":0},{"node":"p1","match_blocks":27,"sources":[],
    "queue_ms":0,"fetch_ms":0,"prefill_ms":32.1,"ttft_ms":32.1,"verdict":"winner","unmeasured":true}]})";
  const std::string text = verbs::explanation_text(parsed(kCandidate));
  CHECK(widest(text) <= 80);
  CHECK(text.find("27 of d0") != std::string::npos);
  CHECK(text.find("27/27") != std::string::npos);
  CHECK(text.find("32.1*  winner") != std::string::npos);
  CHECK(text.find("5.5+") != std::string::npos);
  CHECK(text.find("ON SSD") == std::string::npos);
  CHECK(text.find("d0 holds 27 blocks\n") != std::string::npos);
  CHECK(text.find("\nadmit: yes\n") != std::string::npos);
}

TEST_CASE("verbs/request_text: a decode node's reads from holders are shown before and after a request") {
  const char* kDecision = R"({"deadline_ms":1000,"admit":true,"decode":{"node":"d1","rows":0,"tbt_ms":1,
    "sources":[{"node":"c0","first_block":0,"blocks":20},{"node":"p1","first_block":20,"blocks":7}]}})";
  CHECK(verbs::explanation_text(parsed(kDecision)).find("1.0 ms predicted, reads 20 blocks of c0 + 7 blocks of p1\n") !=
        std::string::npos);
  const char* kRecord = R"({"kv_from":{"c0":192,"p0":9},"kv_holders_ms":5,"kv_fallback":"evicted",
    "reads":[{"from":"c0","to":"d0","tokens":192,"ms":4.5}]})";
  CHECK(verbs::record_text(parsed(kRecord)).find("192 tokens from c0, 9 tokens from p0, failed: evicted") !=
        std::string::npos);
  CHECK(verbs::record_text(parsed(kRecord)).find("192 tokens from c0 into d0") != std::string::npos);
  CHECK(verbs::record_text(parsed(R"({"kv_from":{},"kv_holders_ms":0,"kv_fallback":""})")).find("KV") ==
        std::string::npos);
}

TEST_CASE("verbs/top: the p50 is the ceil(N/2)-th smallest TTFT") {
  Json list = Json::array();
  for (const int ttft : {555, 278, 10926, 279}) list.push(Json::object({{"outcome", "finished"}, {"ttft_ms", ttft}}));
  const verbs::TopSample sample{.before = Json(), .now = cluster(), .requests = list, .seconds = 0};
  CHECK(sample.json()["ttft_p50_ms"].as_double() == 279);
}

TEST_CASE("verbs/top: rates are differences of two looks, and a screen keeps to its rows and columns") {
  Json before = cluster();
  before.set("totals", Json::object({{"finished", 10}, {"prompt_tokens", 1000}, {"answer_tokens", 100}}));
  const verbs::TopSample sample{.before = before, .now = cluster(), .requests = requests(), .seconds = 2};
  const Json told = sample.json();
  CHECK(told["requests_per_s"].as_double() == 10);
  CHECK(told["prompt_tokens_per_s"].as_double() == 4000);
  CHECK(told["ttft_p50_ms"].as_double() == 40);
  CHECK(told["ttft_requests"].as_int() == 1);
  const std::string screen = sample.screen(80, 12), uncut = sample.screen(1000, 100);
  CHECK(widest(screen) <= 80);
  CHECK(sample.screen(80, 100).find("TOTAL ms\n") != std::string::npos);
  CHECK(widest(uncut) > 80);
  CHECK(std::count(screen.begin(), screen.end(), '\n') <= 12);
  CHECK(screen.find("requests/s 10.0") != std::string::npos);
  CHECK(screen.find("in 4000 (56.2 % cached), out 250") != std::string::npos);
  CHECK(sample.screen(10, 2) == "mc-tiny on\nrequests/s\n");
}

TEST_CASE("verbs/top: rates are unknown at the first look and when the conductor was started again") {
  const verbs::TopSample first{.before = {}, .now = cluster(), .requests = {}, .seconds = 0};
  CHECK(first.json()["requests_per_s"].is_null());
  Json later = cluster();
  later.set("totals", Json::object({{"finished", 31}}));
  const verbs::TopSample restarted{.before = later, .now = cluster(), .requests = {}, .seconds = 1};
  CHECK(restarted.json()["requests_per_s"].is_null());
  CHECK(restarted.screen(80, 24).find("requests/s -") != std::string::npos);
}
