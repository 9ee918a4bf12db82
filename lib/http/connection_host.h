// The services that a connection needs from its server's loop (private to lib/http).
#pragma once

#include <memory>
#include <optional>

#include "http/body_budget.h"
#include "http/exchange.h"

namespace mc::http::detail {

class ConnectionHost {
 public:
  virtual ~ConnectionHost() = default;
  virtual TimePoint now() const = 0;
  virtual std::shared_ptr<Outbox> outbox() = 0;
  /// Counts the request and passes it to the handler.
  virtual void dispatch(Request request, Responder responder) = 0;
  virtual BodyBudget& bodies() = 0;
  /// The answer to a request that is refused before its body is read.
  virtual std::optional<Response> refuse_head(Request head) = 0;
  /// Whether the server stops: no connection is kept after its answer.
  virtual bool draining() const = 0;
  virtual void count_response(int status) = 0;
  /// Called when the answer that dispatch() began is complete or given up.
  virtual void end_answer() = 0;
};

}  // namespace mc::http::detail
