#include "host/disk_flags.h"

#include "base/errors.h"
#include "base/units.h"
#include "kv/eviction.h"

namespace mc {

namespace host {
namespace {
constexpr uint64_t kLeast = uint64_t{16} << 20;
}  // namespace

Result<SsdPlace> parse_ssd(std::string_view value) {
  const size_t colon = value.rfind(':');
  if (colon == std::string_view::npos || colon == 0)
    return Error{Code::invalid, "\"" + std::string(value) + "\" is not DIR:SIZE, such as kv:64GiB"};
  MC_TRY(size, parse_size(value.substr(colon + 1)));
  if (size.percent > 0)
    return Error{Code::invalid, "\"" + std::string(value) + "\" has a share as its size; give bytes, such as 64GiB"};
  if (size.bytes < kLeast)
    return Error{Code::invalid, "a disk of " + format_bytes(size.bytes) + " is too small for the log of a block " +
                                    "store; give at least " + format_bytes(kLeast)};
  return SsdPlace{std::string(value.substr(0, colon)), size.bytes};
}

}  // namespace host

namespace flags {

Result<void> check_ssd(std::string_view value) {
  MC_CHECK(host::parse_ssd(value));
  return {};
}

Result<void> check_write_budget(std::string_view value) {
  MC_TRY(rate, parse_byte_rate(value));
  if (rate == 0) return Error{Code::invalid, "a rate of 0 would write nothing; leave --ssd out instead"};
  return {};
}

Result<void> check_min_uses(std::string_view value) {
  MC_TRY(uses, parse_count(value));
  if (uses < 1 || uses > 1000)
    return Error{Code::invalid, std::to_string(uses) + " is not between 1 (all blocks) and 1000"};
  return {};
}

std::vector<std::string_view> eviction_names() {
  return names_of<kv::evictions>();
}

}  // namespace flags

}  // namespace mc
