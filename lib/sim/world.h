// A whole cluster in one thread under one seed: the production machines of lib/node with a fabric that delays, reorders
// and loses messages, processes that crash and come back, and tags in place of the model's KV.
//
// Tags make wrong bytes visible. An extent's content is one 64-bit tag, a hash chained over
// every token up to its block's end, per layer and over the layers below; reading an extent copies the tag; the next
// token is a function of the tags of *all* pages a run was given. So one wrong, foreign, stale or torn block, or chunk
// of activations, anywhere changes the answer, and the answer is compared with an oracle that has no cache at all.
//
// These laws are checked at every event: tokens equal the oracle's; a request has exactly one last reply, not later
// than its deadline; no page is written by two operations at once or while it is shared; no request goes to a node that
// drains or past its pin; no request is rejected for a bound that holds; the machines' own laws hold.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "node/conductor.h"
#include "node/decode.h"
#include "node/prefill.h"

namespace mc::sim {

struct Faults {
  double lose = 0;          // share of control messages and notifies that vanish
  double reorder = 0;       // share that overtakes or is overtaken on its own connection
  double corrupt_read = 0;  // share of reads in which one extent's bytes flip
  double fail_read = 0;     // share that ends with an error
  double fail_load = 0;     // share of copies to a device that fail
  double rot = 0;           // share of runs before which a cached extent of the node changes in memory
  double disk_error = 0;    // share of disk operations that fail
  double disk_rot = 0;      // share of disk reads in which a byte flips
  double disk_slow = 0;     // share of disk operations that take up to seconds
  double disk_full = 0;     // share of new segments for which the disk has no space
  Duration delay_min = 20us;
  Duration delay_max = 2ms;
  std::set<std::pair<std::string, std::string>> cut;  // (reader, holder): each of their reads fails with `cut_code`
  Code cut_code = Code::peer_lost;
  std::map<std::pair<std::string, std::string>, double> slow;  // (reader, holder) -> factor of the time of their reads
  bool tell_peers_of_crash = true;  // connections break at once; false: only silence shows it
};

struct WorldOptions {
  uint64_t seed = 0;
  uint32_t prefill = 1, decode = 1, cache = 0;
  std::vector<uint32_t> stages;   // of the pipeline that prefill node i leads, p0.1 and so on; 1 for those not named
  std::vector<double> announces;  // factor of the cost of prompts that prefill node i announces; 1 for those not named
  uint32_t layers = 2;
  uint32_t block_tokens = 16;
  uint32_t page_count = 64;
  uint32_t chunk_tokens = 64;
  uint32_t context_tokens = 512;
  uint32_t batch_max = 16;
  uint32_t steps_max = 1;      // node::DecodeOptions::steps_max
  uint32_t inline_tokens = 0;  // node::DecodeOptions::inline_tokens
  uint32_t pass_tokens = 0;    // node::PrefillOptions::pass_tokens; the chunks of a pass are computed side by side
  std::string policy = "kv-centric";
  sched::Options sched;
  node::ConductorOptions::Hold hold = node::ConductorOptions::Hold::off;
  Duration hold_lead = 5ms;
  std::vector<sched::Tenant> tenants;  // requests are of each in turn, and of none
  sched::FairOptions fair;
  sched::ReplicateOptions replicate;
  uint32_t request_max = 8192;
  bool priorities = false;        // requests have priorities -2 to 2 in turn, and sessions
  Duration client_grace = 100ms;  // promise 2: no request outlives its deadline by more
  bool verify_checksums = true;   // false = the canary: corrupt bytes get through and must be noticed
  /// The cost of runs and reads; null: they are quick. With a profile no token ends an answer before its length, as
  /// with costed workers (costed/costed.h), which have the same times and links.
  const sched::Profile* profile = nullptr;
  uint32_t disk_blocks = 0;        // on the disk of each prefill and decode node; 0 = nodes without disks
  uint32_t cache_disk_blocks = 0;  // on the disk of each cache node
  const kv::Eviction* eviction = &kv::kLruTail;
  uint32_t decode_pages = 0;  // of decode nodes; 0 = page_count
  uint32_t device_pages = 0;  // in the memory of each prefill and decode node's device; 0 = runs use the host's pages
  uint64_t by_layer_bytes = UINT64_MAX;  // node::PrefillOptions::by_layer_bytes
  sched::PrefixFrom prefix_from = sched::PrefixFrom::prefill;
  Duration lease_time = 30s;      // node::WorkerOptions::lease_ttl_max
  uint32_t events_per_check = 1;  // of a process: its machine audits itself, in time that grows with its pages
  Faults faults;
};

/// A request as its client submitted it.
struct Asked {
  std::vector<uint32_t> ids;
  uint32_t max_tokens = 0;
  std::string tenant, pin_prefill, pin_decode;
};

/// The end of one request, and its way there.
struct Outcome {
  Asked asked;
  TimePoint submitted{}, deadline{}, first_token = kNever, ended = kNever;
  std::vector<uint32_t> answer;
  TimePoint last_token = kNever;
  std::vector<double> gaps_s;                           // between tokens
  node::Finish finish = node::Finish::none;             // none: running, rejected or failed
  node::Reason reason = node::Reason::none;             // of a rejection or failure
  node::RequestStage stage = node::RequestStage::none;  // likewise
  sched::Bound bound = sched::Bound::none;              // that a rejection is for
  bool is_over() const { return ended != kNever; }
  bool served() const { return finish == node::Finish::stop || finish == node::Finish::length; }
  /// stop, length, abort, or the reason; for messages.
  std::string end() const;
  double allowed_s = 0;
  uint32_t attempts = 0;  // placements until its end
  std::vector<node::FailedAttempt> failed;
  bool connection_lost = false;  // the conductor died under it
  node::RequestSummary summary;
};

/// The role of a process in the cluster.
struct Place {
  enum class Kind : uint8_t { conductor, prefill, decode, cache } kind = Kind::conductor;
  uint32_t index = 0;  // among its kind
  uint32_t stage = 0;  // of the pipeline that prefill node `index` leads
  std::string name() const;
};

struct Process;

class World {
 public:
  explicit World(WorldOptions options);
  ~World();

