#include "http/intake.h"

#include "base/assert.h"
#include "base/units.h"

namespace mc::http::detail {

bool Intake::begin_body() {
  if (!options_.deadline_header.empty())
    if (const auto ms = parse_i64(parser_.header(options_.deadline_header), 1, INT32_MAX))
      late_ = after(received_, std::chrono::milliseconds(*ms));
  return parser_.take_expect_continue();
}

BodyBudget::Room Intake::reserve() {
  const size_t memory = parser_.body_memory();
  MC_ASSERT_LE(reserved_, memory);
  const size_t more = memory - reserved_;
  if (more == 0) return BodyBudget::Room::taken;
  const BodyBudget::Room room = budget_.reserve(more, memory);
  if (room == BodyBudget::Room::taken) reserved_ += more;
  return room;
}

Request Intake::take() {
  MC_ASSERT(parser_.state() == RequestParser::State::done);
  budget_.release(std::exchange(reserved_, 0));
  Request request = parser_.take();
  request.received = received_;
  return request;
}

}  // namespace mc::http::detail
