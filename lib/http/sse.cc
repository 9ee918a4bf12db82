// Event streams line by line. A piece of input may end anywhere, even between CR and LF. Only an unfinished line and
// the data of an unfinished event are kept. Source: WHATWG HTML, section 9.2.6.
#include <utility>

#include "http/parser.h"

namespace mc::http {

Result<void> SseParser::feed(std::string_view bytes, const EventSink& event) {
  while (!bytes.empty()) {
    if (std::exchange(skip_lf_, false) && bytes[0] == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const size_t end = bytes.find_first_of("\r\n");
    if (end == std::string_view::npos) {
      line_ += bytes;
      bytes = {};
    } else {
      skip_lf_ = bytes[end] == '\r';
      if (line_.empty()) {
        take_line(bytes.substr(0, end), event);
      } else {
        line_ += bytes.substr(0, end);
        take_line(line_, event);
        line_.clear();
      }
      bytes.remove_prefix(end + 1);
    }
    if (line_.size() + data_.size() > event_bytes_max_)
      return {Code::invalid, "sse: one event exceeds " + std::to_string(event_bytes_max_) + " bytes"};
  }
  return {};
}

void SseParser::take_line(std::string_view line, const EventSink& event) {
  if (line.empty()) {
    if (std::exchange(has_data_, false)) event(data_);
    data_.clear();
    return;
  }
  const size_t colon = line.find(':');
  if (line.substr(0, colon) != "data") return;  // a comment starts with the colon
  std::string_view value = colon == std::string_view::npos ? std::string_view() : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (std::exchange(has_data_, true)) data_ += '\n';
  data_ += value;
}

}  // namespace mc::http
