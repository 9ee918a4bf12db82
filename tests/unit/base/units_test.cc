#include "base/units.h"

#include "test.h"

using namespace mc;

TEST_CASE("base/units: sizes are binary and decimal suffixes are refused") {
  CHECK(*parse_bytes("64KiB") == 65536);
  CHECK(*parse_bytes("1.5GiB") == 1536 * kMiB);
  CHECK(*parse_bytes("4096") == 4096);
  CHECK(*parse_bytes("18446744073709551615") == UINT64_MAX);
  for (const char* text :
       {"", "KiB", "64KB", "64 KiB", "-1", "1e3", "1.0001B", "99999999TiB", "18446744073709551616", "0x10"}) {
    INFO(text);
    auto bad = parse_bytes(text);
    REQUIRE_FALSE(bad);
    CHECK(bad.error().what.find("'" + std::string(text) + "'") != std::string::npos);
  }
}

TEST_CASE("base/units: a share is a percentage of what is known later") {
  CHECK(parse_size("80%")->of(1000) == 800);
  CHECK(parse_size("2GiB")->of(1) == 2 * kGiB);
  CHECK_FALSE(parse_size("0%"));
  CHECK_FALSE(parse_size("101%"));
  CHECK_FALSE(parse_size("%"));
}

TEST_CASE("base/units: durations take units, sums and bare seconds") {
  CHECK(*parse_duration("250ms") == 250ms);
  CHECK(*parse_duration("2s") == 2s);
  CHECK(*parse_duration("1m30s") == 90s);
  CHECK(*parse_duration("0.5") == 500ms);
  CHECK(*parse_duration("1.5h") == 5400s);
  for (const char* text : {"", "ms", "2 s", "1m30", "5x", "-1s", "400d400d400d400d400d99999999999d"}) {
    INFO(text);
    CHECK_FALSE(parse_duration(text));
  }
}

TEST_CASE("base/units: rates and counts") {
  CHECK(*parse_rate("10/s") == 10);
  CHECK(*parse_rate("90/m") == 1.5);
  CHECK(*parse_rate("2.5") == 2.5);
  CHECK_FALSE(parse_rate("10/d"));
  CHECK(*parse_byte_rate("50MiB/s") == 50 * kMiB);
  CHECK(*parse_count("10k") == 10'000);
  CHECK(*parse_count("1.5k") == 1'500);
  CHECK_FALSE(parse_count("1.5"));
  CHECK_FALSE(parse_count("10KiB"));
}

TEST_CASE("base/units: sweeps multiply and add, keep order, and stop at the end of their range") {
  CHECK(*parse_sweep_counts("1-64*2") == std::vector<uint64_t>{1, 2, 4, 8, 16, 32, 64});
  CHECK(*parse_sweep_counts("8-32+8") == std::vector<uint64_t>{8, 16, 24, 32});
  CHECK(*parse_sweep_counts("4,1-5+3") == std::vector<uint64_t>{4, 1, 4});
  CHECK(*parse_sweep_bytes("64KiB-1MiB*4") == std::vector<uint64_t>{65536, 262144, 1048576});
  CHECK(*parse_sweep_numbers("0.5-2*2") == std::vector<double>{0.5, 1, 2});
  CHECK(parse_sweep_counts("9000000000000000000-18000000000000000000+9000000000000000000")->size() == 2);
  for (const char* text : {"", "1-2", "5-1+1", "1-9*1", "0-9*2", "1-9+0", "1,,2", "1-100000+1", ","}) {
    INFO(text);
    CHECK_FALSE(parse_sweep_counts(text));
  }
}

TEST_CASE("base/units: formatted values read back as themselves") {
  for (const uint64_t bytes :
       {uint64_t{0}, uint64_t{1}, uint64_t{1023}, kKiB, 3 * kMiB, 1536 * kMiB, 4 * kGiB, kTiB, UINT64_MAX})
    CHECK(*parse_bytes(format_bytes(bytes)) == bytes);
  for (const Duration d :
       {Duration(0), Duration(1), Duration(1500), Duration(250ms), Duration(2s), Duration(90s), Duration(3600s)})
    CHECK(*parse_duration(format_duration(d)) == d);
  CHECK(format_bytes(4 * kGiB) == "4GiB");
  CHECK(format_duration(250ms) == "250ms");
  CHECK(human_bytes(1181116006) == "1.10 GiB");
  CHECK(human_duration(12'340'000ns) == "12.3 ms");
  CHECK(human_time(999ms) == "0s");
  CHECK(human_time(754s) == "12m34s");
  CHECK(human_time(std::chrono::hours(24) - 1s) == "23h59m");
  CHECK(human_time(std::chrono::hours(76)) == "3d04h");
}
