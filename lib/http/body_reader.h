// The reader of a message body finds where the body of an HTTP/1.1 message ends: after a length, after the last chunk
// (RFC 9112, section 7.1) or with the connection (private to lib/http). It is strict. Line ends are CR LF, and sizes
// fit 64 bits. A chunk header and the trailer fields together stay within the header limit. The sum of the chunks
// stays within the body limit, which is checked before any of their bytes is taken.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "http/parser.h"

namespace mc::http {

class BodyReader {
 public:
  enum class Kind : uint8_t { none, length, chunked, until_close };
  enum class Fault : uint8_t { none, bad_chunk, line_too_long, too_large };

  BodyReader() = default;
  BodyReader(Kind kind, uint64_t length, const ParserLimits& limits);

  /// Passes the body's bytes in `bytes` to `sink` and returns the number of bytes used. Stops at the end of the body
  /// or at a fault.
  template <class Sink>
  size_t feed(std::string_view bytes, const Sink& sink) {
    size_t at = 0;
    while (at < bytes.size() && state_ != State::done && fault_ == Fault::none) {
      if (state_ != State::data) {
        take_framing(bytes[at++]);
        continue;
      }
      const size_t count = kind_ == Kind::until_close
                               ? bytes.size() - at
                               : static_cast<size_t>(std::min<uint64_t>(left_, bytes.size() - at));
      sink(bytes.substr(at, count));
      at += count;
      if (kind_ == Kind::until_close) continue;
      left_ -= count;
      if (left_ == 0) state_ = kind_ == Kind::chunked ? State::data_cr : State::done;
    }
    return at;
  }
  bool is_done() const { return state_ == State::done; }
  /// Bytes still to come of a body whose length was given. For a sink: with the piece that it gets. 0 for other bodies.
  uint64_t left() const { return kind_ == Kind::length ? left_ : 0; }
  Fault fault() const { return fault_; }
  Kind kind() const { return kind_; }

 private:
  enum class State : uint8_t {
    size_first,
    size,
    extension,
    size_lf,
    data,
    data_cr,
    data_lf,
    trailer_start,
    trailer,
    trailer_lf,
    end_lf,
    done
  };

  void take_framing(char c);
  void take_size(char c);
  void expect(bool is_right, State next);

  Kind kind_ = Kind::none;
  State state_ = State::size_first;
  Fault fault_ = Fault::none;
  uint64_t left_ = 0;  // bytes left of the body or the chunk
  size_t line_max_ = 0, line_bytes_ = 0;
  uint64_t total_left_ = 0;  // the bytes that later chunks may have
};

/// Appends a piece of a body of which `left` bytes, the piece included, are announced (0: unknown). Memory for them is
/// taken in a few steps as they arrive, because a peer may announce what it never sends.
void append_body(std::string& body, std::string_view piece, uint64_t left);

}  // namespace mc::http
