#include "host/block_lookup.h"

#include "test.h"
#include "wire/block_index.h"

namespace block_lookup_test {

using namespace mc;
using namespace mc::host;

TEST_CASE("host/block_lookup: a body is a list of 1 to 1,000 block ids and nothing else") {
  const std::string id(32, 'a');
  const auto list = [&](size_t count) {
    std::string out = "{\"hashes\":[";
    for (size_t i = 0; i < count; ++i) out += (i > 0 ? ",\"" : "\"") + id + "\"";
    return out + "]}";
  };
  for (const size_t count : {size_t{1}, wire::kLookupBlocksMax}) {
    const auto hashes = parse_lookup(list(count));
    REQUIRE_OK(hashes);
    CHECK(hashes->size() == count);
    CHECK(hashes->back().hex() == id);
  }
  for (const std::string& wrong : std::vector<std::string>{
           list(0), list(wire::kLookupBlocksMax + 1), "{}", "[]", "x", std::string(70'000, '['),
           "{\"hashes\":\"" + id + "\"}", "{\"hashes\":[7]}", "{\"hashes\":[\"" + id + "a\"]}",
           "{\"hashes\":[\"" + std::string(32, '0') + "\"]}", "{\"hashes\":[\"" + id + "\"],\"more\":1}"})
    CHECK_FALSE(parse_lookup(wrong).has_value());
}

TEST_CASE("host/block_lookup: the answer counts the blocks and names the tier of each") {
  std::vector<uint64_t> memory(kv::BlockTable::bytes_for(8) / 8);
  kv::BlockTable table(std::as_writable_bytes(std::span(memory)), 1);
  const auto id = [](char digit) { return BlockHash{*Id128::from_hex(std::string(32, digit))}; };
  table.apply({.tier = kv::Tier::host, .hash = id('a')});
  table.apply({.tier = kv::Tier::disk, .hash = id('a')});
  table.apply({.tier = kv::Tier::disk, .hash = id('c')});
  http::Request request;
  request.body = "{\"hashes\":[\"" + id('a').hex() + "\",\"" + id('b').hex() + "\",\"" + id('c').hex() + "\"]}";
  const http::Response response = answer_lookup(request, table);
  CHECK(response.status == 200);
  CHECK(response.body == R"({"blocks":3,"held":2,"leading":1,"tiers":["memory+disk","none","disk"]})");
  request.body = "{}";
  CHECK(answer_lookup(request, table).status == 400);
}

}  // namespace block_lookup_test
