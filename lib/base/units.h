// Numbers as people write them. Sizes are binary (`64KiB`, `80%` of something), counts decimal
// (`10k`), durations carry a unit (`250ms 2s 1m`; a bare number is seconds), rates are per second
// (`10/s`), sweeps are comma lists of values and ranges (`1-64*2`, `8-32+8`). Every parser takes the
// whole text or fails with Code::invalid and a message that quotes the text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace mc {

inline constexpr uint64_t kKiB = 1024, kMiB = kKiB * 1024, kGiB = kMiB * 1024, kTiB = kGiB * 1024;

/// Plain decimal integer in [low, high], nothing around it.
Result<uint64_t> parse_u64(std::string_view text, uint64_t low = 0, uint64_t high = UINT64_MAX);
Result<int64_t> parse_i64(std::string_view text, int64_t low = INT64_MIN, int64_t high = INT64_MAX);
/// Finite decimal number ("1", "0.5", "1e-3").
Result<double> parse_f64(std::string_view text);
/// "true/false", "on/off", "yes/no", "1/0".
Result<bool> parse_bool(std::string_view text);
/// "1500", "10k", "2M", "1G": decimal multiples; a fraction must give a whole number ("1.5k").
Result<uint64_t> parse_count(std::string_view text);
/// "4096", "64KiB", "1.5GiB", "16B". KB, MB, ... are refused: the reader could mean either.
Result<uint64_t> parse_bytes(std::string_view text);

/// A size that may be a share of something known later ("80%" of the free memory).
struct ByteSize {
  uint64_t bytes = 0;
  double percent = 0;  // used when > 0
  uint64_t of(uint64_t total) const {
    return percent > 0 ? static_cast<uint64_t>(static_cast<double>(total) * percent / 100.0) : bytes;
  }
  bool operator==(const ByteSize&) const = default;
};
Result<ByteSize> parse_size(std::string_view text);

/// "10ns 3us 250ms 2s 1.5m 1h 2d", sums like "1m30s", bare numbers are seconds.
Result<Duration> parse_duration(std::string_view text);
/// "10/s", "90/m", "3600/h", bare number = per second. Result per second.
Result<double> parse_rate(std::string_view text);
/// "50MiB/s" or bare size per second.
Result<uint64_t> parse_byte_rate(std::string_view text);

/// "a,b,c" into its parts; an empty part is an error. Empty text is an empty list.
Result<std::vector<std::string>> split_list(std::string_view text);
/// Sweeps of counts, sizes, durations or plain numbers; at most 10,000 values.
///   "1-64*2" = 1 2 4 ... 64    "8-32+8" = 8 16 24 32    "1,4,16-64*2"
Result<std::vector<uint64_t>> parse_sweep_counts(std::string_view text);
Result<std::vector<uint64_t>> parse_sweep_bytes(std::string_view text);
Result<std::vector<double>> parse_sweep_numbers(std::string_view text);

/// Shortest text that parses back to the same value: "4GiB", "1500", "250ms".
std::string format_bytes(uint64_t bytes);
/// For tests.
std::string format_size(const ByteSize& size);
/// For tests.
std::string format_duration(Duration duration);
/// For people: three digits, "1.10 GiB", "12.3 ms". Never parsed.
std::string human_bytes(uint64_t bytes);
std::string human_duration(Duration duration);
/// For people, of times to a second: "0s", "45s", "12m34s", "5h12m", "3d04h".
std::string human_time(Duration duration);
/// Shortest decimal that reads back as the same double.
std::string format_f64(double value);

}  // namespace mc
