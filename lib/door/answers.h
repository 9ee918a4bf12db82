// All answers under way: choices go to the conductor, its replies go to their answers, and what happens to each request
// is recorded and counted. Control loop's thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "door/answer.h"
#include "door/conductor_metrics.h"
#include "door/request_records.h"
#include "node/services.h"

namespace mc::door {

/// A request that is ready to be placed, with its answer.
struct AnswerJob {
  std::shared_ptr<Answer> answer;
  std::vector<node::Submit> submits;  // one for each choice
  std::string client_id;              // x-request-id
  TimePoint received{}, complete{};   // first and last byte of the request
  Duration deadline{};
};

class Answers {
 public:
  /// The loop and the metrics outlive this.
  Answers(node::MachineLoop& loop, ConductorMetrics& metrics) : loop_(loop), metrics_(metrics) {}

  /// Submits each choice. When the client leaves, the choices that still run are cancelled.
  void start(const std::shared_ptr<AnswerJob>& job);
  void on_reply(const node::Reply& reply);
  /// Begins each stream that has waited for its first token for long, so that the server pings it from then on.
  void begin_silent_streams(TimePoint now);
  /// Choices under way.
  size_t size() const { return answers_.size(); }
  const RequestRecords& records() const { return records_; }
  /// Refuses new requests from now on.
  void start_draining() { is_draining_ = true; }
  bool is_draining() const { return is_draining_; }
  /// Every client that still waits gets an error; for the end of the process.
  void fail_all();

 private:
  void on_token(Answer& answer, const node::Reply& reply, TimePoint now);
  void on_end(Answer& answer, const node::Reply& reply, TimePoint now);
  template <class Work>
  bool grow(Answer& answer, Work work);

  node::MachineLoop& loop_;
  ConductorMetrics& metrics_;
  std::map<RequestId, std::shared_ptr<Answer>> answers_;
  RequestRecords records_;
  bool is_draining_ = false;
};

}  // namespace mc::door
