// The table of mc-cache ls.

#include "verbs/cache_list.h"

#include <sstream>

#include "test.h"

using namespace mc;

TEST_CASE("verbs/cache_list: a row shows where the block is and how old its last use is, in 80 columns") {
  const auto list = Json::parse(R"({"blocks":[
    {"id":"00112233445566778899aabbccddeeff","tier":"host","parent":"","first_position":0,"tokens":64,"bytes":401408,
     "uses":9999,"age_ms":754000,"pins":0,"leases":12,"pin_ms":3599000,"on_disk":true},
    {"id":"ffeeddccbbaa99887766554433221100","tier":"disk","parent":"00112233445566778899aabbccddeeff",
     "first_position":10485760,"on_disk":true}],"memory_blocks":1,"memory_bytes":401408})");
  REQUIRE_OK(list);
  std::istringstream lines(verbs::block_table(*list));
  std::string header, first, second;
  std::getline(lines, header), std::getline(lines, first), std::getline(lines, second);
  for (const std::string& line : {header, first, second}) CHECK(line.size() <= 80);
  CHECK(header.find("AGE") != std::string::npos);
  CHECK(first.find(" host        0  9999  12m34s   12 ") != std::string::npos);
  CHECK(second.find(" disk 10485760     -       - ") != std::string::npos);
}
