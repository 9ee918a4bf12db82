// One request while it is read: its parser, the time of its first byte, its own deadline, and its share of the memory
// for bodies (private to lib/http).
#pragma once

#include "http/body_budget.h"
#include "http/server.h"

namespace mc::http::detail {

class Intake {
 public:
  /// `received`: the time of the request's first byte. The options and the budget outlive the intake.
  Intake(const ServerOptions& options, BodyBudget& budget, TimePoint received)
      : options_(options), budget_(budget), parser_(options.limits), received_(received) {}
  ~Intake() { budget_.release(reserved_); }
  Intake(const Intake&) = delete;
  Intake& operator=(const Intake&) = delete;

  const RequestParser& parser() const { return parser_; }
  /// Takes bytes until the request is complete or wrong, and returns the number taken.
  size_t feed(std::string_view bytes) { return parser_.feed(bytes); }
  /// The head has been read and the body is accepted: reads the deadline that the head names. True if the client
  /// waits for "100 Continue".
  bool begin_body();
  /// Reserves the memory that the body takes, also where its bytes have not arrived. Call it after each feed().
  BodyBudget::Room reserve();
  /// The time after which the body is too late for the deadline that the head names; kNever if it names none.
  TimePoint late() const { return late_; }
  /// The deadline as the client wrote it.
  int64_t deadline_ms() const { return (late_ - received_) / 1ms; }
  /// The complete request. Its memory no longer counts as a body that is read.
  Request take();

 private:
  const ServerOptions& options_;
  BodyBudget& budget_;
  RequestParser parser_;
  TimePoint received_;
  TimePoint late_ = kNever;
  size_t reserved_ = 0;
};

}  // namespace mc::http::detail
