// A later stage of a prefill pipeline (Mooncake 6.1). A stage computes its range of layers of the chunks that the stage
// before hands on, announces their KV to the decode node, and reports to the leader.
//
//   StageRun --slot free--> reading activations --> computing --> done: StageDone to the leader,
//                                |                                     StageRun to the next stage
//                                '-- StageTaken: the sender's slot is free
//
// A stage reads cached blocks into its pages when the leader asks (node/stage_reads.h), and other nodes read blocks
// from its pages under leases of the leader. It keeps no books of blocks. Its page i holds its layers of the block in
// the leader's page i, so the leader's pool, leases and index stand for the whole pipeline. Runs are computed in the
// order of their arrival. When the leader gives a page to another block, the later run therefore writes last. A run
// that arrives after a younger one is refused.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "node/failure.h"
#include "node/stage_reads.h"
#include "node/worker.h"

namespace mc::node {

/// The name of a stage, such as "p0.1": member 1 of the pipeline that p0 leads.
std::string stage_name(const std::string& leader, uint32_t stage);
/// The parts of such a name.
struct StageName {
  NodeId leader;
  uint32_t stage = 0;
};
/// nullopt: `name` is no name of a stage. The inverse of stage_name(), so no number has leading zeros.
std::optional<StageName> parse_stage_name(const std::string& name);
/// Whether `name` is that of a stage which `leader` leads.
bool is_stage_of(const std::string& name, const std::string& leader);

/// Slots for activations after the pages of a pipeline member's KV buffer. The stage reads activations into the first
/// half, and the next stage reads them from the second half.
struct ActivationSlots {
  static constexpr uint32_t kEach = 2;
  uint64_t base = 0;        // offset in the KV buffer
  uint64_t slot_bytes = 0;  // chunk_tokens rows
  uint64_t row_bytes = 0;   // one token
  uint64_t offset(uint32_t slot) const { return base + slot * slot_bytes; }
  static constexpr uint32_t count() { return 2 * kEach; }
};

struct StageOptions {
  std::string leader;
  uint32_t stage = 1, stages = 2;
  uint32_t chunk_tokens = 512;
  uint32_t queue_max = 256;
  ActivationSlots slots;
};

class Stage final : public Worker {
 public:
  static constexpr uint32_t kSlotPool = 1;  // Read::pool of activations, whose pages are slots

  Stage(WorkerOptions worker, StageOptions options);

  struct Stats {
    uint64_t runs = 0, failed = 0, tokens = 0, activation_bytes = 0;
  };
  const Stats& stats() const { return stats_; }
  uint64_t local_offset(uint32_t pool, kv::PageIndex page) const override;

 protected:
  void on_message(const Received& event, TimePoint now, Actions& out) override;
  void on_event(const Event& event, TimePoint now, Actions& out) override;
  void on_tick(TimePoint now, Actions& out) override;
  TimePoint role_wakeup() const override;
  void drop_all(TimePoint now, Actions& out) override;
  void on_peer_gone(const wire::Peer& peer, TimePoint now, Actions& out) override;
  void fill_load(wire::Load& load) const override;
  bool role_idle() const override;
  void role_check() const override;
  Shelf* shelf_of(const NamespaceId&) override { return nullptr; }  // a stage leases no blocks

 private:
  enum class Phase : uint8_t { waiting, reading, ready, computing };
  /// A chunk that this stage was asked to compute, until the message has gone on to the next stage.
  struct Run {
    wire::StageRun asked;
    NodeId from;
    InstanceId from_instance;
    Phase phase = Phase::waiting;
    TimePoint deadline{};
    uint32_t slot_in = 0, slot_out = 0;
    uint64_t op = 0;       // number of the read or run under way
    bool checked = false;  // the cached prefix of its request has been checked
    bool dropped = false;  // the run is given up and ends as soon as nothing uses its slots
    std::vector<std::vector<uint32_t>> crcs;
  };

  /// The check of the cached blocks at the front of a request, before its first chunk is computed.
  struct Check {
    NodeId leader;
    InstanceId instance;
    RequestId req;
    uint32_t attempt;
    std::vector<uint32_t> pages;
    bool running = true, good = false;
  };

  struct Handed {
    uint32_t slot;
    InstanceId reader;   // the next stage
    TimePoint deadline;  // from then on the slot is free; a reader that comes later finds a wrong CRC
  };

  std::string objection(const std::vector<uint32_t>& pages) const;
  std::string objection(const wire::StageRun& run) const;
  void on_run(const Received& event, const wire::StageRun& run, TimePoint now, Actions& out);
  std::string objection(const wire::StageAnnounce& message) const;
  void on_block_read(const Received& event, const wire::StageRead& asked, Actions& out);
  void follow(const InstanceId& leader, Actions& out);
  void announce(const Received& event, const wire::StageAnnounce& message, Actions& out);
  void start_check(const Received& event, const wire::StageAnnounce& message, Actions& out);
  void on_check(Check& check, const ChunkDone& done, Actions& out);
  std::map<uint64_t, Check>::iterator check_of(const Run& run);
  bool waits_for_check(const Run& run);
  bool refuse_unchecked(Run& run, Actions& out);
  void pump(TimePoint now, Actions& out);
  void start_read(Run& run, TimePoint now, Actions& out);
  void start_compute(Run& run, Actions& out);
  void on_layer(Run& run, const LayerDone& done, Actions& out);
  void on_chunk(Run& run, const ChunkDone& done, TimePoint now, Actions& out);
  void report(const Run& run, Code code, std::string message, const ChunkDone* last, Actions& out);
  void drop(Run& run, Actions& out);
  /// Erases the dropped runs that use no slot any more.
  void erase_dropped();
  Run* by_op(uint64_t op);
  void free_handed(std::map<uint64_t, Handed>::iterator handed);
  bool is_last() const { return stage_.stage + 1 == stage_.stages; }

  StageOptions stage_;
  LayerRange layers_;
  std::deque<Run> runs_;  // in order of arrival; erased when done
  PageCounts run_pages_;  // runs that use a page
  // key: run number; the table is bounded, and checks of abandoned requests leave first
  std::map<uint64_t, Check> checks_;
  InstanceId newest_leader_;
  uint64_t newest_run_ = 0;  // newest run of that leader, whose chunks arrive in the order of their numbers
  std::vector<bool> in_used_, out_used_;
  std::map<uint64_t, Handed> handed_on_;  // key: run number; slots that the next stage has not read yet
  StageReads block_reads_;
  Stats stats_;
};

}  // namespace mc::node