  TimePoint now() const;
  Rng& rng() { return rng_; }
  /// For tests.
  void set_faults(const Faults& faults) { options_.faults = faults; }

  /// A client's request; returns its id.
  RequestId submit(std::vector<uint32_t> ids, uint32_t max_tokens, Duration deadline, std::string salt = "");
  /// The same with all that a client may ask for; its id, sampling and stop token are ours.
  RequestId submit(node::Submit submit);
  void disconnect(const RequestId& req);
  /// For tests.
  void crash(const std::string& name);    // kill -9
  void restart(const std::string& name);  // same name, new instance, empty memory
  void drain(const std::string& name, bool on = true);
  void set_tenants(std::span<const sched::Tenant> tenants);
  bool alive(const std::string& name) const;

  /// Runs all events up to now + d (or until `stop` says so, asked after each event).
  void run_for(Duration d, const std::function<bool()>& stop = {});
  /// Until every request has ended; false when `limit` passed first.
  bool run_until_done(Duration limit);
  uint64_t unended() const;
  /// Nothing queued, leased, pinned or owned on any live node. Explains what is not. For tests.
  std::string leftovers() const;

  const std::map<RequestId, Outcome>& outcomes() const;
  /// First violation seen ("" = none): the world goes on, so that one run reports one cause.
  const std::string& violation() const;
  node::Conductor* conductor();
  node::Worker* worker(const std::string& name);
  std::vector<std::string> names() const;
  /// Number of a node among those of its role.
  uint32_t index_of(const std::string& name) const;
  uint64_t events_run() const;
  /// The right answer.
  std::vector<uint32_t> oracle(const std::vector<uint32_t>& ids, uint32_t count) const;

 private:
  struct Parts;

  void start_process(const Place& place);
  void deliver(const std::string& name, const InstanceId& instance, node::Event event);
  void perform(Process& process, node::Actions actions);
  void check_followed(const Process& process, const node::Actions& actions);
  void transmit(Process& from, const std::string& to, const InstanceId& instance, bool notify, node::Event event);
  void schedule_tick(Process& process);

  WorldOptions options_;
  Rng rng_;
  std::unique_ptr<Parts> parts_;
  uint64_t instances_ = 0;
  std::map<std::pair<std::string, std::string>, TimePoint> last_arrival_;  // of each connection
};

}  // namespace mc::sim
