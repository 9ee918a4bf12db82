// The open-loop load generator: sends each request of a plan at its planned time whether or not earlier ones
// have been answered, and times every token. Latency counts from the planned time, so a client that falls
// behind makes its own numbers worse, not better; how late it was is measured apart. One thread.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "http/client.h"
#include "workload.h"

namespace mc::bench {

struct Target {
  std::string base_url;  // http://127.0.0.1:8000
  std::string path;      // /v1/completions
  bool is_chat = false;  // the requests and answers at this path are those of chats
  std::string model;     // name to ask for
  http::Headers headers;
  TokenRange tokens;
  bool ignore_eos = true;
  double temperature = 0;
  Duration timeout = 600s;       // of one request, from its planned time
  uint64_t max_concurrency = 0;  // 0 = unlimited; more wait in the client, and their latency grows
};

enum class Outcome : uint8_t { pending, completed, rejected, failed };

/// Durations in seconds, as vLLM's results have them.
struct Record {
  Outcome outcome = Outcome::pending;
  double planned_s = 0;  // from the start of the run
  double late_s = 0;     // when the client came to it, after the plan
  double queued_s = 0;   // then waited for --max-concurrency
  double ttft_s = 0;     // planned time to the first chunk with a token
  double e2el_s = 0;     // planned time to the end of the stream
  std::vector<double> itl_s;
  uint64_t input_tokens = 0, output_tokens = 0, cached_tokens = 0;
  int http_status = 0;
  std::string error, reason;  // reason: the server's code for a rejection
  Json stages;                // the server's "mc" object, or null
  /// Seconds of ttft_s and e2el_s that passed before the request was sent.
  double client_s() const { return late_s + queued_s; }
  /// Mean time between tokens after the first; 0 with fewer than two.
  double tpot_s() const { return output_tokens > 1 ? (e2el_s - ttft_s) / static_cast<double>(output_tokens - 1) : 0; }
};

struct LoadResult {
  std::vector<Record> records;  // in the plan's order
  double duration_s = 0;        // start of the run to the end of its last answer
  uint64_t max_concurrent = 0;
  bool interrupted = false;
};

struct Progress {
  bool shown = false;
  bool terminal = false;
};

/// `interrupt_fd` becomes readable when the user wants to stop: what is under way is then abandoned and
/// stays pending. An unreachable endpoint fails each request, not the run.
Result<LoadResult> run_load(const Plan& plan, const Target& target, int interrupt_fd, const Progress& progress);

}  // namespace mc::bench
