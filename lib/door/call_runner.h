// Calls are requests that cost before the conductor places them: parsing, templates, tokenising. The runner chooses the
// thread. Small bodies are worked on by the HTTP thread at once; larger ones, and those that turn out costly, by the
// door's pool. A tenant with a quota pays for a large body first. A request's deadline counts from its first byte.
#pragma once

#include <functional>
#include <memory>

#include "door/api_keys.h"
#include "door/door_pool.h"
#include "http/route.h"
#include "http/server.h"
#include "node/conductor.h"
#include "node/services.h"
#include "text/text.h"

namespace mc::door {

/// A request that costs before it is placed, on its way to an answer.
struct Call {
  http::Request request;
  http::Responder out;
  ApiKeys::Grant grant;
  http::Route route = http::Route::completions;
  TimePoint complete{};        // when its last byte was there
  DoorPool::TicketPtr ticket;  // null on the HTTP thread
  bool is_costly = false;      // the HTTP thread gave it up without an answer, and the pool starts it again

  void respond(http::Response response) const {
    if (!ticket || ticket->settle()) out.respond(std::move(response));
  }
  /// Whether the call was given up with this error because it takes the HTTP thread too long.
  bool moves_to_pool(const Error& error) { return is_costly = !ticket && error.code == Code::timeout; }
  /// The body was parsed. The pool may have to parse what the HTTP thread gives up.
  void drop_body() {
    if (ticket) request.body = {};
  }
  /// Whether nobody waits for the answer.
  bool is_over() const { return (ticket && ticket->is_settled()) || !out.is_open(); }
  /// Bounds of tokenising: it stops when nobody waits, and on the HTTP thread after a short time. The call outlives
  /// the limits.
  text::EncodeLimits encode_limits() const;
};

/// The 504 of a request whose deadline passed before it was placed. `complete`: the time of its last byte.
http::Response late_response(TimePoint received, TimePoint complete, Duration deadline);

class CallRunner {
 public:
  /// Answers the call, or marks it as costly. Any thread.
  using Work = std::function<void(Call&)>;

  /// `deadline`: of calls that name none. The loop and the conductor outlive the runner, and so does all that `work`
  /// uses.
  CallRunner(node::MachineLoop& loop, node::Conductor& conductor, Duration deadline, Work work);
  /// HTTP thread. The call is answered sooner or later.
  void take(Call call);
  /// The deadline became known. False if it has passed, which is then the call's answer. From now on the pool watches
  /// it.
  bool set_deadline(const Call& call, Duration deadline);
  /// Answers all calls in the pool with "draining", and waits until the calls that run have noticed.
  void stop() { pool_.stop(); }

 private:
  void put_in_pool(std::shared_ptr<Call> call);
  void run_inline(const std::shared_ptr<Call>& call);
  void run_alone(Call& call);

  node::MachineLoop& loop_;
  node::Conductor& conductor_;
  const Duration deadline_;
  const Work work_;
  DoorPool pool_{DoorPool::Options{}};  // last: its threads use the members above
};

}  // namespace mc::door
