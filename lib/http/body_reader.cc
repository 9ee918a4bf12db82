#include "http/body_reader.h"

namespace mc::http {

BodyReader::BodyReader(Kind kind, uint64_t length, const ParserLimits& limits)
    : kind_(kind), left_(length), line_max_(limits.header_bytes), total_left_(limits.body_bytes) {
  if (kind == Kind::none || (kind == Kind::length && length == 0)) state_ = State::done;
  if (kind == Kind::length || kind == Kind::until_close) state_ = state_ == State::done ? state_ : State::data;
}

void BodyReader::take_framing(char c) {
  if (++line_bytes_ > line_max_) {
    fault_ = Fault::line_too_long;
    return;
  }
  switch (state_) {
    case State::size_first:
    case State::size: return take_size(c);
    case State::extension: return expect(c != '\n', c == '\r' ? State::size_lf : State::extension);
    case State::size_lf:
      if (c != '\n') return expect(false, state_);
      line_bytes_ = 0;
      if (left_ > total_left_) {
        fault_ = Fault::too_large;
        return;
      }
      total_left_ -= left_;
      state_ = left_ == 0 ? State::trailer_start : State::data;
      return;
    case State::data_cr: return expect(c == '\r', State::data_lf);
    case State::data_lf: line_bytes_ = 0; return expect(c == '\n', State::size_first);
    case State::trailer_start: return expect(c != '\n', c == '\r' ? State::end_lf : State::trailer);
    case State::trailer: return expect(c != '\n', c == '\r' ? State::trailer_lf : State::trailer);
    case State::trailer_lf: return expect(c == '\n', State::trailer_start);
    case State::end_lf: return expect(c == '\n', State::done);
    case State::data:
    case State::done: break;
  }
}

void BodyReader::take_size(char c) {
  const int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
  if (digit >= 0) {
    if (state_ == State::size_first) left_ = 0;
    if (left_ >> 60 != 0) return expect(false, state_);
    left_ = left_ << 4 | static_cast<uint64_t>(digit);
    state_ = State::size;
    return;
  }
  const bool is_separator = c == ';' || c == ' ' || c == '\t';
  expect(state_ == State::size && (c == '\r' || is_separator), c == '\r' ? State::size_lf : State::extension);
}

void BodyReader::expect(bool is_right, State next) {
  if (is_right)
    state_ = next;
  else
    fault_ = Fault::bad_chunk;
}

void append_body(std::string& body, std::string_view piece, uint64_t left) {
  constexpr uint64_t kStep = 4;  // a client that stops takes at most this many times the bytes that it sent
  const uint64_t need = body.size() + piece.size();
  const uint64_t whole = std::max<uint64_t>(need, body.size() + left);
  if (need > body.capacity() && whole > need)
    body.reserve(static_cast<size_t>(std::min(whole, need * kStep)));
  body += piece;
}

}  // namespace mc::http
