// links: base
// The --config file, and everything people write on command lines: parsers of sizes, durations,
// rates, sweeps and places. What parses must print as text that parses to the same value.
#include <cstdlib>
#include <string_view>

#include "base/config_file.h"
#include "base/units.h"
#include "base/uri.h"
#include "fuzz_target.h"

namespace mc::config_file_fuzz {
namespace {

void require(bool ok) {
  if (!ok) std::abort();
}

void values(std::string_view text) {
  if (const auto bytes = parse_bytes(text)) require(*parse_bytes(format_bytes(*bytes)) == *bytes);
  if (const auto size = parse_size(text)) require(parse_size(format_size(*size)).has_value());
  if (const auto duration = parse_duration(text)) require(*parse_duration(format_duration(*duration)) == *duration);
  if (const auto uri = parse_uri(text)) require(*parse_uri(uri->text()) == *uri);
  if (const auto address = parse_host_port(text)) require(*parse_host_port(address->text()) == *address);
  if (const auto sweep = parse_sweep_counts(text)) require(!sweep->empty() && sweep->size() <= 10'000);
  if (const auto sweep = parse_sweep_numbers(text)) require(!sweep->empty() && sweep->size() <= 10'000);
  (void)parse_rate(text);
  (void)parse_byte_rate(text);
}

}  // namespace

FUZZ_TARGET(config_file) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto entries = mc::parse_config(text, "fuzz.toml", "mc-decode"))
    for (const mc::ConfigEntry& entry : *entries) require(entry.line > 0);
  if (size < 256) values(text);
  return 0;
}

}  // namespace mc::config_file_fuzz
