#include "product/flags.h"

#include <bit>

#include "base/plain_name.h"
#include "base/units.h"

namespace mc::flags {

Result<void> check_block_tokens(std::string_view value) {
  MC_TRY(tokens, parse_count(value));
  if (tokens < 16 || tokens > 512 || (tokens & (tokens - 1)) != 0)
    return {Code::invalid, "'" + std::string(value) + "' is not a power of two from 16 to 512"};
  return {};
}

Result<void> check_endpoints(std::string_view value) {
  MC_TRY(endpoints, split_list(value));
  for (const std::string& endpoint : endpoints) {
    if (endpoint.starts_with("ipc://$MCT_RUN_DIR/")) continue;
    const bool ours = endpoint.starts_with("ipc://") || endpoint.starts_with("tcp://");
    auto uri = parse_uri(endpoint);
    if (ours && uri) continue;
    Error bad = ours
                    ? std::move(uri).error()
                    : Error{Code::invalid, "'" + endpoint + "' is no control endpoint: ipc:///path or tcp://host:port"};
    if (endpoint.find("://") == std::string::npos && endpoint.find(':') != std::string::npos)
      bad.next = "write tcp://" + endpoint;
    return bad;
  }
  return {};
}

Result<void> check_address(std::string_view value) {
  if (std::count(value.begin(), value.end(), ':') != 1) return {};
  return {Code::invalid, "'" + std::string(value) + "' has a port; an address alone is meant"};
}

Result<void> check_labels(std::string_view value) {
  MC_TRY(labels, split_list(value));
  for (const std::string& label : labels) {
    const size_t equals = label.find('=');
    if (equals == 0 || equals == std::string::npos)
      return {Code::invalid, "'" + label + "' is not a label of the form key=value"};
  }
  return {};
}

Result<void> check_range(std::string_view value, uint64_t low, uint64_t high) {
  MC_TRY(count, parse_count(value));
  if (count >= low && count <= high) return {};
  return {Code::invalid,
          "'" + std::string(value) + "' is not from " + std::to_string(low) + " to " + std::to_string(high)};
}

Result<void> check_transfer_spin(std::string_view value) {
  MC_TRY(time, parse_duration(value));
  if (time >= Duration{} && time <= 1s) return {};
  return {Code::invalid, "'" + std::string(value) + "' is longer than 1s: a thread would poll where it should sleep"};
}

Result<void> check_rdma_pace(std::string_view value) {
  if (value == "none") return {};
  MC_TRY(rate, parse_byte_rate(value));
  if (rate > 0) return {};
  return {Code::invalid, "'" + std::string(value) + "' moves nothing; for no limit say none"};
}

Result<void> check_rdma_cooldown(std::string_view value) {
  const size_t dash = value.find('-');
  MC_TRY(first, parse_duration(value.substr(0, dash)));
  const auto last = dash == std::string_view::npos ? Result<Duration>(first) : parse_duration(value.substr(dash + 1));
  if (!last) return last.error();
  if (first >= 1ms && first <= *last && *last <= 3600s) return {};
  return {Code::invalid, "'" + std::string(value) + "' is not a first and a longest rest from 1ms to 1h, like 1s-1m"};
}

Result<void> check_name(std::string_view value) {
  if (is_plain_name(value)) return {};
  return {Code::invalid, "'" + std::string(value.substr(0, 80)) + "' is not 1 to 64 of A-Z a-z 0-9 . _ -"};
}

}  // namespace mc::flags
